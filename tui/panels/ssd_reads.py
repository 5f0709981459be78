"""SSD reads: how long a read takes, how fast the disk delivers, and what share of the time it cost."""

from __future__ import annotations

from ...engine.stats import EngineStats
from ..text import numbers
from .base import Cell, Graph, Judge, Panel, Reading, Row, View

__all__ = ["SsdReads"]


def p95_ms(later: EngineStats, earlier: EngineStats) -> float | None:
    p95 = later.ssd.latency.minus(earlier.ssd.latency).quantile_s(0.95)
    return None if p95 is None else p95 * 1e3


class SsdReads(Panel):
    title, short, tag, order, always = "SSD READS", "ssd", "p95", 40, True

    def __init__(self) -> None:
        self._judge: Judge | None = None

    def read(self, view: View) -> Reading:
        if self._judge is None:
            low, high = view.limits.get("ssd_p95_limits", (2.0, 8.0))
            self._judge = Judge(low, high, more_is_better=False)
        recent = view.recent
        ssd, worked = recent.ssd, view.worked_s
        p50, p95, p99 = (ssd.latency.quantile_s(q) for q in (0.5, 0.95, 0.99))
        level = self._judge.level(None if p95 is None else p95 * 1e3)
        graph = Graph(p95_ms, 0.1, 100.0, log=True, level=level)
        key = Cell(numbers.ms(p95), "ms", "p95", level)
        if view.stats and not ssd.reads:
            steps = recent.drafts.rounds + recent.drafts.plain_steps
            absent = "no reads: every expert asked for was in memory" if steps else "no reads yet"
            return Reading(Cell(numbers.NOTHING, "ms", "p95"), absent=absent)
        cached = numbers.percent(ssd.cached_bytes / ssd.judged_bytes) if ssd.judged_bytes else "n/a"
        stall = numbers.percent(recent.timing.ssd_wait_s / worked if worked > 0 else None)
        rows: tuple[Row | Graph, ...] = (
            Row((
                Cell(numbers.ms(p50), label="p50"), Cell(numbers.ms(p95), label="p95", level=level),
                Cell(numbers.ms(p99), "ms", "p99"),
            )),
            graph,
            Row((Cell(numbers.gb_per_s(ssd.read_bytes, ssd.busy_s), "GB/s"),), (Cell(stall, label="stall"),)),
            Row((Cell(numbers.ms(ssd.latency.max_s if ssd.reads else None), "ms", "max"),), (Cell(cached, label="page cache"),)),
        )  # fmt: skip
        if view.stats and view.stats.ssd.buffered_reason:
            rows += (Row((Cell("not direct: page cache", level="fair"),)),)
        return Reading(key, rows, graph=graph)
