"""A run in a fresh process: `python -m qwen_chat_mlx.engine.bench.child` reads one task from stdin and answers on stdout.

The task is one line of JSON; the answers are lines of JSON: {"now"}*, then {"result"} or {"error"}. A child whose stdin
ends has lost its parent and ends too, so that no run is ever left behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import IO, Any

from ..errors import QwenChatError
from .run import Now, RunResult, RunTask, as_error, run_here

__all__ = ["main", "run_in_child"]

_ENDS_WITHIN_S = 3.0


def run_in_child(task: RunTask, tell: Callable[[Now], None] = lambda _: None) -> RunResult:
    """Carry out a task in a process of its own. Raises what the run raised, or QwenChatError when the process died.

    However this is left, the child has ended.
    """
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            [sys.executable, "-m", __spec__.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said,
            start_new_session=True,
        )  # fmt: skip
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            with suppress(BrokenPipeError):
                child.stdin.write(json.dumps(asdict(task)).encode() + b"\n")
                child.stdin.flush()
            result = _listen(child.stdout, tell)
        finally:
            _end(child)
        if result is None:
            raise _death(child.returncode, said)
        return result


def _listen(lines: IO[bytes], tell: Callable[[Now], None]) -> RunResult | None:
    """The result; None when the child ended without a word."""
    for line in lines:
        answer: dict[str, Any] = json.loads(line)
        if "now" in answer:
            tell(Now(**answer["now"]))
        elif "error" in answer:
            raise as_error(**answer["error"])
        else:
            found = answer["result"]
            return RunResult(
                **{
                    **found,
                    "token_ids": tuple(found["token_ids"]),
                    "depth_counts": tuple(found["depth_counts"]),
                    "warnings": tuple(found["warnings"]),
                }
            )
    return None


def _end(child: subprocess.Popen[bytes]) -> None:
    """Closing its stdin asks the child to end; who does not is ended."""
    if child.stdin is not None:
        with suppress(OSError):
            child.stdin.close()
    try:
        child.wait(_ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdout is not None:
        child.stdout.close()


def _death(code: int, said: IO[bytes]) -> QwenChatError:
    said.seek(0)
    lines = [line.strip() for line in said.read().decode("utf-8", "replace").splitlines() if line.strip()]
    last = f" The last it said: {lines[-1][:300]}" if lines else ""
    if code >= 0:
        return QwenChatError(f"The measuring process ended with status {code} and no result.{last}")
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = "Memory may have run out: try a smaller --expert-cache or --context." if -code == signal.SIGKILL else ""
    return QwenChatError(f"The measuring process was ended by {name}.{last}", hint)


def main() -> int:
    """The child's side."""
    # Whatever else is printed must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    task = RunTask(**json.loads(sys.stdin.buffer.readline()))
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def answer(**words: Any) -> None:
        print(json.dumps(words), file=answers, flush=True)

    try:
        answer(result=asdict(run_here(task, lambda now: answer(now=asdict(now)))))
    except QwenChatError as e:
        answer(error={"kind": type(e).__name__, "message": e.message, "hint": e.hint})
    return 0


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    raise SystemExit(main())
