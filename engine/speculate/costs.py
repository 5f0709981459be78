"""What steps cost relative to a plain one, learned from a noisy clock. Pure Python.

A time is modelled as pace x relative cost. The pace (seconds of a plain step now) follows throttling and load quickly and
for everything at once; relative costs change slowly. So a machine that becomes slower as a whole changes no decision.
Every observation is clamped to a quarter above or below what was expected: a stall cannot teach more than that.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from ..stats import MAX_DRAFT

__all__ = ["Costs"]

_CLAMP = 0.25
_PACE_RATE = 0.2
_COST_RATE = 0.12
_SURE_AFTER = 4
"""Observations of a depth before they count against the prior."""
_ROW_PRIOR = 0.45
"""Relative cost of one more row of a check while none was measured."""
_DRAFT_PRIOR = 0.12
_PLAIN_STEPS = 5
"""The pace is the median of this many plain steps: two stalls, or a start with cold caches, do not move it."""
_KNOWN_AFTER = 3


class Costs:
    """Relative costs: a plain step is 1, `draft` one draft, `check(k)` the check of k drafts with its rewind."""

    def __init__(self) -> None:
        self._plain: deque[float] = deque(maxlen=_PLAIN_STEPS)
        self._plain_seen = 0
        self.draft = _DRAFT_PRIOR
        self._drafts_seen = 0
        self._check: list[float] = [1.0 + _ROW_PRIOR * k for k in range(MAX_DRAFT + 1)]
        self._seen = [0] * (MAX_DRAFT + 1)

    def check(self, k: int) -> float:
        """Relative cost of checking k drafts; `check(0)` is a plain step."""
        return self._check[k]

    def seen(self, k: int) -> int:
        """How many checks of k drafts were measured."""
        return self._seen[k]

    @property
    def pace_s(self) -> float:
        """Seconds of a plain step now; 0.0 before the first observation."""
        return median(self._plain) if self._plain else 0.0

    @property
    def knows_pace(self) -> bool:
        return self._plain_seen >= _KNOWN_AFTER

    def see_plain(self, seconds: float) -> None:
        """A plain step took this long."""
        self._plain_seen += 1
        self._plain.append(seconds)

    def see_round(self, drafts: int, draft_s: float, checked: int, check_s: float) -> None:
        """`drafts` drafts took draft_s (0: not to be learned from); the check of `checked` of them, and the rewind,
        check_s (0 checked: a plain step)."""
        if not checked:
            self.see_plain(check_s)
        elif not self._plain:
            # No plain step yet: take the priors' word for what one would have taken.
            self._plain.append(check_s / self._check[checked])
        pace = self.pace_s
        surprises = [
            self._see_draft(draft_s / drafts / pace) if drafts else 0.0,
            self._see_check(checked, check_s / pace) if checked else 0.0,
        ]
        if surprises[0] * surprises[1] > 0:
            # What both saw alike is the machine's pace, not the cost of either.
            change = 1 + _PACE_RATE * min(surprises, key=abs)
            self._plain = deque((s * change for s in self._plain), maxlen=_PLAIN_STEPS)

    def _see_draft(self, relative: float) -> float:
        """Learn a draft's cost; returns the clamped surprise once the cost is known."""
        self._drafts_seen += 1
        surprise = relative / self.draft - 1
        sure = self._drafts_seen > _SURE_AFTER
        surprise = _clamped(surprise) if sure else max(-0.5, min(0.7, surprise))
        self.draft *= 1 + max(_COST_RATE, 1 / (self._drafts_seen + 1)) * surprise
        return surprise if sure else 0.0

    def _see_check(self, k: int, relative: float) -> float:
        """Learn a check's cost; returns the clamped surprise once the cost is known."""
        self._seen[k] += 1
        surprise = relative / self._check[k] - 1
        sure = self._seen[k] > _SURE_AFTER
        surprise = _clamped(surprise) if sure else max(-0.5, min(0.7, surprise))
        rate = max(_COST_RATE, 1 / (self._seen[k] + 1))
        self._check[k] = max(1.0, self._check[k] * (1 + rate * surprise))
        self._spread(k)
        return surprise if sure else 0.0

    def _spread(self, known: int) -> None:
        """Depths without enough observations follow the slope of the ones that have them."""
        sure = [k for k in range(1, MAX_DRAFT + 1) if self._seen[k] >= _SURE_AFTER] or [known]
        for k in range(1, MAX_DRAFT + 1):
            if self._seen[k] >= _SURE_AFTER:
                continue
            near = min(sure, key=lambda s: abs(s - k))
            slope = (self._check[near] - 1.0) / near
            guess = 1.0 + slope * k
            weight = self._seen[k] / _SURE_AFTER
            self._check[k] = weight * self._check[k] + (1 - weight) * guess


def _clamped(x: float) -> float:
    return max(-_CLAMP, min(_CLAMP, x))
