"""Which other chats run on this machine, and how much memory they planned for. Knows no engine and no screen.

Each running chat holds a lock on a small file of its own; a file without a lock is left over and removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from ..places import make_private_folder
from ..text.numbers import gib

__all__ = ["Instances", "warning"]


class Instances:
    """The folder of running chats. Nothing here ever fails: without a folder there simply are no others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._own: Path | None = None
        self._fd: int | None = None

    def plan(self, n_bytes: int, limit_bytes: int) -> str:
        """Claim the bytes of a plan, or none, and return what to tell the user: empty where all chats together fit."""
        if not n_bytes:
            self.release()
            return ""
        self.claim(n_bytes)
        return warning(n_bytes, self.others(), limit_bytes)

    def claim(self, n_bytes: int) -> None:
        """Say that this process plans to use `n_bytes`; calling it again changes the number."""
        with contextlib.suppress(OSError):
            if self._fd is None:
                make_private_folder(self.folder)
                self._own = self.folder / f"{os.getpid()}.bytes"
                self._fd = os.open(self._own, os.O_RDWR | os.O_CREAT, 0o600)
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, b"%d" % n_bytes, 0)

    def others(self) -> list[int]:
        """Bytes that each other running chat plans to use."""
        found = []
        for path in sorted(self.folder.glob("*.bytes")):
            if path == self._own:
                continue
            with contextlib.suppress(OSError, ValueError), path.open("rb") as f:
                try:
                    fcntl.flock(f.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
                except OSError:
                    found.append(int(f.read(32)))
                else:
                    path.unlink()
        return found

    def release(self) -> None:
        """This process plans to use nothing any more. Calling it again is harmless."""
        if self._fd is None or self._own is None:
            return
        with contextlib.suppress(OSError):
            self._own.unlink()
        os.close(self._fd)
        self._fd = self._own = None


def warning(own_bytes: int, others: list[int], limit_bytes: int) -> str:
    """What to tell the user when all chats together exceed the machine's memory; empty when they fit."""
    total = own_bytes + sum(others)
    if not others or not limit_bytes or total <= limit_bytes:
        return ""
    count = "Another qwen-chat runs" if len(others) == 1 else f"{len(others)} other chats run"
    return (
        f"{count}: together they plan for {gib(total)} GiB, and this machine can give {gib(limit_bytes)} GiB without swapping. "
        "Close one, or give each a smaller memory_limit."
    )
