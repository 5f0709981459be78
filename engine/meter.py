"""The mutable side of TimingStats, and where a running request asks whether it should go on.

A phase is what the engine is doing (prefill, plain, draft, verify, rewind); waits are the parts of it spent at
synchronisations. Used on the engine's thread only, except `cancel`, which is one flag.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .errors import Cancelled
from .stats import TimingStats

__all__ = ["Meter"]

_PHASES = ("prefill", "plain", "draft", "verify", "rewind")
_WAITS = ("router_sync", "ssd_wait", "rows_wait", "output_sync")


class Meter:
    """Seconds by phase and by wait, and the request's stop flag."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._phases: dict[str, float] = dict.fromkeys(_PHASES, 0.0)
        self._waits: dict[str, float] = dict.fromkeys(_WAITS, 0.0)
        self._wall_s = 0.0
        self.phase_name = ""
        self.cancel: Callable[[], bool] = lambda: False
        """Asked at least once a layer; True ends the request with Cancelled."""

    def check(self) -> None:
        """Raise Cancelled if the request should stop."""
        if self.cancel():
            raise Cancelled("The request was stopped.")

    @contextmanager
    def request(self) -> Iterator[None]:
        """Everything inside counts as the wall time of a request."""
        start = self._now()
        try:
            yield
        finally:
            self._wall_s += self._now() - start

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside as the phase `name`; a phase inside another one takes its time out of it."""
        outer, start = self.phase_name, self._now()
        self.phase_name = name
        try:
            yield
        finally:
            took = self._now() - start
            self.phase_name = outer
            self._phases[name] += took
            if outer:
                self._phases[outer] -= took

    @contextmanager
    def wait(self, name: str) -> Iterator[None]:
        start = self._now()
        try:
            yield
        finally:
            self._waits[name] += self._now() - start

    def copy(self) -> TimingStats:
        named = {f"{name}_s": s for name, s in (*self._phases.items(), *self._waits.items())}
        return TimingStats(wall_s=self._wall_s, other_s=max(0.0, self._wall_s - sum(self._phases.values())), **named)
