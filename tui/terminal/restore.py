"""Giving the terminal back: the modes that a full-screen app switches on, switched off. Imports next to nothing."""

from __future__ import annotations

import os

__all__ = ["RESTORE", "keys_send_signals", "restore_terminal", "save_terminal"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RESTORE = (
    "\x1b[?2026l"  # synchronised output
    "\x1b[<u"  # kitty keys; their stack belongs to the alternate screen, so this comes before leaving it
    "\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1016l"  # mouse
    "\x1b[?1004l\x1b[?2004l\x1b[?2048l"  # focus, bracketed paste, resize reports
    "\x1b[?7h\x1b[?1049l\x1b[?25h\x1b[0m"  # line wrap, main screen, cursor, colours
)


def save_terminal(fd: int) -> list[Any] | None:
    """The line settings of a terminal, for `restore_terminal`; None where there are none."""
    import termios

    try:
        return termios.tcgetattr(fd)
    except termios.error:
        return None


def restore_terminal(fd: int, saved: list[Any] | None, *, write: bool = True) -> None:
    """Put line settings back, and with `write` every mode; input that was typed meanwhile is dropped.

    May be called from any thread and from a background process, and never fails: a terminal that is gone needs nothing.
    """
    import signal
    import termios

    # A blocked SIGTTOU lets a process change a terminal that is not in the foreground any more.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
    try:
        if write:
            os.write(fd, RESTORE.encode("ascii"))
        if saved is not None:
            termios.tcsetattr(fd, termios.TCSANOW, saved)
        termios.tcflush(fd, termios.TCIFLUSH)
    except (OSError, termios.error):
        return
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def keys_send_signals(fd: int) -> bool:
    """Whether Ctrl+C reaches the processes of a terminal as a signal: so it is unless a full-screen app has the keyboard."""
    import termios

    try:
        return bool(termios.tcgetattr(fd)[3] & termios.ISIG)
    except termios.error:
        return False
