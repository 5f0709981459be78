"""`qwen-chat ask` on pipes and on a terminal, over the scripted engine."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = [sys.executable, str(Path(__file__).with_name("fake_command.py"))]
ANSWER = "Blue light scatters most.\n\nSo the sky is blue."


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("QWEN_CHAT_HOME", str(tmp_path))


def script(**given):
    return json.dumps({"replies": [{"text": ANSWER, "thinking": "Let me think."}], "load_s": 0.1, **given})


def ask(*argv, stdin=b"", **given):
    return subprocess.run(
        [*COMMAND, script(**given), "ask", *argv], input=stdin, capture_output=True, timeout=60, check=False
    )  # fmt: skip


def on_terminal(*argv, term="xterm-256color", until=None, then=None, **given):
    """(exit code, what the terminal got) of a run whose three streams are one terminal."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ["TERM"] = term
        os.execv(COMMAND[0], [*COMMAND, script(**given), "ask", *argv])
    got, end, acted = b"", time.monotonic() + 60, False
    while time.monotonic() < end:
        if select.select([fd], [], [], 0.1)[0]:
            try:
                more = os.read(fd, 65536)
            except OSError:
                break
            if not more:
                break
            got += more
        if until and until in got and not acted:
            acted = True
            then(pid, fd)
    os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), got


def test_the_answer_goes_to_stdout_and_nothing_else_anywhere():
    done = ask("why is the sky blue?")
    assert done.returncode == 0
    assert done.stdout.decode() == ANSWER + "\n"
    assert done.stderr == b""


def test_what_is_piped_in_follows_the_prompt(tmp_path):
    log = tmp_path / "log"
    ask("summarise", "this", stdin="naïve text\n".encode(), log=str(log))
    ask(stdin=b"only piped", log=str(log))
    ask("a ", "--raw", stdin=b"b\n", log=str(log))
    ask("hi", "--system", "Be brief.", "--no-think", "--max-tokens", "7", log=str(log))
    rows = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert rows[0] == [[["user", "summarise this\n\nnaïve text"]], None, None, None]
    assert rows[1][0] == [["user", "only piped"]]
    assert rows[2] == [[], None, None, "a b\n"]
    assert rows[3] == [[["system", "Be brief."], ["user", "hi"]], False, 7, None]


def test_nothing_to_ask_and_input_that_is_no_text_exit_2():
    for argv, stdin in (([], b""), (["  "], b"\n"), (["x"], b"\xff\xfe\x00")):
        done = ask(*argv, stdin=stdin)
        assert done.returncode == 2, argv
        assert done.stderr.count(b"\n") == 1
        assert done.stdout == b""


def test_json_is_one_object_with_text_ids_reason_and_stats():
    done = ask("x", "--json")
    found = json.loads(done.stdout)
    assert found["text"] == ANSWER
    assert found["finish_reason"] == "stop"
    assert found["token_ids"]
    assert found["stats"]["throughput"]["generated_tokens"] == len(found["token_ids"])
    assert done.stdout.count(b"\n") == 1


def test_an_error_of_the_engine_is_one_sentence_with_its_exit_code():
    done = ask("x", load_error=["CheckpointError", "config.json is missing.", "Name a model folder."])
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"qwen-chat: config.json is missing. Name a model folder.\n"
    done = ask("x", replies=[{"text": ANSWER, "error": ["StorageError", "The disk failed."], "error_after": 2}])
    assert done.returncode == 1
    assert done.stderr.endswith(b"qwen-chat: The disk failed.\n")


def test_a_reader_that_leaves_early_is_no_error():
    long = script(replies=[{"text": "line of text\n" * 3000}])
    done = subprocess.run(
        f"{sys.executable} {COMMAND[1]} '{long}' ask x | head -n 2; echo ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == b"line of text\nline of text\n0\n"
    assert done.stderr == b""


def test_ctrl_c_on_a_pipe_exits_130_with_the_partial_text():
    child = subprocess.Popen(
        [*COMMAND, script(replies=[{"text": "word " * 5000}], speed=1.0), "ask", "x"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    first = os.read(child.stdout.fileno(), 100)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert (first + out).startswith(b"word ")
    assert (first + out).endswith(b"\n")
    assert err == b""


def test_ctrl_c_while_loading_exits_130_in_time():
    code, got = on_terminal("x", until=b"headers", then=lambda pid, fd: os.write(fd, b"\x03"), load_s=30.0, speed=1.0)
    assert code == 130
    assert b"Traceback" not in got
    row = ""
    for part in re.split(r"(\r)", got.decode()):
        row = (part + row[len(part) :]) if part != "\r" else row
    assert "^C" in got.decode()
    assert row.strip() == ""


def test_on_a_terminal_hostile_text_is_harmless_and_no_escape_is_written():
    hostile = "a\x1b]52;c;aGk=\x07b\x9b2Jc\u202ed"
    code, got = on_terminal("x", replies=[{"text": hostile}])
    assert code == 0
    assert b"\x1b" not in got
    assert "\x9b".encode() not in got
    assert b"headers" in got
    piped = ask("x", replies=[{"text": hostile}])
    assert piped.stdout.decode() == hostile + "\n"


def test_a_dumb_terminal_gets_the_answer_too():
    code, got = on_terminal("x", term="dumb")
    assert code == 0
    assert b"\x1b" not in got
    assert b"So the sky is blue." in got
    assert b"Let me think" not in got


def test_ask_imports_no_screen_and_no_mlx(monkeypatch):
    monkeypatch.setenv("REPORT_MODULES", "1")
    assert ask("x").stderr == b"modules\n"


TINY = Path(__file__).parents[2] / "engine" / "fixtures" / "fp8-1"


def test_an_answer_cut_off_by_the_context_says_so_on_stderr_and_keeps_stdout_clean(capfd, monkeypatch):
    from qwen_chat_mlx.tui.cli import main

    monkeypatch.setattr(sys, "stdin", None)
    cut = ["ask", "--model", str(TINY), "--set", "model.memory_limit=4 GiB", "--context", "64", "--temperature", "0"]
    assert main([*cut, "hello"]) == 0
    out, err = capfd.readouterr()
    assert out.strip()
    assert err.count("\n") == 1
    assert "cut off: the context of 64 tokens is full" in err
    assert main([*cut, "--max-tokens", "3", "hello"]) == 0
    assert capfd.readouterr().err == ""
    assert main([*cut, "--json", "hello"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["finish_reason"] == "context"
    assert "cut off" in err


@pytest.mark.parametrize("argv", [["--set", "ui.theme=inc"], ["--config", "{home}/c.toml"]])
def test_a_theme_that_does_not_exist_is_told_and_the_question_answered(argv, tmp_path):
    (tmp_path / "c.toml").write_text('[ui]\ntheme = "inc"\n')
    done = ask("x", *(a.format(home=tmp_path) for a in argv))
    assert (done.returncode, done.stdout.decode()) == (0, ANSWER + "\n")
    assert done.stderr.startswith(b"qwen-chat: There is no theme 'inc'; did you mean 'ink'?")
    assert done.stderr.count(b"\n") == 1
    assert ask("x", "--set", "ui.theme=paper").stderr == b""


def test_a_prompt_that_is_no_text_is_refused():
    done = ask(b"caf\xe9")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"qwen-chat: The prompt is not UTF-8 text.")


def test_input_without_an_end_is_refused_when_it_is_too_much():
    with open("/dev/zero", "rb") as endless:
        done = subprocess.run(
            [*COMMAND, script(), "ask", "x"], stdin=endless, capture_output=True, timeout=60, check=False
        )
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"qwen-chat: More than 64 MiB are piped in.")
