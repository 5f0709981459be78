"""The way from the engine's thread to the UI: `emit` appends, the app drains; adjacent text is merged then.

`emit` takes no lock, never waits for the UI and never raises. `wake` is called from the engine's thread when something came
that should not wait for the next tick of the drain: the first text of a reply, its end, a change of state; and statistics
behind an end, for which no tick follows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import groupby
from typing import cast

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
        self._events: deque[Event] = deque()
        self._woken = False
        self._streaming = ""
        self._ended = False
        """Nothing but statistics came since a request or the loading ended."""
        self.closed = False

    def emit(self, event: Event) -> None:
        """Called on the engine's thread; for a token of a running reply it only appends."""
        if self.closed:
            return
        self._events.append(event)
        if isinstance(event, TextDelta):
            if event.request_id == self._streaming:
                return
            self._streaming, urgent = event.request_id, True
        elif isinstance(event, StatsTaken):
            urgent = self._ended
        else:
            self._ended = isinstance(event, (TurnFinished, EngineFailed, ModelReady))
            urgent = not isinstance(event, (PrefillProgress, ModelLoading))
        if urgent and not self._woken:
            self._woken = True
            self._wake()

    def drain(self) -> list[Event]:
        """Called on the UI thread: everything so far, in order."""
        self._woken = False  # before the events are taken: what comes from here on may wake again
        came: list[Event] = []
        while self._events and not self.closed:
            came.append(self._events.popleft())
        return _merged(came)

    def close(self) -> None:
        """Whatever a closed engine still says is dropped."""
        self.closed = True


def _about(event: Event) -> tuple[object, ...]:
    return type(event), getattr(event, "request_id", None), getattr(event, "kind", None)


def _merged(events: list[Event]) -> list[Event]:
    """Neighbours about the same in one: text joined, of statistics and progress the latest."""
    out: list[Event] = []
    for _, group in groupby(events, _about):
        same = list(group)
        first = same[0]
        if isinstance(first, TextDelta):
            deltas = cast("list[TextDelta]", same)
            text, tokens = "".join(d.text for d in deltas), sum(d.tokens for d in deltas)
            out.append(TextDelta(first.request_id, first.kind, text, tokens))
        elif isinstance(first, (StatsTaken, ModelLoading, PrefillProgress)):
            out.append(same[-1])
        else:
            out += same
    return out
