"""How often drafts are accepted: by position, and by what the draft layer itself believed. Pure Python.

A text is easy or hard at all positions at once: what one position shows moves the estimates of all. What sets positions
apart is a matter of the model and is learned slowly.

The draft layer's probability is not trusted as a number: a reliability table says how often drafts of such a
probability were accepted. Where it carries nothing, every bin comes to the base rate.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..stats import MAX_DRAFT

__all__ = ["Calibration"]

_BINS = 8
_RATE = 1 / 16
"""Weight of a new observation in the text's level: some 16 drafts of memory, because text changes."""
_RARE_RATE = 1 / 6
_POSITION_RATE = 1 / 64
_BIN_RATE = 1 / 32
_BIN_PRIOR = 6.0
"""Observations that a bin needs before it is believed as much as the base rate."""
_FIRST_PRIOR = 0.6


class Calibration:
    """Acceptance of a draft given that all before it in its round were accepted."""

    def __init__(self) -> None:
        self._level, self._seen = _FIRST_PRIOR, 0
        self._offset = [0.0] * MAX_DRAFT
        self._lift = [0.0] * _BINS
        self._lift_seen = [0.0] * _BINS

    def base(self, position: int) -> float:
        """Recent acceptance at zero-based `position`, whatever the confidence."""
        return min(0.995, max(0.005, self._level + self._offset[position]))

    def of(self, position: int, confidence: float) -> float:
        """Expected acceptance of a draft of this confidence at this position."""
        b = _bin(confidence)
        belief = self._lift_seen[b] / (self._lift_seen[b] + _BIN_PRIOR)
        return min(0.995, max(0.005, self.base(position) + belief * self._lift[b]))

    def see(self, confidences: Sequence[float], accepted: int, *, rare: bool = False) -> None:
        """A round's drafts were checked and the first `accepted` stood; what follows a rejection was not tested.

        `rare`: rounds are far apart now, so each says more about the text at hand.
        """
        for position in range(min(accepted + 1, len(confidences))):
            surprise = (1.0 if position < accepted else 0.0) - self.base(position)
            b = _bin(confidences[position])
            self._lift_seen[b] = min(64.0, self._lift_seen[b] + 1)
            rate = max(_BIN_RATE, 1 / (self._lift_seen[b] + 1))
            self._lift[b] += rate * (surprise - self._lift[b])
            self._seen += 1
            self._level += max(_RARE_RATE if rare else _RATE, 1 / (self._seen + 4)) * surprise
            self._offset[position] += _POSITION_RATE * surprise


def _bin(confidence: float) -> int:
    return min(_BINS - 1, max(0, int(confidence * _BINS)))
