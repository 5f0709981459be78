"""One reply of the chat without a screen, as it is written to stdout. Knows no conversation and no engine."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from ...engine import events as ev
from ...engine.types import TextKind
from ..text import numbers
from ..text.sanitise import Sanitiser

__all__ = ["PROGRESS_EVERY_S", "PlainReply"]

PROGRESS_EVERY_S = 5.0


class PlainReply:
    """One reply as it is written: thoughts are only announced, the answer is shown and kept."""

    def __init__(self, keep: Callable[[TextKind, str], None]) -> None:
        """`keep` is handed every piece of text and what kind it is, before it is shown."""
        self._keep = keep
        self._cleaner = Sanitiser()
        self._thinking_since: float | None = None
        self._progress = time.monotonic()
        self._begun = False
        self._last = ""
        self.finished: ev.TurnFinished | None = None

    def take(self, event: ev.Event) -> None:
        if isinstance(event, ev.TurnFinished):
            self.finished = event
        elif isinstance(event, ev.PrefillProgress) and time.monotonic() - self._progress > PROGRESS_EVERY_S:
            self._progress = time.monotonic()
            self._print(f"(read {event.done:,} of {event.total:,} tokens of the prompt)\n")
        elif isinstance(event, ev.TextDelta) and event.text:
            self._keep(event.kind, event.text)
            if event.kind == "thinking":
                if self._thinking_since is None:
                    self._thinking_since = time.monotonic()
                    self._print("(thinking)\n")
                return
            if not self._begun:
                self._begun = True
                if self._thinking_since is not None:
                    self._print(f"(thought for {numbers.duration(time.monotonic() - self._thinking_since)})\n")
                self._print("model> ")
            self._print(self._cleaner.feed(event.text))

    def end(self) -> None:
        if self._last and not self._last.endswith("\n"):
            self._print("\n")

    def _print(self, text: str) -> None:
        if text:
            self._last = text
            encoding = sys.stdout.encoding or "utf-8"
            sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
            sys.stdout.flush()
