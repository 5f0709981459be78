"""Keeps what libraries write to the standard descriptors off the screen: it goes to a log file while the guard holds.

`sys.__stdout__` and `sys.__stderr__`, which Textual draws on, keep leading to the terminal. Knows no Textual.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from ..places import make_private_folder

__all__ = ["OutputGuard"]

LOG_MOST_BYTES = 1 << 20
"""A log longer than this starts anew."""


class OutputGuard:
    """A context manager. Where the log cannot be written, what libraries say is dropped."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._terminal: tuple[int, int] | None = None
        self._streams: tuple[TextIO | None, TextIO | None] = (None, None)

    def __enter__(self) -> OutputGuard:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sink = self._open_log()
        self._terminal = os.dup(1), os.dup(2)
        self._streams = sys.__stdout__, sys.__stderr__
        sys.__stdout__, sys.__stderr__ = (_writer(fd, old) for fd, old in zip(self._terminal, self._streams))  # type: ignore[misc]
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        os.close(sink)
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal is None:
            return
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()  # type: ignore[union-attr]
        sys.__stdout__, sys.__stderr__ = self._streams  # type: ignore[misc]
        for fd, number in zip(self._terminal, (1, 2)):
            os.dup2(fd, number)
            os.close(fd)
        self._terminal = None

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """For as long as another program, such as an editor, has the terminal: its output is let through."""
        if self._terminal is None:
            yield
            return
        kept = os.dup(1), os.dup(2)
        for fd, number in zip(self._terminal, (1, 2)):
            os.dup2(fd, number)
        try:
            yield
        finally:
            for fd, number in zip(kept, (1, 2)):
                os.dup2(fd, number)
                os.close(fd)

    def _open_log(self) -> int:
        try:
            make_private_folder(self.log.parent)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            if self.log.exists() and self.log.stat().st_size > LOG_MOST_BYTES:
                flags |= os.O_TRUNC
            return os.open(self.log, flags, 0o600)
        except OSError:
            return os.open(os.devnull, os.O_WRONLY)


def _writer(fd: int, like: TextIO | None) -> TextIO:
    return os.fdopen(fd, "w", encoding=like.encoding if like else "utf-8", errors="replace", closefd=False)
