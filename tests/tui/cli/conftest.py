"""A terminal that tests can type on and look at: the command runs on a PTY of its own."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

FAKE = str(Path(__file__).with_name("fake_command.py"))


class Terminal:
    """One process, its PTY, and every byte it wrote."""

    def __init__(self, argv, env, size=(120, 36)):
        self.got = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.clear()
            os.environ.update(env)
            with contextlib.suppress(BaseException):
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
                os.execv(argv[0], argv)
            os._exit(99)

    def read(self, seconds):
        """Take what comes within some time; False at the end."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            more = os.read(self.fd, 1 << 16)
        except OSError:
            return False
        self.got += more
        return bool(more)

    def until(self, wanted, seconds=30.0, since=0):
        """Wait for bytes (or a regular expression); returns everything so far."""
        pattern = re.compile(wanted if isinstance(wanted, bytes) else wanted.encode(), re.DOTALL)
        end = time.monotonic() + seconds
        while not pattern.search(self.got, since):
            alive = self.read(0.1)
            assert time.monotonic() < end, f"{wanted!r} did not come; got {self.got[-3000:]!r}"
            assert alive or pattern.search(self.got, since), f"ended before {wanted!r}; got {self.got[-3000:]!r}"
        return self.got

    def type(self, data):
        os.write(self.fd, data if isinstance(data, bytes) else data.encode())

    def kill(self, number=signal.SIGTERM, pid=None):
        os.kill(pid or self.pid, number)

    def children(self):
        """Process ids of the command's children."""
        done = subprocess.run(["pgrep", "-P", str(self.pid)], capture_output=True, text=True, check=False)
        return [int(p) for p in done.stdout.split()]

    def modes(self):
        """Line settings of the terminal now."""
        return termios.tcgetattr(self.fd)

    def wait(self, seconds=30.0):
        """Exit code once it has ended; what it still wrote is read."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                while select.select([self.fd], [], [], 0.1)[0] and self.read(0.1):
                    pass
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
        raise AssertionError(f"it did not end; got {self.got[-3000:]!r}")

    def close(self):
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                for child in self.children():
                    os.kill(child, signal.SIGKILL)
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture
def terminal(tmp_path):
    """terminal(*argv, term=..., script=..., size=...): run the command over a scripted engine on a new terminal."""
    opened = []

    def start(*argv, term="xterm-256color", script=None, size=(120, 36), program=FAKE, **env):
        keep = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("TEXTUAL", "NO_COLOR", "TMUX", "SSH_", "QWEN_CHAT"))
        }
        whole = {**keep, "QWEN_CHAT_HOME": str(tmp_path), "TERM": term, "LC_ALL": "C.UTF-8", **env}
        t = Terminal([sys.executable, program, json.dumps(script or {"load_s": 0.2}), *argv], whole, size)
        opened.append(t)
        return t

    yield start
    for t in opened:
        t.close()
