"""Whether to draft, and how deep. Pure Python: counts and seconds in, depths and reasons out.

The τ-rule (a renewal-reward argument): with τ the best known time per token, a further draft pays while the chance that
it and all before it stand, times τ, exceeds what it adds to the round. Two guards stand around it. The ledger adds up
what drafting has won or lost against plain decoding; when it has lost its allowance (a few tokens' time, plus half a
percent of all time) drafting is PARKED, and probes are paid from the allowance that grows meanwhile. FALLBACK ends
drafting to the end of the reply after `limit` consecutive rounds with drafts and none accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..stats import MAX_DRAFT, MtpStats
from ..types import MtpMode, MtpState
from .calibration import Calibration
from .costs import Costs

__all__ = ["Control", "RoundOutcome"]

WARM_DRAFTS = 32
"""Until this many drafts were checked the state says WARM."""
_START_ALLOWANCE = 3.0
"""Plain steps' worth of time that finding out whether drafting pays may cost."""
_SHARE = 0.005
"""Share of all time that probing may lose."""
_MOST_CREDIT = 6.0
"""Gains beyond this many plain steps do not pay for later losses."""
_PLAIN_EVERY = 160
"""Tokens between plain steps that check the pace while everything drafts."""
_FIRST_PAUSE, _LONGEST_PAUSE = 12, 96
"""Tokens between probes: doubled by every probe that does not pay."""


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """What one round cost and brought."""

    drafted: int
    """Drafts checked."""
    accepted: int
    committed: int
    """Tokens that the reply took, the correction or bonus included."""
    confidences: tuple[float, ...]
    """The draft layer's probability of every draft made, checked or not."""
    draft_s: float
    verify_s: float
    rewind_s: float
    draft_misses: int
    verify_misses: int


