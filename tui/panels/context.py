"""Context: tokens in the conversation's timeline, and how much of the last prompt was kept from earlier turns."""

from __future__ import annotations

from ..text import numbers
from .base import Bar, Cell, Level, Panel, Reading, Row, View

__all__ = ["Context"]


class Context(Panel):
    title, short, order = "CONTEXT", "ctx", 60

    def read(self, view: View) -> Reading:
        state = view.state
        if not state.context_limit:
            return Reading(Cell(numbers.NOTHING), absent="waiting for the model")
        share = state.context_share
        level: Level = "bad" if share >= 0.95 else "fair" if share >= 0.8 else ""
        last = next((t for t in reversed(state.turns) if t.prompt_tokens), None)
        reused = numbers.percent(last.reused / last.prompt_tokens) if last else numbers.NOTHING
        rows = (
            Bar(numbers.percent(share), share, f"{numbers.count(state.context_used)}/{numbers.count(state.context_limit)}", level),
            Row((Cell(reused, "of the last prompt", "reused"),)),
        )  # fmt: skip
        return Reading(Cell(numbers.percent(share), level=level), rows)
