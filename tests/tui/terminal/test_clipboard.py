"""What is said to have been copied was copied."""

import base64
import os
import sys

import pytest

from qwen_chat_mlx.tui.terminal import clipboard
from qwen_chat_mlx.tui.terminal.clipboard import OSC52_MOST_BYTES, copy


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A folder on PATH with tools that note what they were given; tools(name, exit_code)."""
    monkeypatch.setattr(clipboard.sys, "platform", "linux")

    def add(name, code=0):
        tool = tmp_path / name
        tool.write_text(f'#!/bin/sh\n/bin/cat > "{tmp_path}/{name}.got"\necho noise\nexit {code}\n')
        tool.chmod(0o755)

    return add


def environ(tmp_path, **more):
    return {"PATH": str(tmp_path), **more}


def test_the_systems_tool_comes_first_and_is_verified(tools, tmp_path, capfd):
    tools("wl-copy")
    sent = []
    done = copy("naïve\ntext", sent.append, "reply", environ(tmp_path, WAYLAND_DISPLAY="w"))
    assert (done.method, done.verified, done.sentence) == ("wl-copy", True, "Copied the reply (wl-copy).")
    assert (tmp_path / "wl-copy.got").read_text("utf-8") == "naïve\ntext"
    assert sent == []
    assert capfd.readouterr().out == ""


def test_a_tool_that_fails_gives_way_to_the_next_and_then_to_the_terminal(tools, tmp_path):
    tools("wl-copy", 1)
    tools("xclip")
    both = environ(tmp_path, WAYLAND_DISPLAY="w", DISPLAY=":0")
    assert copy("x", lambda _: None, environ=both).method == "xclip"
    tools("xclip", 1)
    sent = []
    done = copy("x", sent.append, environ=both)
    assert (done.method, done.verified) == ("OSC 52", False)
    assert "Copied" not in done.sentence
    assert sent == ["\x1b]52;c;eA==\x07"]


def test_over_ssh_the_tools_of_the_far_machine_are_not_used(tools, tmp_path, monkeypatch):
    for name in ("pbcopy", "wl-copy", "xclip"):
        tools(name)
    far = environ(tmp_path, SSH_TTY="/dev/pts/1", WAYLAND_DISPLAY="w")
    monkeypatch.setattr(clipboard.sys, "platform", "darwin")
    assert copy("x", lambda _: None, environ=far).method == "OSC 52"
    assert copy("x", lambda _: None, environ={**far, "DISPLAY": "localhost:10"}).method == "xclip"
    assert copy("x", lambda _: None, environ=environ(tmp_path)).method == "pbcopy"


@pytest.mark.parametrize(("variables", "start", "end"), [
    ({}, "\x1b]52;c;", "\x07"),
    ({"TMUX": "/tmp/x,1,0"}, "\x1bPtmux;\x1b\x1b]52;c;", "\x07\x1b\\"),
    ({"TERM": "screen"}, "\x1bP\x1b]52;c;", "\x07\x1b\\"),
])  # fmt: skip
def test_the_terminal_is_asked_in_a_form_that_multiplexers_pass_on(variables, start, end, tmp_path):
    sent = []
    text = "日本 \x1b]52;c;!\x07"
    copy(text, sent.append, environ=environ(tmp_path, **variables))
    assert sent[0].startswith(start)
    assert sent[0].endswith(end)
    assert base64.b64decode(sent[0][len(start) : -len(end)]).decode() == text


def test_nothing_and_too_much_are_said_and_not_sent(tmp_path):
    sent = []
    assert "no text" in copy("", sent.append, environ=environ(tmp_path)).sentence
    assert "/export" in copy("x" * (OSC52_MOST_BYTES + 1), sent.append, environ=environ(tmp_path)).sentence
    assert sent == []
    assert copy("x" * OSC52_MOST_BYTES, sent.append, environ=environ(tmp_path)).method == "OSC 52"
    assert len(sent[0]) <= 100_002


def test_a_tool_that_hangs_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(clipboard.sys, "platform", "linux")
    tool = tmp_path / "xclip"
    tool.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(30)\n")
    tool.chmod(0o755)
    done = copy("x", lambda _: None, environ={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "DISPLAY": ":0"})
    assert done.method in ("OSC 52", "xsel")
