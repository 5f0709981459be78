"""The small parent of the full-screen app: it waits, passes signals, stops and the exit code on, and cleans up after a death
that the app could not see coming (SIGKILL, an abort of the GPU driver). It imports neither the engine nor Textual.

Both processes are in one process group, so what the terminal itself sends reaches both; only signals that were sent to this
process alone are passed on.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from .restore import keys_send_signals, restore_terminal, save_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MARK", "parent_pipe", "supervise"]

MARK = "_QWEN_CHAT_PARENT"
"""Set for the child: the pipe that ends when the parent does."""
PASSED_ON = ("SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTSTP")


def parent_pipe() -> int | None:
    """In the child, once: the descriptor to watch for the parent's end. None in a process that has no such parent."""
    value = os.environ.pop(MARK, "")
    if not value.isdigit():
        return None
    os.set_inheritable(int(value), False)
    return int(value)


def supervise() -> int | None:
    """Run this very command again as a child and return its exit code; None where that is impossible."""
    if not sys.executable or not getattr(sys, "orig_argv", None):
        return None
    fd = sys.stdin.fileno()
    saved = save_terminal(fd)
    began = time.time()
    child = _Child(fd)
    if not child.start():
        return None
    status = child.wait()
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    restore_terminal(fd, saved)
    print(f"qwen-chat: {_what_happened(-code, began)}", file=sys.stderr)
    return 128 - code


class _Child:
    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._pid = 0
        self._early: list[int] = []

    def start(self) -> bool:
        for name in PASSED_ON:
            signal.signal(getattr(signal, name), self._pass_on)
        ends, self._alive = os.pipe()
        os.set_inheritable(ends, True)
        try:
            # The whole path comes first, since an environment is found from the name a Python was started by.
            argv = [sys.executable, *sys.orig_argv[1:]]
            self._pid = os.posix_spawn(sys.executable, argv, {**os.environ, MARK: str(ends)})
        except OSError:
            for name in PASSED_ON:
                signal.signal(getattr(signal, name), signal.SIG_DFL if name != "SIGINT" else signal.default_int_handler)
            return False
        finally:
            os.close(ends)
        for number in self._early:
            os.kill(self._pid, number)
        return True

    def wait(self) -> int:
        """Until the child has ended; when it stops, this process stops with it. Its wait status."""
        while True:
            _, status = os.waitpid(self._pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                return status
            os.kill(os.getpid(), signal.SIGSTOP)
            ended = self._wake()
            if ended is not None:
                return ended

    def _wake(self) -> int | None:
        """Continued: so is the child, by the shell's signal to the whole group, or else by ours. Never twice: a second one
        would make it start the screen again. The status if it ended meanwhile."""
        for _ in range(20):
            pid, status = os.waitpid(self._pid, os.WNOHANG | os.WCONTINUED)
            if pid:
                return None if os.WIFCONTINUED(status) else status
            time.sleep(0.01)
        os.kill(self._pid, signal.SIGCONT)
        return None

    def _pass_on(self, number: int, _frame: object) -> None:
        if number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP) and keys_send_signals(self._terminal):
            return
        if self._pid:
            try:
                os.kill(self._pid, number)
            except ProcessLookupError:
                return
        else:
            self._early.append(number)


def _what_happened(number: int, began: float) -> str:
    from ..places import Places
    from ..text.sanitise import one_line

    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    causes = {
        signal.SIGKILL: "The system does that when memory runs out; a smaller expert_cache or context may help.",
        signal.SIGABRT: "That is how a library gives up, such as the GPU driver when memory runs out.",
    }
    cause = causes.get(number, "")  # type: ignore[call-overload]
    last = one_line(_last_line(Places.of().log_file, began), 300)
    parts = [
        f"The chat was ended from outside by {name}." if number == signal.SIGKILL else f"The chat was ended by {name}.",
        cause,
        f"The last that was logged: {last}" if last else "",
        "Saved conversations are kept: `qwen-chat --continue` goes on with the latest.",
    ]
    return " ".join(part for part in parts if part)


def _last_line(path: Path, since: float) -> str:
    """The last line of the log, if it was written to since then."""
    try:
        if path.stat().st_mtime < since:
            return ""
        with path.open("rb") as f:
            f.seek(max(0, f.seek(0, os.SEEK_END) - 4096))
            lines = f.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
