"""`qwen-chat config`: what is in force, from where, and a file to start with."""

import errno
import json
import os
import re
import stat

import pytest

from qwen_chat_mlx.tui import cli
from qwen_chat_mlx.tui.config import UiConfig, all_settings, load
from qwen_chat_mlx.tui.config_text import tomllib
from qwen_chat_mlx.tui.themes import SHIPPED


def run(capsys, *argv, code=0):
    assert cli.main(["config", *argv]) == code
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    return out if code == 0 else err


def test_every_setting_is_printed_with_its_origin_and_can_be_read_back(capsys, home, monkeypatch):
    home.mkdir()
    (home / "config.toml").write_text('[model]\npath = "x"\n[sampling]\n\ntop_k = 5\n')
    monkeypatch.setenv("QWEN_CHAT_UI_THEME", "paper")
    out = run(capsys, "--mtp", "off", "--set", "sampling.seed=7", "--no-think")
    assert len(out.splitlines()) == len(all_settings())
    for line in (
        f'model.path = "x"  # {home}/config.toml:2', f"sampling.top_k = 5  # {home}/config.toml:5", "sampling.seed = 7  # --set",
        'mtp.mode = "off"  # --mtp', 'ui.theme = "paper"  # QWEN_CHAT_UI_THEME', "chat.think = false  # --think",
        'sampling.temperature = "model"  # default',
    ):  # fmt: skip
        assert line in out.splitlines()
    tomllib.loads(out)
    found = json.loads(run(capsys, "--json"))
    assert found["sampling.top_k"] == {"value": 5, "origin": f"{home}/config.toml:5"}


def test_init_writes_a_commented_file_once(capsys, home):
    run(capsys, "--init")
    path = home / "config.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load(environ={"QWEN_CHAT_HOME": str(home)}).ui == UiConfig()
    path.write_text("# mine\n")
    assert "left alone" in run(capsys, "--init", code=2)
    assert path.read_text() == "# mine\n"


def test_the_file_to_start_with_sets_nothing_and_the_example_sets_every_default(capsys, home):
    run(capsys, "--init")
    begun = tomllib.loads((home / "config.toml").read_text())
    shown = tomllib.loads(run(capsys, "--example"))
    assert begun == {table: {} for table in shown}
    assert {f"{t}.{k}" for t in shown for k in shown[t]} == {s.name for s in all_settings() if s.key != "*"}
    assert "`qwen-chat config --init`" in run(capsys, "--example")


def test_check_says_whether_the_settings_can_be_used(capsys, home):
    assert "no config file" in run(capsys, "--check")
    home.mkdir()
    (home / "config.toml").write_text("[model]\n")
    assert "can be used" in run(capsys, "--check")
    (home / "config.toml").write_text("[modle]\n")
    assert "config.toml:1: " in run(capsys, "--check", code=2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[keys]\nstop = "f2"\n', "f2 is given to both toggle_metrics and stop"),
        ('[keys]\nstop = "q"\n', "q is given to stop, but in a prompt it is typed"),
        ('[ui]\ntheme = "papr"\n', "did you mean 'paper'?"),
        ("", "There is no theme 'gone'"),
    ],
)
def test_check_says_what_the_chat_says_at_its_start(text, said, capsys, home):
    home.mkdir()
    (home / "config.toml").write_text(text)
    (home / "state.json").write_text('{"ui.theme": "gone"}')
    assert cli.main(["config", "--check"]) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert out == f"{home / 'config.toml'} can be used, except for what is said above.\n"


def test_the_theme_that_stands_in_is_the_one_in_force(capsys):
    assert 'ui.theme = "ink"  # stands in for "bogus" from --set' in run(capsys, "--set", "ui.theme=bogus")


def test_paths_and_themes_are_listed(capsys, home):
    out = run(capsys, "--paths")
    assert f"config_file    {home}/config.toml" in out
    assert json.loads(run(capsys, "--paths", "--json"))["conversations"] == f"{home}/conversations"
    (home / "themes").mkdir(parents=True)
    (home / "themes" / "bad.toml").write_text("x = 1\n")
    whole = (SHIPPED / "paper.toml").read_text()
    titled = re.sub("^title = .*$", lambda _: 'title = "e\\u001b[2Jvil"', whole, flags=re.M)
    (home / "themes" / "n\x1b[2Jame.toml").write_text(titled)
    assert cli.main(["config", "--themes"]) == 0
    out, err = capsys.readouterr()
    assert "ink " in out
    assert "bad.toml:1:" in err
    assert "n␛[2Jame" in out
    assert "e␛[2Jvil" in out
    assert "\x1b" not in out


def test_paths_need_no_readable_config(capsys, home):
    home.mkdir()
    (home / "config.toml").write_text("broken")
    assert "config.toml" in run(capsys, "--paths")


def test_on_a_terminal_it_is_a_table_without_hostile_bytes(terminal):
    t = terminal("config", "--system", "a\x1b[2Jb[/]", "--set", "keys.stop=f9")
    assert t.wait() == 0
    text = t.got.decode()
    assert "a\x1b[2Jb" not in text
    assert "b[/]" in text
    assert "setting" in text
    assert "keys" in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_verb_and_flag(shell, capsys):
    assert cli.main(["completion", shell]) == 0
    out = capsys.readouterr().out
    for word in (*cli.verbs(), "max-tokens", "resume", "init"):
        assert word in out


def test_the_bash_completion_completes(tmp_path, capsys):
    import shutil
    import subprocess

    if not shutil.which("bash"):
        pytest.skip("needs bash")
    assert cli.main(["completion", "bash"]) == 0
    script = tmp_path / "c.bash"
    script.write_text(capsys.readouterr().out)

    def complete(*words):
        listed = " ".join(f"'{w}'" for w in words)
        code = (
            f'source {script}; COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _qwen_chat; echo "${{COMPREPLY[@]}}"'
        )
        return subprocess.run(
            ["bash", "-c", code], capture_output=True, text=True, check=True, timeout=30
        ).stdout.split()

    assert complete("qwen-chat", "as") == ["ask"]
    assert complete("qwen-chat", "ask", "--max") == ["--max-tokens"]
    assert complete("qwen-chat", "ask", "--mtp", "") == ["auto", "fixed", "off"]
    assert complete("qwen-chat", "pack", "--experts", "m") == ["mxfp4", "mxfp8"]
    assert complete("qwen-chat", "pack", "--resident", "") == ["8", "16"]
    assert "--plain" in complete("qwen-chat", "--pl")
    assert complete("qwen-chat", "completion", "f") == ["fish"]


def test_numbers_of_thousands_of_digits_are_refused_in_one_sentence(capsys, tmp_path):
    digits = "9" * 5000
    assert "a whole number from 1" in run(capsys, "--max-tokens", digits, code=2)
    assert "a whole number from 1" in run(capsys, "--set", f"sampling.max_tokens={digits}", code=2)
    (tmp_path / "c.toml").write_text(f"[sampling]\nmax_tokens = {digits}\n")
    said = run(capsys, "--config", str(tmp_path / "c.toml"), code=2)
    assert "too long" in said
    assert said.count("\n") == 1


def test_init_on_a_full_disk_leaves_no_half_file_behind(capsys, home, monkeypatch):
    from qwen_chat_mlx.tui import config_text

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as m:
        m.setattr(config_text, "example", full)
        said = run(capsys, "--init", code=1)
    assert said == (
        f"qwen-chat: {home}/config.toml cannot be read or written: No space left on device. Make room, or write "
        "somewhere else.\n"
    )
    run(capsys, "--init")
    assert (home / "config.toml").read_text()
