"""Fallback: rounds in a row without an accepted draft, on their way to the limit that ends drafting for this reply."""

from __future__ import annotations

from ..text import numbers
from .base import Cell, Counter, Panel, Reading, Row, View

__all__ = ["Fallback"]


class Fallback(Panel):
    title, short, tag, order, always = "FALLBACK", "fb", "fb", 20, True

    def read(self, view: View) -> Reading:
        mtp = view.state.mtp
        stats = view.stats
        if mtp is None or stats is None:
            return Reading(Cell(numbers.NOTHING), absent="waiting for the model")
        if mtp.state == "UNAVAILABLE":
            return Reading(Cell("n/a", level="muted"), absent="n/a without an MTP layer")
        limit, tripped = stats.mtp.limit, stats.drafts.fallbacks
        streak = stats.mtp.streak if view.state.running is not None else 0
        times = Cell(
            f"{tripped}×" if not view.ascii else f"{tripped}x", label="tripped", level="" if tripped else "muted"
        )
        if mtp.state == "FALLBACK":
            key = Cell("tripped", level="bad")
            rows = (
                Counter(limit, limit, "bad"),
                Row((Cell("plain steps to the end of this reply, then on again", level="muted"),)),
            )
            return Reading(key, rows, head=times)
        if mtp.state in ("OFF", "PARKED"):
            word = "drafting is off" if mtp.state == "OFF" else "drafting is parked"
            key = Cell(f"{streak}", f"/{limit}", level="muted")
            return Reading(key, (Counter(streak, limit, "muted"), Row((Cell(word, level="muted"),))), head=times)
        level = "bad" if streak * 4 >= limit * 3 else "fair" if streak * 2 >= limit else "good"
        word = "armed" if streak < limit else "tripping"
        key = Cell(f"{streak}", f"/{limit}", level=level)
        zero = view.recent.drafts
        none = numbers.percent(zero.zero_rounds / zero.rounds) if zero.rounds else numbers.NOTHING
        rows = (Counter(streak, limit, level, word), Row((Cell(none, "of rounds", "zero"),), ()))
        return Reading(key, rows, head=times)
