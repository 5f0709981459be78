"""Whether to draft, and how deep. Pure Python: counts and seconds in, depths and reasons out.

FALLBACK after `limit` consecutive rounds with drafts and none accepted, to the end of the reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..stats import MtpStats
from ..types import MtpMode, MtpState

__all__ = ["Control", "RoundOutcome"]

WARM_DRAFTS = 32
"""Until this many drafts were checked the state says WARM."""


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """What one round cost and brought."""

    drafted: int
    accepted: int
    committed: int
    """Tokens that the reply took, the correction or bonus included."""
    confidences: tuple[float, ...]
    """The draft layer's probability of each draft."""
    draft_s: float
    verify_s: float
    rewind_s: float
    draft_misses: int
    verify_misses: int


class Control:
    """Decides the depth of each round of one conversation."""

    def __init__(self, mode: MtpMode, max_draft: int, limit: int) -> None:
        self.mode, self.max_draft, self.limit = mode, max_draft, limit
        self._streak = 0
        self._proposed = 0
        self._fallen = False
        self._depth = 0
        self.fallbacks = 0

    def set_mode(self, mode: MtpMode) -> None:
        """Change the mode; a fallback ends with it."""
        self.mode = mode
        self._fallen, self._streak = False, 0

    def start_reply(self) -> None:
        """A new reply begins: a fallback of the last one is over, what was learned stays."""
        self._fallen, self._streak = False, 0

    def depth(self, most: int) -> int:
        """Drafts to try next, 0 for a plain step; at most `most`."""
        self._depth = 0 if self.mode == "off" or self._fallen else max(0, min(self.max_draft, most))
        return self._depth

    def go_on(self, confidences: Sequence[float]) -> bool:
        """Whether to draft one more behind drafts of these confidences."""
        return True

    def note_plain(self, seconds: float, misses: int) -> None:
        """A plain step took this long and read this many experts."""

    def note_round(self, outcome: RoundOutcome) -> None:
        """A round is over."""
        self._proposed += outcome.drafted
        self._streak = 0 if outcome.accepted else self._streak + 1
        if self._streak >= self.limit:
            self._fallen = True
            self.fallbacks += 1

    def state(self) -> tuple[MtpState, str]:
        """The state to show, and the reason in words."""
        if self.mode == "off":
            return "OFF", "switched off by you"
        if self._fallen:
            return (
                "FALLBACK",
                f"{self.limit} rounds in a row without an accepted draft; plain decoding to the end of the reply",
            )
        if self._proposed < WARM_DRAFTS:
            return "WARM", f"{self._proposed} of {WARM_DRAFTS} drafts seen"
        return "ON", f"drafting up to {self.max_draft} tokens a round"

    def stats(self) -> MtpStats:
        state, reason = self.state()
        return MtpStats(self.mode, state, reason, self._depth, self._streak, self.limit)
