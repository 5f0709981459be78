"""The last 120 seconds of statistics in bins of the wall clock: graphs and windowed numbers come from here.

A bin without a sample stays empty, so a stall shows as a gap. Bounded; knows no panel and no widget.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..engine.stats import EngineStats

__all__ = ["SECONDS", "Rate", "Window"]

SECONDS = 120.0
BIN_S = 0.5

Rate = Callable[["EngineStats", "EngineStats"], "float | None"]
"""(later, earlier) -> the value between the two, or None when nothing happened."""


class Window:
    """Cumulative samples, the latest of each half second."""

    def __init__(self) -> None:
        self._bins: deque[tuple[int, float, EngineStats]] = deque(maxlen=int(SECONDS / BIN_S) + 2)
        self._base: EngineStats | None = None
        """The sample that went out of the window last; None when the window begins at the start, where all is zero."""

    def add(self, at_s: float, stats: EngineStats) -> None:
        index = int(at_s / BIN_S)
        if self._bins and self._bins[-1][0] == index:
            self._bins[-1] = (index, at_s, stats)
        else:
            self._bins.append((index, at_s, stats))
        while self._bins[0][1] < at_s - SECONDS:
            self._base = self._bins.popleft()[2]

    def clear(self) -> None:
        self._bins.clear()
        self._base = None

    def _start(self) -> EngineStats:
        from ..engine.stats import EngineStats

        return self._base or EngineStats()

    @property
    def last_at_s(self) -> float | None:
        return self._bins[-1][1] if self._bins else None

    @property
    def latest(self) -> EngineStats | None:
        return self._bins[-1][2] if self._bins else None

    def recent(self, seconds: float = SECONDS) -> EngineStats | None:
        """What was counted within the last `seconds` before the latest sample; gauges as they are now."""
        if not self._bins:
            return None
        from ..engine.stats import minus

        end = self._bins[-1][1]
        before = self._start()
        for _, at, stats in self._bins:
            if at > end - seconds:
                break
            before = stats
        return minus(self._bins[-1][2], before)

    def series(self, value: Rate, columns: int, now: float) -> list[float | None]:
        """`columns` values over the last 120 s up to `now`, oldest first; None where there was nothing."""
        step = SECONDS / columns
        last = int(now / step)
        out: list[float | None] = [None] * columns
        if not self._bins:
            return out
        before, column = self._start(), None
        in_column = before
        for _, at, stats in self._bins:
            here = int(at / step)
            if column is not None and here != column:
                self._put(out, column - last + columns - 1, value(in_column, before))
                before = in_column
            column, in_column = here, stats
        if column is not None:
            self._put(out, column - last + columns - 1, value(in_column, before))
        return out

    @staticmethod
    def _put(out: list[float | None], i: int, v: float | None) -> None:
        if 0 <= i < len(out):
            out[i] = v

    @staticmethod
    def column_of(at_s: float, columns: int, now: float) -> int | None:
        """The column of a moment in a graph drawn by `series`; None when it is out of the window."""
        step = SECONDS / columns
        i = int(at_s / step) - int(now / step) + columns - 1
        return i if 0 <= i < columns else None
