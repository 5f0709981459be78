"""Expert cache: how often a routed expert was already in memory, and what the slots hold."""

from __future__ import annotations

from ...engine.stats import EngineStats
from ..text import numbers
from .base import Cell, Graph, Judge, Panel, Reading, Row, View

__all__ = ["ExpertCache"]


def hit_rate(later: EngineStats, earlier: EngineStats) -> float | None:
    hits, misses = later.experts.hits - earlier.experts.hits, later.experts.misses - earlier.experts.misses
    return hits / (hits + misses) if hits + misses else None


class ExpertCache(Panel):
    title, short, tag, order, always = "EXPERT CACHE", "cache", "hit", 30, True

    def __init__(self) -> None:
        self._judge: Judge | None = None

    def read(self, view: View) -> Reading:
        if self._judge is None:
            low, high = view.limits.get("hit_rate_limits", (70.0, 90.0))
            self._judge = Judge(low / 100, high / 100)
        recent, now = view.recent, view.stats.experts if view.stats else None
        share = recent.experts.hit_rate
        level = self._judge.level(share)
        steps = recent.drafts.rounds + recent.drafts.plain_steps
        missed = numbers.short(recent.experts.misses / steps if steps else None)
        took = view.worked_s
        evicted = numbers.short(recent.experts.evictions / took if took > 0 else None)
        graph = Graph(hit_rate, 0.0, 1.0, level=level)
        held, budget = numbers.NOTHING, f"{numbers.NOTHING} GiB"
        if now is not None and now.budget_bytes:
            held, budget = numbers.of(now.resident_bytes, now.budget_bytes)
        rows: tuple[Row | Graph, ...] = (
            Row((Cell(numbers.percent(share, 1), label="hit", level=level),), (Cell(missed, "/round", "miss"),)),
            graph,
            Row(
                (Cell(held, f"/ {budget}"),),
                (Cell(evicted, "/s", "evict"),),
            ),
        )
        if now is not None and now.of_best is not None:
            made = recent.drafts.committed + recent.drafts.plain_steps
            loads = recent.experts.decode_misses + recent.draft_experts.decode_misses
            loaded = Cell(numbers.short(loads / made if made else None), "/tok", "load")
            rows += (Row((Cell(numbers.percent(now.of_best), "of best"),), (loaded,)),)
        return Reading(Cell(numbers.percent(share), level=level), rows, graph=graph)
