"""Ending by signal: SIGTERM, SIGHUP and SIGINT close the app in good order, and by force when it does not come to an end.

Knows no Textual: it is told what to call. Also ends a process whose parent is gone.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

from .restore import keys_send_signals, restore_terminal, save_terminal

__all__ = ["end_on_signals", "end_with_parent"]


def end_on_signals(end: Callable[[int], None], fd: int, grace_s: float = 5.0) -> None:
    """From now on SIGTERM, SIGHUP and SIGINT call `end(128 + number)` on the main thread, once.

    SIGINT counts only while the app has the keyboard: before and after, and while an editor runs, Ctrl+C is not for the app.
    A second signal, or `grace_s` without an end, restores the terminal `fd` and exits at once with that code.
    """
    saved = save_terminal(fd)
    seen = False

    def by_force(code: int) -> None:
        restore_terminal(fd, saved)
        os._exit(code)

    def handle(number: int, _frame: object) -> None:
        nonlocal seen
        if number == signal.SIGINT and keys_send_signals(fd):
            return
        if seen:
            by_force(128 + number)
        seen = True
        timer = threading.Timer(grace_s, by_force, [128 + number])
        timer.daemon = True
        timer.start()
        end(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, handle)


def end_with_parent(pipe: int) -> None:
    """Send this process SIGHUP when the other end of `pipe` closes, which is when the parent has died."""

    def watch() -> None:
        while os.read(pipe, 1):
            pass
        os.kill(os.getpid(), signal.SIGHUP)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
