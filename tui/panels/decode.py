"""Decode speed: tokens a second now and on average, time to the first token, and the speed of the prompt."""

from __future__ import annotations

from ...engine.stats import EngineStats, minus
from ..text import numbers
from .base import Cell, Graph, Panel, Reading, Row, View

__all__ = ["Decode"]

STEPS = (2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)


def speed(later: EngineStats, earlier: EngineStats) -> float | None:
    return minus(later.throughput, earlier.throughput).decode_rate


class Decode(Panel):
    title, order = "DECODE", 0

    def __init__(self) -> None:
        self._top = STEPS[0]

    def read(self, view: View) -> Reading:
        two = view.window.recent(2.0)
        now = speed(two, EngineStats()) if two is not None else None
        average = speed(view.recent, EngineStats())
        best = max([v for v in view.window.series(speed, 24, view.graph_now) if v is not None], default=0.0)
        # Up at once, down only well below a step: the scale does not flicker around one value.
        wanted = next((s for s in STEPS if s >= best), STEPS[-1])
        self._top = wanted if wanted > self._top or best < self._top / 4 else self._top
        graph = Graph(speed, 0.0, self._top)
        t = view.stats.throughput if view.stats else None
        prefilled = t.prefill_tokens / t.prefill_s if t and t.prefill_s > 0 else None
        rows = (
            Row((Cell(numbers.rate(now), "tok/s"),), (Cell(numbers.rate(average), label="avg"),)),
            graph,
            Row(
                (Cell(numbers.duration(t.ttft_s if t else None), label="ttft"),),
                (Cell(numbers.rate(prefilled), "/s", "prefill"),),
            ),
        )
        return Reading(Cell(numbers.rate(now), "tok/s"), rows, graph=graph)
