"""The full-screen chat as the terminal sees it: when it starts, how it ends, and who cleans up."""

import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from qwen_chat_mlx.tui.terminal.restore import RESTORE

OPEN = rb"\x1b\[\?1049h"
READY = "Fake"
BOTH = pytest.mark.parametrize("spawn", [False, True], ids=["forked", "spawned"])
OFF = (b"\x1b[?1049l", b"\x1b[?1003l", b"\x1b[<u", b"\x1b[?2004l", b"\x1b[?25h")


def started(terminal, **given):
    """A chat with its model loaded, and the line settings of the terminal before it."""
    t = terminal(**given)
    before = t.modes()
    t.until(OPEN)
    t.until(READY)
    assert t.modes() != before
    return t, before


def restored(t, before, since=0):
    ended = t.got[since:]
    assert [code for code in OFF if code not in ended] == []
    assert ended.rindex(b"\x1b[?1049l") > ended.rfind(b"\x1b[?1049h")
    assert t.modes() == before


@BOTH
def test_quitting_restores_the_terminal_and_exits_0(terminal, spawn):
    t, before = started(terminal, script={"load_s": 0.2, "spawn": spawn})
    t.type(b"\x11")
    assert t.wait() == 0
    restored(t, before)


@BOTH
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_signal_to_the_parent_ends_the_chat_in_order(terminal, number, code, spawn):
    t, before = started(terminal, script={"load_s": 0.2, "spawn": spawn})
    began = time.monotonic()
    t.kill(number)
    assert t.wait() == code
    assert time.monotonic() - began < 10
    restored(t, before)
    assert b"Traceback" not in t.got


@BOTH
@pytest.mark.parametrize(
    ("number", "code", "words"), [(signal.SIGKILL, 137, b"memory"), (signal.SIGABRT, 134, b"SIGABRT")]
)
def test_after_a_sudden_death_the_parent_restores_the_terminal_and_says_what_happened(
    terminal, number, code, words, spawn
):
    t, before = started(terminal, script={"load_s": 0.2, "noise": "the last \x1b[31mwords\n", "spawn": spawn})
    since = len(t.got)
    (child,) = t.children()
    os.kill(child, number)
    assert t.wait() == code
    restored(t, before, since)
    said = t.got[t.got.rindex(RESTORE.encode()[-8:]) :]
    assert words in said
    assert signal.Signals(number).name.encode() in said
    assert b"the last" in said
    assert b"--continue" in said
    assert b"\x1b[31m" not in t.got[since:]


@BOTH
def test_when_the_parent_is_killed_the_child_ends_too(terminal, spawn):
    t, _ = started(terminal, script={"load_s": 0.2, "spawn": spawn})
    (child,) = t.children()
    os.kill(t.pid, signal.SIGKILL)
    t.wait()
    for _ in range(100):
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the child lives on")


@BOTH
@pytest.mark.parametrize("after_s", [0.0, 0.03, 0.06, 0.1])
def test_a_signal_at_any_moment_of_the_start_ends_both_and_restores_the_terminal(terminal, spawn, after_s):
    t = terminal(script={"load_s": 0.2, "spawn": spawn})
    before = t.modes()
    for _ in range(200):
        if t.children():
            break
        time.sleep(0.01)
    (child,) = t.children()
    time.sleep(after_s)
    t.kill(signal.SIGTERM)
    assert t.wait() == 143
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert t.modes() == before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks")
def test_a_second_interpreter_is_started_only_where_this_one_has_other_threads(monkeypatch):
    import threading

    from qwen_chat_mlx.tui.terminal import supervisor

    ask = "from qwen_chat_mlx.tui.terminal import supervisor; print(supervisor._forks_safely())"
    assert subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout == "True\n"
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        assert not supervisor._forks_safely()
    finally:
        done.set()
        other.join()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not supervisor._forks_safely()


def stopped(pid):
    done = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return done.stdout.startswith("T")


@pytest.mark.parametrize("whole_group", [True, False])
def test_it_stops_with_its_child_and_comes_back(terminal, whole_group):
    t, before = started(terminal)
    (child,) = t.children()
    t.kill(signal.SIGTSTP)
    for _ in range(100):
        if stopped(t.pid) and stopped(child):
            break
        t.read(0.1)
    else:
        pytest.fail("it did not stop")
    assert t.modes() == before
    since = len(t.got)
    if whole_group:
        os.killpg(t.pid, signal.SIGCONT)
    else:
        os.kill(t.pid, signal.SIGCONT)
    t.until(OPEN, since=since)
    t.type("x")
    t.until("x", since=since)
    t.read(0.5)
    assert t.got[since:].count(b"\x1b[?1049h") == 1
    t.type(b"\x11")
    assert t.wait() == 0
    restored(t, before)


