"""The way from the engine's thread to the UI: `emit` appends, the app drains. Adjacent text merges, so it is bounded.

`emit` never blocks on the UI and never raises. `wake` is called from the engine's thread when something came that
should not wait for the next tick of the drain: the first text of a reply, its end, a change of state; and statistics behind
an end, for which no tick follows.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from ..engine.events import (
    EngineFailed,
    Event,
    ModelLoading,
    ModelReady,
    PrefillProgress,
    StatsTaken,
    TextDelta,
    TurnFinished,
)  # fmt: skip

__all__ = ["Bridge"]


class Bridge:
    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._events: deque[Event] = deque()
        self._woken = False
        self._streaming = ""
        self._ended = False
        """Nothing but statistics came since a request or the loading ended."""
        self.closed = False

    def emit(self, event: Event) -> None:
        """Called on the engine's thread."""
        with self._lock:
            if self.closed:
                return
            last = self._events[-1] if self._events else None
            merged = _merged(last, event)
            if merged is not None:
                self._events[-1] = merged
            else:
                self._events.append(event)
            if isinstance(event, StatsTaken):
                urgent = self._ended
            else:
                self._ended = isinstance(event, (TurnFinished, EngineFailed, ModelReady))
                urgent = not isinstance(event, (PrefillProgress, ModelLoading, TextDelta))
            if isinstance(event, TextDelta) and event.request_id != self._streaming:
                self._streaming, urgent = event.request_id, True
            call = urgent and not self._woken
            self._woken = self._woken or call
        if call:
            self._wake()

    def drain(self) -> list[Event]:
        """Called on the UI thread: everything so far, in order."""
        with self._lock:
            events = list(self._events)
            self._events.clear()
            self._woken = False
        return events

    def close(self) -> None:
        """Whatever a closed engine still says is dropped."""
        with self._lock:
            self.closed = True
            self._events.clear()


def _merged(last: Event | None, event: Event) -> Event | None:
    """One event in place of two neighbours, or None when both must stay."""
    match last, event:
        case TextDelta(), TextDelta() if (last.request_id, last.kind) == (event.request_id, event.kind):
            return replace(last, text=last.text + event.text, tokens=last.tokens + event.tokens)
        case (StatsTaken(), StatsTaken()) | (ModelLoading(), ModelLoading()):
            return event
        case PrefillProgress(), PrefillProgress() if last.request_id == event.request_id:
            return event
    return None
