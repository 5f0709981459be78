"""MTP draft: what drafting does now and why, how many drafts are accepted, and what a round yields.

Acceptance is accepted ÷ proposed drafts over the window; at a position it is accepted ÷ proposed there.
"""

from __future__ import annotations

from ...engine.stats import EngineStats
from ..state import WARM_DRAFTS
from ..text import numbers
from .base import Bar, Cell, Graph, Judge, Level, Panel, Reading, Row, View

__all__ = ["MtpDraft", "state_cell"]

WORDS: dict[str, tuple[str, str, str, Level]] = {
    "ON": ("●", "*", "ON", "good"),
    "WARM": ("◐", "~", "WARM", "fair"),
    "PARKED": ("‖", "=", "PARKED", "fair"),
    "FALLBACK": ("▲", "!", "FALLBACK", "bad"),
    "OFF": ("○", "o", "OFF", "muted"),
    "UNAVAILABLE": ("–", "-", "n/a", "muted"),
}


def acceptance(later: EngineStats, earlier: EngineStats) -> float | None:
    proposed = later.drafts.proposed - earlier.drafts.proposed
    return (later.drafts.accepted - earlier.drafts.accepted) / proposed if proposed else None


def state_cell(state: str, depth: int, ascii_only: bool, mode: str = "") -> Cell:
    """Glyph and word of a state, and how deep it drafts."""
    glyph, plain, word, level = WORDS[state]
    more = f" k={depth}" if depth and state in ("ON", "WARM") else " (you)" if state == "OFF" else ""
    fixed = " fixed" if mode == "fixed" and state in ("ON", "WARM") else ""
    return Cell(f"{plain if ascii_only else glyph} {word}{fixed}{more}", level=level)


class MtpDraft(Panel):
    title, short, order, always = "MTP DRAFT", "MTP", 10, True

    def __init__(self) -> None:
        self._judge: Judge | None = None

    def read(self, view: View) -> Reading:
        if self._judge is None:
            low, high = view.limits.get("acceptance_limits", (20.0, 50.0))
            self._judge = Judge(low / 100, high / 100)
        mtp = view.state.mtp
        if mtp is None:
            return Reading(Cell(numbers.NOTHING), absent="waiting for the model")
        stats, recent = view.stats, view.recent.drafts
        depth = stats.mtp.depth if stats else 0
        head = state_cell(mtp.state, depth, view.ascii, mtp.mode)
        glyph = WORDS[mtp.state][1 if view.ascii else 0]
        if mtp.state == "UNAVAILABLE":
            return Reading(Cell(f"{glyph} n/a", level="muted"), head=head, absent=mtp.reason)
        share = recent.acceptance
        level = self._judge.level(share)
        key = Cell(f"{glyph} {WORDS[mtp.state][2]}", level=head.level)
        if mtp.state in ("ON", "WARM"):
            key = Cell(f"{glyph} {numbers.percent(share)}", level=level or head.level)
        of = f"({numbers.count(recent.accepted)}/{numbers.count(recent.proposed)})" if recent.proposed else ""
        per_round = f"{recent.tokens_per_round:.1f}" if recent.tokens_per_round is not None else numbers.NOTHING
        graph = Graph(acceptance, 0.0, 1.0, level=level)
        rows: list[Row | Graph | Bar] = [
            Row((Cell(numbers.percent(share), "", "accept", level, of),), (Cell(per_round, "tok/round"),)),
            *self._positions(view),
            graph,
        ]
        if mtp.state == "WARM":
            seen = min(WARM_DRAFTS, stats.drafts.proposed) if stats else 0
            rows.append(Row((Cell(f"{seen}/{WARM_DRAFTS}", "drafts seen", "measuring", "muted"),)))
        elif mtp.state not in ("ON", "WARM"):
            rows.append(Row((Cell(mtp.reason, level="muted"),)))
        return Reading(key, tuple(rows), head=head, graph=graph)

    def _positions(self, view: View) -> list[Bar]:
        out = []
        for i, (proposed, accepted) in enumerate(zip(view.recent.drafts.proposed_at, view.recent.drafts.accepted_at)):
            if proposed:
                out.append(Bar(str(i + 1), accepted / proposed, f"{numbers.percent(accepted / proposed):>4}"))
        return out
