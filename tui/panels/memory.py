"""Memory: what the process holds against what the plan allowed, and whether the machine had to swap."""

from __future__ import annotations

from ..text import numbers
from .base import Bar, Cell, Level, Panel, Reading, Row, View

__all__ = ["Memory"]


class Memory(Panel):
    title, short, order = "MEMORY", "mem", 70

    def read(self, view: View) -> Reading:
        m = view.stats.memory if view.stats else None
        if m is None or not m.rss_bytes:
            planned = f"{numbers.size(m.plan_bytes)} planned, " if m is not None and m.plan_bytes else ""
            return Reading(Cell(numbers.NOTHING), absent=f"{planned}no sample yet")
        ceiling = m.plan_bytes or m.limit_bytes
        share = m.rss_bytes / ceiling if ceiling else None
        level: Level = "" if share is None or share <= 0.97 else "fair" if share <= 1.03 else "bad"
        faults = view.recent.memory.major_faults
        rows = (
            Bar("rss", share, " / ".join(numbers.of(m.rss_bytes, ceiling)), level),
            Row(
                (Cell(numbers.size(m.peak_bytes), label="mlx peak"),),
                (Cell(numbers.count(faults), label="page-ins", level="fair" if faults > 1000 else ""),),
            ),
        )
        return Reading(Cell(numbers.size(m.rss_bytes), level=level), rows)
