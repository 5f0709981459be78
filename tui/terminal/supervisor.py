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
    from collections.abc import Iterable
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
    """Go on in a child and return its exit code. None in a child that was forked, and where there can be no child."""
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

    def start(self) -> bool:
        """True in the parent of a new child."""
        numbers = [getattr(signal, name) for name in PASSED_ON]
        ends, self._alive = os.pipe()
        # Signals wait until the parent knows whom to pass them to; a child has them handled as if it had no parent.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        try:
            self._pid = _fork(ends) if _forks_safely() else _spawn(ends, mask)
            for number in numbers if self._pid else ():
                signal.signal(number, self._pass_on)
        except OSError:
            os.close(ends)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(ends if self._pid else self._alive)
        return self._pid != 0

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
        try:
            os.kill(self._pid, number)
        except ProcessLookupError:
            return


def _forks_safely() -> bool:
    """A fork has one thread, whatever others held; and Apple's frameworks do not work in one that runs no new program."""
    return sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1


def _fork(ends: int) -> int:
    """The child's process id; 0 in the child, which saves the start of a second interpreter."""
    pid = os.fork()
    if not pid:
        os.environ[MARK] = str(ends)
    return pid


def _spawn(ends: int, mask: Iterable[int]) -> int:
    """Run this very command again; its process id."""
    if not sys.executable or not getattr(sys, "orig_argv", None):
        raise OSError
    os.set_inheritable(ends, True)
    # The whole path comes first, since an environment is found from the name a Python was started by.
    argv = [sys.executable, *sys.orig_argv[1:]]
    return os.posix_spawn(sys.executable, argv, {**os.environ, MARK: str(ends)}, setsigmask=mask)


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
