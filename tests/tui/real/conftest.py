"""A terminal on which the command runs with the real engine over a tiny checkpoint."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import re
import shutil
import struct
import sys
import termios
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from screen import screen  # noqa: E402

_spec = importlib.util.spec_from_file_location("terminals", HERE.parent / "cli" / "conftest.py")
_terminals = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_terminals)
terminal = _terminals.terminal
SAMPLED = (
    "--temperature", "1.5", "--seed", "1", "--set", "mtp.acceptance=rejection",
    "--set", "sampling.top_k=0", "--set", "sampling.top_p=1",
)  # fmt: skip
"""A model of random weights agrees with its drafts only when both are far from sure; then some stand and some fall."""
MODEL = HERE.parents[1] / "engine" / "fixtures" / "bf16-1"


class Chat:
    """The chat on its terminal, as somebody in front of it sees it."""

    def __init__(self, terminal, size):
        self.t, self.size = terminal, size
        self.since = 0

    @property
    def rows(self):
        return screen(self.t.got[self.since :], *self.size)

    @property
    def text(self):
        return "\n".join(self.rows)

    def see(self, pattern, seconds=30.0):
        """Wait until something stands on the screen; returns the match, of text in which runs of blanks are one."""
        end = time.monotonic() + seconds
        while True:
            self.t.read(0.05)
            found = re.search(pattern, re.sub(r" +", " ", self.text))
            if found:
                return found
            assert time.monotonic() < end, f"{pattern!r} did not come\n{self.text}"

    def watch(self, seconds):
        """Let time pass."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.t.read(0.05)

    def resize(self, width, height):
        self.size, self.since = (width, height), len(self.t.got)
        fcntl.ioctl(self.t.fd, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def quit(self):
        self.t.type(b"\x11")
        self.watch(0.2)
        if self.t.pid and "once more quits" in self.text:
            self.t.type(b"\x11")
        assert self.t.wait() == 0


@pytest.fixture(scope="session")
def endless(tmp_path_factory):
    """The checkpoint without stop ids: with random weights each token might be one."""
    folder = shutil.copytree(MODEL, tmp_path_factory.mktemp("endless") / MODEL.name)
    for name, key in (("generation_config.json", "eos_token_id"), ("tokenizer_config.json", "eos_token")):
        settings = json.loads((folder / name).read_text())
        del settings[key]
        (folder / name).write_text(json.dumps(settings))
    return folder


@pytest.fixture
def chat(terminal, tmp_path, endless):
    """chat(*argv, size=..., max_tokens=...): the chat on a new terminal; its trace goes to tmp_path/trace."""

    def start(*argv, size=(120, 36), max_tokens=1000, home=None, trace="trace", sampling=SAMPLED):
        flags = [
            "--model", str(endless), "--set", "offload.direct_io=off", "--set", "model.memory_limit=4 GiB",
            "--expert-cache", "25 %", "--mtp", "fixed", "--max-tokens", str(max_tokens),
            "--trace", str(tmp_path / trace), *sampling,
        ]  # fmt: skip
        env = {"COLUMNS": "", "LINES": ""} | ({"QWEN_CHAT_HOME": str(home)} if home else {})
        return Chat(terminal(*flags, *argv, program=str(HERE / "command.py"), size=size, **env), size)

    return start
