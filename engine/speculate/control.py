"""Whether to draft, and how deep. Pure Python: counts and seconds in, depths and reasons out.

The τ-rule (a renewal-reward argument): with τ the best known time per token, a further draft pays while the chance that
it and all before it stand, times τ, exceeds what it adds to the round. A balance stands guard: it books what drafting
wins or loses against plain decoding, and grows by half a percent of all time. Where the balance is spent, or the rule
chooses no draft, drafting is PARKED; then a single draft is made now and then and compared with the token that plain
decoding brings, so that a probe costs a draft and no check. FALLBACK ends drafting to the end of the reply after `limit`
consecutive rounds with drafts checked and none accepted.
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
_START = 3.0
"""Plain steps' worth of time that finding out whether drafting pays may cost; unspent time adds up to this again."""
_SHARE = 0.005
"""Share of all time that drafting may lose beyond that."""
_MOST_CREDIT = 6.0
"""Gains beyond this many plain steps do not pay for later losses: two starts' worth, or a good text would hide a bad one."""
_PROBE_EVERY = 8
"""Tokens between probes at least: what a late return loses in a passage of about a hundred tokens equals what probes cost."""
_LEARNING = 4
"""Checks of one draft that are made before acceptance may call it off: as many as a cost needs to be believed."""
_FIRST_PLAIN, _PLAIN_EVERY = 8, 128
"""Tokens between plain steps that measure the pace while everything drafts: doubled from the one to the other."""


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
    foreseen: bool
    """Nothing was checked, and the first draft is the token that came."""
    pairs: int
    """Rows of the first draft forward: the anchor's, and those that were missing in the draft cache."""
    draft_s: float
    verify_s: float
    """Of the check, or of the plain step where nothing was checked."""
    rewind_s: float


class Control:
    """Decides the depth of each round of one conversation; what it learned stays from reply to reply."""

    def __init__(self, mode: MtpMode, max_draft: int, limit: int) -> None:
        self.mode: MtpMode = mode
        self.max_draft, self.limit = max_draft, limit
        self.fallbacks = 0
        self._costs, self._calibration = Costs(), Calibration()
        self._streak = self._proposed = self._depth = 0
        self._fallen = self._parked = False
        self._balance = _START
        self._probe_cost = 0.0
        self._since_probe = 0
        self._probe_again = False
        self._plain_gap, self._since_plain = _FIRST_PLAIN, 0

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
            return 0
        return most if self.mode == "fixed" else self._auto_depth(most)

    def _auto_depth(self, most: int) -> int:
        if not self._costs.knows_pace or self._since_plain >= self._plain_gap:
            return 0
        if self._parked:
            return int(self._may_probe())
        if self._learning():
            return 1
        return most if self._plan(most)[1] > 0 else 0

    def _learning(self) -> bool:
        """Too little is known to call it off."""
        return self._costs.seen(1) < _LEARNING

    def _may_probe(self) -> bool:
        if self._probe_again:
            return self._balance >= self._costs.draft
        # A probe that costs more than the balance can ever hold is still made when it is full.
        return self._since_probe >= _PROBE_EVERY and self._balance >= min(_START, self._probe_cost)

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

    def _plan(self, most: int, tau: float = 1.0, made: int = 0, chance: float = 1.0) -> tuple[int, float]:
        """(depth, gain in plain steps) that the recent acceptance makes best from `made` drafts on, which all stand with
        this chance."""
        gain, best = 0.0, (made, 0.0)
        for j in range(made, most):
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
        made = len(confidences)
        return self._plan(self.max_draft, self._tau(), made, self._chance(confidences))[1] > 0

    def _chance(self, confidences: Sequence[float]) -> float:
        """That all of these stand."""
        chance = 1.0
        for j, c in enumerate(confidences):
            chance *= self._calibration.of(j, c)
        return chance

    def worth_checking(self, confidences: Sequence[float], *, selective: bool = True) -> int:
        """How many of the drafts made are worth a row of the check; 0 makes the round a plain step.

        Unless `selective`, what was drawn does not matter: all of a round are checked, none of a probe.
        """
        if self.mode == "auto" and self._parked and not self._learning():
            return 0
        if self.mode == "fixed" or self._learning() or not selective:
            return len(confidences)
        tau, chance, gain, best = self._tau(), 1.0, 0.0, (0, 0.0)
        for j, c in enumerate(confidences):
            chance *= self._calibration.of(j, c)
            gain += chance * tau - (self._costs.check(j + 1) - self._costs.check(j))
            if gain > best[1]:
                best = (j + 1, gain)
        return best[0]

    # ---- behind a step

    def note_plain(self, seconds: float) -> None:
        """A plain step took this long."""
        self._costs.see_plain(seconds)
        if self._since_plain >= self._plain_gap:
            self._plain_gap = min(_PLAIN_EVERY, 2 * self._plain_gap)
        self._since_plain = self._depth = 0
        self._probe_again = False
        self._pass(1)

    def note_round(self, outcome: RoundOutcome) -> None:
        """A round is over; one whose drafts were not worth checking, or were a probe, has drafted = 0."""
        made, checked = len(outcome.confidences), outcome.drafted
        filling = outcome.pairs > MAX_DRAFT + 1
        self._costs.see_round(0 if filling else made, outcome.draft_s, checked, outcome.verify_s + outcome.rewind_s)
        spent = self._costs.draft * made
        if filling:
            spent = max(spent, outcome.draft_s / self._costs.pace_s)
        tested, stood = (checked, outcome.accepted) if checked else (1, int(outcome.foreseen))
        self._calibration.see(outcome.confidences[:tested], stood, rare=self._parked)
        self._proposed += checked
        self._depth = checked
        self._streak = 0 if stood else self._streak + 1
        if checked:
            self._since_plain += outcome.committed
        else:
            self._since_plain = 0
        self._pass(outcome.committed)
        self._balance = min(_MOST_CREDIT, self._balance + outcome.accepted + 1 - self._costs.check(checked) - spent)
        if self._parked:
            self._probe_over(outcome, spent)
        elif not self._learning() and (self._balance < 0 or not self._plan(self.max_draft)[0]):
            self._park()
        if self._streak >= self.limit and not self._fallen:
            self._fallen = True
            self.fallbacks += 1

    def _pass(self, tokens: int) -> None:
        """Time goes by: the balance grows."""
        if self._balance < _START:
            self._balance = min(_START, self._balance + _SHARE * tokens)
        self._since_probe += tokens

    def _park(self) -> None:
        self._parked, self._probe_again, self._since_probe = True, False, 0
        self._probe_cost = self._costs.draft

    def _probe_over(self, outcome: RoundOutcome, cost: float) -> None:
        """Draft again if it would pay; probe on while probes stand."""
        if not self._probe_again:
            self._probe_cost = cost
        self._since_probe, self._probe_again = 0, outcome.foreseen
        if self._plan(self.max_draft)[0] and self._balance > 0:
            self._parked = False

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
            return "PARKED", f"a draft costs {cost - 1:.2f} plain steps, and {share:.0%} are expected to stand"
        if self._proposed < WARM_DRAFTS:
            return "WARM", f"{self._proposed} of {WARM_DRAFTS} drafts seen"
        if self.mode == "fixed":
            return "ON", f"always {self.max_draft} drafts a round"
        depth, gain = self._plan(self.max_draft)
        return "ON", f"{max(1, depth)} drafts pay: {1 + gain:.2f} plain steps' worth a round"

    def stats(self) -> MtpStats:
        state, reason = self.state()
        return MtpStats(self.mode, state, reason, self._depth, self._streak, self.limit)
