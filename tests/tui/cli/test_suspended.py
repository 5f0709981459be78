"""Into the background and back: the whole screen is there again."""

import importlib.util
import signal
import time
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("screen", Path(__file__).parents[1] / "real" / "screen.py")
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
screen = _module.screen


@pytest.mark.parametrize("way", ["/suspend", "signal"])
def test_everything_is_painted_again_when_the_program_comes_back(terminal, way):
    t = terminal(script={"load_s": 0.2, "replies": [{"text": "one two three"}]})
    t.until("ready")
    t.type("hello\r")
    t.until("one two three")
    settle(t)
    before = rows(t.got)
    (child,) = t.children()
    if way == "signal":
        t.kill(signal.SIGTSTP, child)
    else:
        t.type("/suspend\r")
    t.until(rb"\x1b\[\?1049l")
    stopped(child)
    since = len(t.got)
    t.kill(signal.SIGCONT, child)
    t.until(rb"\x1b\[\?1049h", since=since)
    end = time.monotonic() + 30
    while rows(t.got[since:]) != before and time.monotonic() < end:
        t.read(0.1)
    assert rows(t.got[since:]) == before


def rows(written):
    return [row for row in screen(written, 120, 36) if row]


def settle(t, seconds=1.0):
    """Wait until nothing was written for a while."""
    quiet = time.monotonic() + seconds
    while time.monotonic() < quiet:
        had = len(t.got)
        t.read(0.1)
        if len(t.got) > had:
            quiet = time.monotonic() + seconds


def stopped(pid):
    """Wait until the process is stopped."""
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < end
        time.sleep(0.02)
