"""Ending by signal when the app does not come to an end by itself."""

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time

import pytest

from qwen_chat_mlx.tui.terminal.restore import RESTORE

HUNG = """
import sys, time, tty
from qwen_chat_mlx.tui.terminal.signals import end_on_signals
end_on_signals(lambda code: print("asked", code, flush=True), 0, grace_s=float(sys.argv[1]))
tty.setraw(0)
print("ready", flush=True)
for _ in range(600):
    time.sleep(0.1)
"""


class Hung:
    def __init__(self, grace):
        self.main, child = pty.openpty()
        self.before = termios.tcgetattr(self.main)
        self.process = subprocess.Popen(
            [sys.executable, "-c", HUNG, str(grace)], stdin=child, stdout=child, stderr=child
        )
        os.close(child)
        self.got = b""
        self.until(b"ready")

    def until(self, wanted):
        end = time.monotonic() + 30
        while wanted not in self.got:
            assert time.monotonic() < end, self.got
            if select.select([self.main], [], [], 0.1)[0]:
                self.got += os.read(self.main, 4096)


@pytest.fixture
def hung():
    made = []

    def start(grace):
        made.append(Hung(grace))
        return made[-1]

    yield start
    for h in made:
        h.process.kill()
        h.process.wait()
        os.close(h.main)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_an_app_that_hangs_is_ended_after_the_grace_with_the_terminal_restored(hung, number):
    h = hung(0.3)
    h.process.send_signal(number)
    h.until(RESTORE.encode())
    assert h.process.wait(30) == 128 + number
    assert f"asked {128 + number}".encode() in h.got
    assert termios.tcgetattr(h.main) == h.before


def test_a_second_signal_ends_it_at_once(hung):
    h = hung(60)
    h.process.send_signal(signal.SIGTERM)
    h.until(b"asked")
    h.process.send_signal(signal.SIGTERM)
    assert h.process.wait(30) == 143
    h.until(RESTORE.encode())


def test_ctrl_c_is_not_for_the_app_while_an_editor_has_the_keyboard(hung):
    h = hung(0.1)
    termios.tcsetattr(h.main, termios.TCSANOW, h.before)
    h.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert h.process.poll() is None
    assert b"asked" not in h.got
