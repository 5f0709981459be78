"""The dispatcher: what runs, what it imports, what it says and the code it ends with."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qwen_chat_mlx import __version__
from qwen_chat_mlx.engine.errors import QwenChatError
from qwen_chat_mlx.tui import cli

HEAVY = (
    "mlx",
    "textual",
    "rich",
    "numpy",
    "tokenizers",
    "jinja2",
    "safetensors",
    "platformdirs",
    "qwen_chat_mlx.engine",
)


def run(*argv, env=None, stdin=b"", **kwargs):
    return subprocess.run(
        [sys.executable, "-m", "qwen_chat_mlx", *argv],
        input=stdin, capture_output=True, env={**os.environ, **(env or {})}, timeout=60, check=False, **kwargs,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("QWEN_CHAT_HOME", str(tmp_path))


@pytest.mark.parametrize("argv", [["--version"], ["--help"], *([verb, "--help"] for verb in cli.verbs())], ids=" ".join)
def test_version_and_help_import_nothing_heavy_and_are_quick(argv):
    code = (
        "import sys, json, resource\n"
        "from qwen_chat_mlx.tui.cli import main\n"
        f"code = main({argv!r})\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(json.dumps([code, sorted(sys.modules), used.ru_utime + used.ru_stime]), file=sys.stderr)"
    )
    results = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        results.append(json.loads(done.stderr))
    code, modules, _ = results[0]
    assert code == 0
    assert not [m for m in modules if m.startswith(HEAVY)]
    assert min(seconds for _, _, seconds in results) < 0.1


def test_version_is_that_of_the_package_metadata():
    done = run("--version")
    assert done.stdout.decode() == f"qwen-chat {__version__}\n"
    pyproject = Path(cli.__file__).parents[2] / "pyproject.toml"
    if pyproject.exists():
        assert f'version = "{__version__}"' in pyproject.read_text("utf-8")


def test_help_lists_every_verb_with_its_summary(capsys):
    assert cli.main(["--help"]) == 0
    said = capsys.readouterr().out
    for verb in cli.verbs():
        assert f"  {verb} " in said
        assert len(cli.summary(verb)) > 20
    assert {"ask", "chat", "completion", "config"} <= set(cli.verbs())


def test_a_misspelt_verb_is_refused_with_the_nearest(capsys):
    assert cli.main(["confg"]) == 2
    said = capsys.readouterr().err
    assert "qwen-chat config" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "argv", [["ask", "x", "--no-such"], ["ask", "x", "--temperature"], ["config", "--check", "--init"]]
)
def test_a_wrong_flag_is_one_sentence_and_exit_2(argv, capsys):
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("qwen-chat: ")
    assert "--help" in err


def test_the_chat_without_a_terminal_exits_2_and_names_ask():
    for argv in ([], ["hello there"], ["chat"]):
        done = run(*argv)
        assert done.returncode == 2
        assert b"qwen-chat ask" in done.stderr
        assert done.stdout == b""
        assert b"\x1b" not in done.stderr


@pytest.mark.parametrize(
    ("raised", "code"), [(KeyboardInterrupt(), 130), (BrokenPipeError(), 0), (QwenChatError("No."), 1)]
)
def test_what_a_verb_raises_becomes_an_exit_code(raised, code, monkeypatch, capsys):
    def fail(argv):
        raise raised

    monkeypatch.setattr(cli, "_dispatch", fail)
    monkeypatch.setattr(cli, "_drop_stdout", lambda: None)
    assert cli.main([]) == code
    assert capsys.readouterr().err == ("qwen-chat: No.\n" if code == 1 else "")


def test_an_error_with_escape_codes_in_it_is_shown_without_them(capsys):
    assert cli.main(["config", "--config", "/nowhere/\x1b[2J\x9b1m\nx"]) == 2
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert "\x9b" not in said
    assert said.count("\n") == 1


def test_platforms_that_cannot_run_it_are_named(monkeypatch):
    assert cli.unsupported("win32") == "This is win32."
    monkeypatch.setattr(os, "confstr", lambda name: "glibc 2.31")
    assert cli.unsupported("linux") == "This Linux has glibc 2.31."
    monkeypatch.setattr(os, "confstr", lambda name: "glibc 2.35")
    assert cli.unsupported("linux") == ""
    monkeypatch.setattr(os, "confstr", lambda name: None)
    assert "glibc" in cli.unsupported("linux")
    monkeypatch.setattr(os, "uname", type("U", (), {"machine": "x86_64"}))
    assert "x86_64" in cli.unsupported("darwin")


def test_an_unsupported_platform_is_one_sentence_and_exit_1(monkeypatch, capsys):
    monkeypatch.setattr(cli, "unsupported", lambda platform: "This is plan9.")
    assert cli.main(["config"]) == 1
    assert "plan9" in capsys.readouterr().err


def test_names_of_actions_and_panels_in_the_config_are_checked(tmp_path, capsys):
    path = tmp_path / "c.toml"
    path.write_text('[keys]\nstpo = "f1"\n')
    assert cli.main(["config", "--config", str(path)]) == 2
    assert "c.toml:2: There is no action keys.stpo. Did you mean keys.stop?" in capsys.readouterr().err
    path.write_text('[panels]\nhide = ["ssd_read"]\n')
    assert cli.main(["config", "--config", str(path)]) == 2
    assert "'ssd_reads'" in capsys.readouterr().err
    path.write_text('[panels]\nhide = ["ssd_reads"]\n[keys]\nstop = "f9"\n')
    assert cli.main(["config", "--config", str(path)]) == 0


def test_the_panels_that_are_known_by_reading_are_those_that_are_found_by_importing():
    from qwen_chat_mlx.tui.cli._flags import _panels
    from qwen_chat_mlx.tui.panels.base import find_panels

    assert sorted(p.id for p in find_panels()) == _panels()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--plain", "--model", "x", "ask", "hello"], b"The verb comes first. Write it as: qwen-chat ask [options]"),
        (["--model", "x", "ask", "hello"], b"The verb comes first. Write it as: qwen-chat ask [options]"),
        (["--temperature", "0", "doctor"], b"The verb comes first. Write it as: qwen-chat doctor [options]"),
        (["--json", "ask", "hello"], b"--json. If ask is the verb, it comes first: qwen-chat ask [options]"),
        (["--colour", "hello"], b"--colour. See `qwen-chat chat --help`."),
        (["chat", "--model"], b"argument --model: expected one argument"),
    ],
)
def test_without_a_terminal_too_wrong_words_are_what_is_said(argv, said):
    done = run(*argv)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert said.lower() in done.stderr.lower()
    assert b"terminal" not in done.stderr


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["ask", "x", "--config", ""], "--config"),
        (["config", "--init", "--config", " "], "--config"),
        (["pack", "", "/nowhere/to/write"], "SRC"),
        (["pack", "/nowhere", ""], "DST"),
        (["bench", "--model", "x", "--workload", ""], "--workload"),
    ],
)
def test_an_empty_path_is_not_taken_for_the_folder_one_is_in(argv, word, capsys):
    assert cli.main(argv) == 2
    assert capsys.readouterr().err == f"qwen-chat: {word} is empty. Is the variable set that it comes from?\n"