def test_what_libraries_print_goes_to_the_log_and_not_to_the_screen(terminal, tmp_path):
    t, _ = started(terminal, script={"load_s": 0.2, "noise": "library noise\n"})
    t.type(b"\x11")
    assert t.wait() == 0
    assert b"library noise" not in t.got
    assert (tmp_path / "output.log").read_text() == "library noise\n" * 2
    assert (tmp_path / "output.log").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("term", ["", "dumb"])
def test_a_terminal_that_cannot_draw_gets_one_sentence_and_no_escape(terminal, term):
    t = terminal(term=term)
    assert t.wait() == 2
    assert b"qwen-chat ask" in t.got
    assert b"\x1b" not in t.got


@pytest.mark.parametrize("piped", ["stdin", "stdout", "stderr"])
def test_one_stream_that_is_no_terminal_is_enough_to_refuse(piped):
    main, child = pty.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), child) | {piped: subprocess.PIPE}
    done = subprocess.Popen([sys.executable, "-m", "qwen_chat_mlx"], env={**os.environ, "TERM": "xterm"}, **streams)
    out, err = done.communicate(timeout=60)
    os.close(child)
    shown = os.read(main, 4096) if piped != "stderr" else b""
    os.close(main)
    assert done.returncode == 2
    assert piped.encode() in (err or shown)
    assert b"\x1b" not in (out or b"") + (err or b"") + shown


def test_a_config_that_cannot_be_used_is_said_before_anything_is_drawn(terminal, tmp_path):
    (tmp_path / "config.toml").write_text("[ui]\nmouse = 5\n")
    t = terminal()
    assert t.wait() == 2
    assert b"config.toml:2:" in t.got
    assert b"\x1b" not in t.got


def test_help_and_a_wrong_flag_draw_nothing(terminal):
    t = terminal("chat", "--help")
    assert t.wait() == 0
    assert b"--plain" in t.got
    t = terminal("--colour")
    assert t.wait() == 2
    assert b"--help" in t.got
    assert b"\x1b" not in t.got


def test_a_prompt_is_sent_and_kept_and_the_conversation_is_resumed(terminal, tmp_path):
    from qwen_chat_mlx.tui.conversations import Store

    script = {"load_s": 0.2, "replies": [{"text": "Because of Rayleigh."}], "log": str(tmp_path / "log")}
    t = terminal("why", "blue?", script=script)
    t.until("Rayleigh")
    t.read(0.5)
    t.type(b"\x11")
    assert t.wait() == 0
    (entry,) = Store(tmp_path / "conversations").list()
    assert (entry.title, entry.turns) == ("why blue?", 2)
    t = terminal("--continue", script=script)
    t.until("Rayleigh")
    t.until(READY)
    t.type("more\r")
    t.until("more")
    for _ in range(100):
        t.read(0.1)
        if (tmp_path / "log").read_text().count("\n") == 2:
            break
    t.kill(signal.SIGTERM)
    assert t.wait() == 143
    asked = json.loads((tmp_path / "log").read_text().splitlines()[-1])[0]
    assert [text for _, text in asked] == ["why blue?", "Because of Rayleigh.", "more"]
    t = terminal("--resume", "nonsense")
    assert t.wait() == 2
    assert b"\x1b" not in t.got


def test_there_is_nothing_to_continue_in_a_new_home(terminal):
    t = terminal("--continue")
    assert t.wait() == 2
    assert b"no conversation" in t.got


def test_sigterm_while_a_reply_streams_keeps_what_came(terminal, tmp_path):
    from qwen_chat_mlx.tui.conversations import Store

    t = terminal("go", script={"load_s": 0.2, "speed": 1.0, "replies": [{"text": "alpha " + "word " * 3000}]})
    t.until("alpha")
    t.read(0.3)
    t.kill(signal.SIGTERM)
    assert t.wait() == 143
    store = Store(tmp_path / "conversations")
    turns = store.open(next(store.entries()).id).turns
    assert turns[1].text.startswith("alpha word")


def test_an_error_of_the_app_itself_is_one_sentence_and_the_log_has_the_rest(terminal, tmp_path):
    t = terminal(script={"load_s": 0.2, "crash": True})
    assert t.wait() == 1
    assert b"output.log" in t.got
    assert b"Traceback" not in t.got
    assert "made to fail" in (tmp_path / "output.log").read_text()
