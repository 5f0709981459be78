"""Reading the next layer's experts before they are asked for: an option that measures whether it pays, and stops if not.

The guess is the next layer's router on this layer's input; who makes it is unknown here. A guessed expert gets a slot and
is read behind everything that is waited for; until it is asked for or has arrived, its slot is pinned. Stretches with and
without guessing alternate until their times are known; then the faster way goes on, with a rare look at the other one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from statistics import median

from ..errors import QwenChatError
from .policy import SlotTable
from .reader import Ticket

__all__ = ["Prefetch"]

STRETCH = 16
"""Forwards after which the way may change."""
TRIALS = 4
"""Stretches of each way before one is chosen."""
LOOK_EVERY = 32
"""Stretches of the chosen way between two looks at the other."""
KEPT = 8
"""Stretches of each way that are remembered."""
LEAST_GAIN = 0.02
"""Guessing has to save this share of the time, or it is left off."""


class Prefetch:
    """Guessed experts on their way into one pool's slots. One thread uses it."""

    def __init__(
        self, table: SlotTable, read: Callable[[int, int, int], Ticket], now: Callable[[], float] = time.perf_counter
    ) -> None:
        """`read(layer, expert, slot)` starts a background read."""
        self._table, self._read, self._now = table, read, now
        self._most = table.slots // 8
        self._coming: dict[int, dict[int, Ticket]] = {}
        self._guess: list[int] = []
        self.issued = self.useful = self.evictions = 0
        self._chosen: bool | None = None
        self._on, self._stretches, self._rows = True, 0, 0
        self._seconds: dict[bool, list[float]] = {True: [], False: []}
        self._times: list[float] = []
        self._begun = 0.0

    @property
    def wanted(self) -> bool:
        """Whether guesses are of use now."""
        return self._on and self._most > 0

    @property
    def state(self) -> str:
        """What it does now and why, in words."""
        if not self._most:
            return "off: too few slots"
        with_, without = (median(self._seconds[way] or [0.0]) * 1e3 for way in (True, False))
        numbers = f"{with_:.1f} ms a step with it, {without:.1f} without"
        if self._chosen is None:
            return "trying"
        return f"on: {numbers}" if self._chosen else f"off: {numbers}"

    # ---- measuring

    def begin(self, rows: int) -> None:
        """A forward of so many rows goes through the first layer."""
        if rows != self._rows:
            # Only steps of one width can be compared: a stretch begins anew.
            self._rows, self._times = rows, []
        self._begun = self._now()

    def end(self) -> None:
        """The forward has gone through the last layer."""
        if not self._most:
            return
        self._times.append(self._now() - self._begun)
        if len(self._times) < STRETCH:
            return
        # The first forwards of a stretch still find what the other way left.
        known = self._seconds[self._on]
        known.append(median(self._times[STRETCH // 4 :]))
        del known[:-KEPT]
        self._times = []
        self._stretches += 1
        if min(len(seconds) for seconds in self._seconds.values()) >= TRIALS:
            with_, without = (median(self._seconds[way]) for way in (True, False))
            self._chosen = with_ < without * (1 - LEAST_GAIN)
        if self._chosen is None or self._stretches % LOOK_EVERY == 0:
            self._on = not self._on
        else:
            self._on = self._chosen

    # ---- reading

    def expect(self, experts: Sequence[int]) -> None:
        """The next layer will probably ask for these, the likeliest first."""
        self._guess = list(experts)

    def start(self, layer: int, busy: Collection[int]) -> None:
        """Read what was guessed; the experts `busy` of `layer` are in use, everything before that layer is computed."""
        self._sweep()
        guessed, experts, self._guess = layer + 1, self._guess, []
        if guessed == self._table.layers:
            return
        room = self._most - sum(len(coming) for coming in self._coming.values())
        absent = [e for e in experts if self._table.slot(guessed, e) is None][: max(0, room)]
        if not absent:
            return
        for expert in busy:
            self._table.pin(layer, expert)
        try:
            claims = self._table.claim_all(guessed, absent, experts)
        except ValueError:
            return
        finally:
            for expert in busy:
                self._table.unpin(layer, expert)
        self.evictions += sum(claim.evicted is not None for claim in claims)
        coming = self._coming.setdefault(guessed, {})
        for i, claim in enumerate(claims):
            try:
                coming[claim.expert] = self._read(guessed, claim.expert, claim.slot)
            except BaseException:
                for unread in claims[i:]:
                    self._table.release(guessed, unread.expert)
                raise
            self._table.pin(guessed, claim.expert)
        self.issued += len(claims)

    def take(self, layer: int, asked: Sequence[int]) -> dict[tuple[int, int], Ticket]:
        """Of the guessed experts that `layer` asks for now, those whose reads have not ended, by (expert, slot).

        They are the caller's from now on; guesses that were wrong are left to come.
        """
        self._sweep(layer, asked)
        coming = self._coming.get(layer, {})
        found: dict[tuple[int, int], Ticket] = {}
        for expert in (e for e in asked if e in coming):
            ticket, slot = coming.pop(expert), self._table.slot(layer, expert)
            assert slot is not None
            self._table.unpin(layer, expert)
            ticket.hurry()
            found[expert, slot] = ticket
        self.useful += len(found)
        return found

    def _sweep(self, layer: int = -1, asked: Collection[int] = ()) -> None:
        """Let go of reads that have ended; one that failed was only a guess."""
        for at, coming in self._coming.items():
            for expert in [e for e, ticket in coming.items() if ticket.done()]:
                self._table.unpin(at, expert)
                try:
                    coming.pop(expert).wait()
                    self.useful += at == layer and expert in asked
                except QwenChatError:
                    self._table.release(at, expert)

    def drop(self) -> None:
        """Stop everything: afterwards nobody reads into a slot."""
        for layer, coming in self._coming.items():
            for expert, ticket in coming.items():
                ticket.cancel()
                self._table.release(layer, expert)
        self._coming.clear()
        self._guess = []
