"""An engine for verbs without a screen: its events in order, its failures as errors, and a progress line on stderr."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from ...engine import EngineConfig, errors
from ...engine import events as ev
from ..text.sanitise import one_line

if TYPE_CHECKING:
    from ...engine.types import GenerationRequest

__all__ = ["Progress", "Talk"]


class Talk:
    """Opens an engine and closes it on the way out."""

    def __init__(self, config: EngineConfig) -> None:
        from ... import engine

        self._arrived: SimpleQueue[ev.Event] = SimpleQueue()
        self.dead = False
        """True once the engine takes no further request."""
        self.engine = engine.open_engine(config, self._arrived.put)

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()

    def ready(self) -> Iterator[ev.Event]:
        """Events up to ModelReady, which is the last. Raises the error that opening the model ended with."""
        while True:
            event = self._arrived.get()
            self._raise_failure(event, None)
            yield event
            if isinstance(event, ev.ModelReady):
                return

    def reply(self, request: GenerationRequest) -> Iterator[ev.Event]:
        """Events of one request, TurnFinished last; those of the model's loading before it come along."""
        self.engine.submit(request)
        while True:
            event = self._arrived.get()
            self._raise_failure(event, request.id)
            yield event
            if isinstance(event, ev.TurnFinished) and event.request_id == request.id:
                return

    def stop(self, request_id: str, wait_s: float = 1.0) -> Iterator[ev.Event]:
        """Cancel a request; the events that were still under way, for at most `wait_s`."""
        self.engine.cancel(request_id)
        end = time.monotonic() + wait_s
        while (left := end - time.monotonic()) > 0:
            try:
                event = self._arrived.get(timeout=left)
            except Empty:
                return
            yield event
            if isinstance(event, (ev.TurnFinished, ev.EngineFailed)):
                return

    def _raise_failure(self, event: ev.Event, request_id: str | None) -> None:
        if isinstance(event, ev.EngineFailed) and (event.fatal or event.request_id in (None, request_id)):
            self.dead = event.fatal
            kind = getattr(errors, event.kind, None)
            if not isinstance(kind, type) or not issubclass(kind, errors.QwenChatError):
                kind = errors.QwenChatError
            raise kind(event.message, event.hint)


class Progress:
    """One line on stderr that is written over as things move on; nothing at all where stderr is no terminal.

    It uses carriage returns and spaces only, so it is fit for dumb terminals.
    """

    def __init__(self) -> None:
        self._shows = sys.stderr is not None and sys.stderr.isatty()
        self._width = 0
        self._next_s = 0.0

    def event(self, event: ev.Event) -> None:
        """Show what an event says about progress, at most ten times a second."""
        line = describe(event)
        if line:
            self.say(line)

    def say(self, line: str) -> None:
        """Show a line that will be written over."""
        if self._shows and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + 0.1
            self._write(line)

    def clear(self) -> None:
        """Take the line away, before something else is written."""
        if self._width:
            sys.stderr.write("\r" + " " * (_columns() - 1) + "\r")  # to the end: the terminal may have added ^C
            sys.stderr.flush()
            self._width = 0
        self._next_s = 0.0

    def note(self, line: str) -> None:
        """A line that stays."""
        if self._shows:
            self.clear()
            print(one_line(line, 2000), file=sys.stderr, flush=True)

    def _write(self, line: str) -> None:
        line = one_line(line, max(10, _columns() - 3))  # room for ^C, or it would begin another row
        sys.stderr.write("\r" + line + " " * (self._width - len(line)))
        sys.stderr.flush()
        self._width = len(line)


def _columns() -> int:
    return shutil.get_terminal_size().columns


def describe(event: ev.Event) -> str:
    """Progress in words; empty for events that are none."""
    if isinstance(event, ev.ModelLoading):
        amount = f" {event.done:,}/{event.total:,} {event.unit}" if event.total else ""
        return f"{event.phase}{amount}"
    if isinstance(event, ev.PrefillProgress):
        reused = f", {event.reused:,} reused" if event.reused else ""
        rate = f", {event.rate:.1f} tok/s" if event.rate else ""
        left = (
            f", {(event.total - event.done) / event.rate:.0f} s left" if event.rate and event.done < event.total else ""
        )
        return f"{event.phase} {event.done:,}/{event.total:,} tok{reused}{rate}{left}"
    return ""