class Control:
    """Decides the depth of each round of one conversation; what it learned stays from reply to reply."""

    def __init__(self, mode: MtpMode, max_draft: int, limit: int) -> None:
        self.mode: MtpMode = mode
        self.max_draft, self.limit = max_draft, limit
        self.fallbacks = 0
        self._costs, self._calibration = Costs(), Calibration()
        self._streak = self._proposed = self._depth = 0
        self._fallen = self._parked = False
        self._ledger = 0.0
        self._allowance = _START_ALLOWANCE
        self._wait = 0
        self._pause = _FIRST_PAUSE
        self._since_plain = 0

    def set_mode(self, mode: MtpMode) -> None:
        """Change the mode; a fallback ends with it."""
        self.mode = mode
        self._fallen, self._streak = False, 0

    def start_reply(self) -> None:
        """A new reply begins: a fallback of the last one is over, what was learned stays."""
        self._fallen, self._streak = False, 0

    # ---- before and inside a round

    def depth(self, most: int) -> int:
        """Most drafts to make next, 0 for a plain step; at most `most`."""
        most = max(0, min(self.max_draft, most))
        if self.mode == "off" or self._fallen or not most:
            self._depth = 0
        elif self.mode == "fixed":
            self._depth = most
        else:
            self._depth = self._auto_depth(most)
        return self._depth

    def _auto_depth(self, most: int) -> int:
        if not self._costs.pace_s or self._since_plain >= _PLAIN_EVERY:
            return 0
        if self._parked:
            if self._wait > 0 or self._allowance + self._ledger < self._risk():
                return 0
            return 1
        if self._learning():
            return 1
        return most if self._plan(most)[1] > 0 else 0

    def _learning(self) -> bool:
        """Too little is known to call it off."""
        return self._proposed < 8

    def _risk(self) -> float:
        """What one probe at depth 1 can lose, in plain steps."""
        return self._costs.draft + self._costs.check(1) - 1.0

    def _tau(self) -> float:
        """Best known time per token, in plain steps: plain decoding, or drafting as planned."""
        depth, gain = self._plan(self.max_draft, tau=1.0)
        if not depth or gain <= 0:
            return 1.0
        chance, tokens = 1.0, 1.0
        for j in range(depth):
            chance *= self._calibration.base(j)
            tokens += chance
        return min(1.0, (self._costs.draft * depth + self._costs.check(depth)) / tokens)

    def _plan(self, most: int, tau: float = 1.0) -> tuple[int, float]:
        """(depth, gain in plain steps) that the recent acceptance makes best, before any draft is seen."""
        chance, gain, best = 1.0, 0.0, (0, 0.0)
        for j in range(most):
            chance *= self._calibration.base(j)
            gain += chance * tau - self._marginal(j + 1)
            if gain > best[1]:
                best = (j + 1, gain)
        return best

    def _marginal(self, k: int) -> float:
        """What the k-th draft adds to a round, in plain steps."""
        return self._costs.draft + self._costs.check(k) - self._costs.check(k - 1)

    def go_on(self, confidences: Sequence[float]) -> bool:
        """Whether to make one more draft behind these."""
        if self.mode == "fixed":
            return True
        if self._parked:
            return False
        position = len(confidences)
        if position >= MAX_DRAFT:
            return False
        chance = self._chance(confidences) * self._calibration.base(position)
        return chance * self._tau() > self._marginal(position + 1)

    def _chance(self, confidences: Sequence[float]) -> float:
        """That all of these stand."""
        chance = 1.0
        for j, c in enumerate(confidences):
            chance *= self._calibration.of(j, c)
        return chance

    def worth_checking(self, confidences: Sequence[float]) -> int:
        """How many of the drafts made are worth a row of the check; 0 makes the round a plain step."""
        if self.mode == "fixed" or self._learning():
            return len(confidences)
        tau, chance, gain, best = self._tau(), 1.0, 0.0, (0, 0.0)
        for j, c in enumerate(confidences):
            chance *= self._calibration.of(j, c)
            gain += chance * tau - (self._costs.check(j + 1) - self._costs.check(j))
            if gain > best[1]:
                best = (j + 1, gain)
        return best[0]

    # ---- behind a step

    def note_plain(self, seconds: float, misses: int) -> None:
        """A plain step took this long and read this many experts."""
        self._costs.see_plain(seconds)
        self._since_plain = 0
        self._pass(1)

    def note_round(self, outcome: RoundOutcome) -> None:
        """A round is over; one whose drafts were not worth checking has drafted = 0."""
        made, checked = len(outcome.confidences), outcome.drafted
        self._costs.see_round(made, outcome.draft_s, checked, outcome.verify_s + outcome.rewind_s)
        cost = self._costs.draft * made + self._costs.check(checked)
        if checked:
            self._proposed += checked
            self._calibration.see(outcome.confidences[:checked], outcome.accepted, rare=self._parked)
            self._streak = 0 if outcome.accepted else self._streak + 1
        self._settle(outcome.accepted + 1 - cost)
        self._since_plain += outcome.committed
        self._pass(outcome.committed)
        if self._streak >= self.limit and not self._fallen:
            self._fallen = True
            self.fallbacks += 1

    def _pass(self, tokens: int) -> None:
        """Time goes by: the allowance grows, the pause before the next probe runs."""
        self._allowance = min(_START_ALLOWANCE, self._allowance + _SHARE * tokens)
        self._wait = max(0, self._wait - tokens)

    def _settle(self, gain: float) -> None:
        """Book what a round won or lost, in plain steps, and park or resume."""
        self._ledger = min(_MOST_CREDIT, self._ledger + gain)
        depth, planned = self._plan(self.max_draft)
        if self._parked:
            self._resume_or_wait(planned > 0, good=gain > 0)
            return
        broke = self._ledger < -self._allowance
        if broke or (depth == 0 and not self._learning()):
            self._parked = True
            self._wait = self._pause = _FIRST_PAUSE
            # What was lost so far is the allowance that is gone; the ledger starts even.
            self._allowance = max(0.0, min(self._allowance, self._allowance + min(0.0, self._ledger)))
            self._ledger = 0.0

    def _resume_or_wait(self, pays: bool, *, good: bool) -> None:
        """A probe is over: draft again if it would pay, probe on while probes win, else wait twice as long."""
        if pays:
            self._parked = False
            self._pause = _FIRST_PAUSE
        elif good:
            self._wait = 0
        else:
            self._pause = min(_LONGEST_PAUSE, 2 * self._pause)
            self._wait = self._pause
        self._allowance = max(0.0, self._allowance + min(0.0, self._ledger))
        self._ledger = max(0.0, self._ledger)

    # ---- what to show

    def state(self) -> tuple[MtpState, str]:
        """The state to show, and the reason in words."""
        if self.mode == "off":
            return "OFF", "switched off by you"
        if self._fallen:
            return "FALLBACK", f"{self.limit} rounds in a row without an accepted draft; plain to the end of the reply"
        if self.mode == "auto" and self._parked:
            cost = self._costs.draft + self._costs.check(1)
            share = self._calibration.base(0)
            return "PARKED", f"a draft costs {cost - 1:.2f} plain steps and stands {share:.0%} of the time"
        if self._proposed < WARM_DRAFTS:
            return "WARM", f"{self._proposed} of {WARM_DRAFTS} drafts seen"
        if self.mode == "fixed":
            return "ON", f"always {self.max_draft} drafts a round"
        depth, gain = self._plan(self.max_draft)
        return "ON", f"{max(1, depth)} drafts pay: {1 + gain:.2f} plain steps' worth a round"

    def stats(self) -> MtpStats:
        state, reason = self.state()
        return MtpStats(self.mode, state, reason, self._depth, self._streak, self.limit)
