"""How good the choice of who leaves was: hits of a stretch of decode beside the most that knowing the future would give.

Belady's rule on the lookups of one stretch, from the experts that were resident at its beginning: whoever is asked for
last, or never, leaves. A stretch is judged every few seconds, so that looking costs next to nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import heapify, heappop, heappush

from .policy import SlotTable

__all__ = ["Hindsight", "most_hits"]

LOOKUPS = 4096
"""Experts asked for in one stretch."""
EVERY_S = 5.0
"""From the end of one stretch to the beginning of the next."""
_NEVER = 1 << 60


def most_hits(forwards: Sequence[Sequence[int]], resident: Iterable[int], slots: int) -> int:
    """The most hits of these forwards, each of distinct keys that all get a slot, from the residents given."""
    uses: dict[int, list[int]] = {}
    for at in range(len(forwards) - 1, -1, -1):
        for key in forwards[at]:
            uses.setdefault(key, []).append(at)
    here = {key: uses[key][-1] if key in uses else _NEVER for key in resident}
    order = [(-next_use, key) for key, next_use in here.items()]
    heapify(order)
    hits = 0
    for keys in forwards:
        for key in keys:
            hits += key in here
            left = uses[key]
            left.pop()
            here[key] = left[-1] if left else _NEVER
        wanted = set(keys)
        while len(here) > slots and order:
            next_use, key = heappop(order)
            # An entry is out of date once its key was asked for again; those of this forward come back below.
            if key not in wanted and here.get(key) == -next_use:
                del here[key]
        for key in keys:
            heappush(order, (-here[key], key))
    return hits


class Hindsight:
    """Notes the lookups of one pool and judges a stretch of them now and then."""

    def __init__(self, table: SlotTable, now: Callable[[], float] = time.monotonic) -> None:
        self._table, self._now = table, now
        self._forwards: list[list[int]] = []
        self._resident: set[int] = set()
        self._asked = self._hits = 0
        self._next = 0.0
        self.share: float | None = None
        """Hits of the latest stretch over the most possible, 0..1; None before the first or where none were possible."""

    def note(self, layer: int, experts: Collection[int], hits: int) -> None:
        """A forward of `layer` asks for these, `hits` of them resident; called before anybody is evicted for it."""
        if not self._forwards:
            if self._now() < self._next:
                return
            self._resident = self._table.keys()
        base = layer * self._table.experts
        self._forwards.append([base + e for e in experts])
        self._asked += len(experts)
        self._hits += hits
        if self._asked >= LOOKUPS:
            best = most_hits(self._forwards, self._resident, self._table.slots)
            self.share = self._hits / best if best else None
            self.restart()
            self._next = self._now() + EVERY_S

    def restart(self) -> None:
        """Forget the stretch that has begun: something else than decode has changed who is resident."""
        self._forwards, self._asked, self._hits = [], 0, 0
