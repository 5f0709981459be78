"""Experts that lie in memory at equal distances, as the arrays to compute from, and their products.

Rows that are computed apart are one gathered product over whole shelves: the arithmetic of a row is that of a row
alone, whoever else is computed with it, and nothing in Python happens per expert.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import mlx.core as mx

from .layout import Part
from .memory import FLAT_BYTES, Pool

__all__ = ["Computes", "Shelf"]

_DTYPES = {
    "BF16": mx.bfloat16, "F16": mx.float16, "F32": mx.float32, "F8_E4M3": mx.uint8, "U8": mx.uint8, "U32": mx.uint32,
}  # fmt: skip


class Computes(Protocol):
    """The arithmetic of experts. Views are their stored parts by role, `stacks` those of many experts: [n, *shape]."""

    most_apart: int
    """Rows of one `apart` that keep what it makes of the stored parts small."""
    by_number: bool
    """Whether an expert's number matters besides its bytes."""

    def together(self, x: mx.array, views: Mapping[str, mx.array], layer: int, expert: int) -> mx.array:
        """x [m, H] -> [m, H], all rows through one expert in one product."""
        ...

    def apart(
        self, x: mx.array, stacks: Mapping[str, mx.array], places: mx.array, layer: int, experts: mx.array
    ) -> mx.array:
        """x [n, 1, H] -> [n, 1, H]: row i through the expert numbered experts[i], which lies at places[i] of the stacks."""
        ...


class Shelf:
    """`count` experts in a pool, `step` bytes apart; a place is a number from 0 to count - 1.

    Whoever rewrites a place has evaluated every product made with it.
    """

    def __init__(
        self, pool: Pool, step: int, count: int, parts: Sequence[Part], computes: Computes, layer: int
    ) -> None:
        """`layer` experts belong together: where they can, they lie in one block."""
        self._pool, self._step, self._count = pool, step, count
        self._parts, self._computes = parts, computes
        most = max(1, FLAT_BYTES // step)
        self.block = min(count, most - most % layer if most > layer else most)
        """Places in one array; a gathered product reaches no further."""
        self._stacks: dict[int, Mapping[str, mx.array]] = {}
        self._views: dict[int, Mapping[str, mx.array]] = {}

    def together(self, x: mx.array, layer: int, expert: int, place: int) -> mx.array:
        """x [m, H] -> [m, H]."""
        views = self._views.get(place)
        if views is None:
            block, at = divmod(place, self.block)
            # An integer index would copy: a slice shares memory.
            views = self._views[place] = {r: stack[at : at + 1].squeeze(0) for r, stack in self._block(block).items()}
            mx.eval(list(views.values()))
        return self._computes.together(x, views, layer, expert)

    def apart(
        self, x: mx.array, layer: int, experts: Sequence[int], places: Sequence[int]
    ) -> list[tuple[Sequence[int], mx.array]]:
        """x [n, 1, H], row i through experts[i] at places[i]: (rows, their outputs [m, 1, H]) of each block."""
        blocks = {place // self.block for place in places}
        if len(blocks) == 1:
            return [(range(len(places)), self._apart(x, layer, experts, places, blocks.pop()))]
        made = []
        for block in sorted(blocks):
            rows = [i for i, place in enumerate(places) if place // self.block == block]
            some = mx.take(x, mx.array(rows), axis=0)
            made.append((rows, self._apart(some, layer, [experts[i] for i in rows], [places[i] for i in rows], block)))
        return made

    def _apart(self, x: mx.array, layer: int, experts: Sequence[int], places: Sequence[int], block: int) -> mx.array:
        first = block * self.block
        where = mx.array([p - first for p in places])
        return self.apart_unread(x, layer, mx.array(list(experts)) if self._computes.by_number else where, where, block)

    def apart_unread(self, x: mx.array, layer: int, experts: mx.array, places: mx.array, block: int = 0) -> mx.array:
        """The same for int32 arrays [n] that may never be looked at; `places` count from the block's first."""
        stacks, n = self._block(block), self._computes.most_apart
        if x.shape[0] <= n:
            return self._computes.apart(x, stacks, places, layer, experts)
        some = [
            self._computes.apart(x[i : i + n], stacks, places[i : i + n], layer, experts[i : i + n])
            for i in range(0, x.shape[0], n)
        ]
        return mx.concatenate(some, axis=0)

    def _block(self, block: int) -> Mapping[str, mx.array]:
        stacks = self._stacks.get(block)
        if stacks is None:
            first = block * self.block
            count = min(self.block, self._count - first)
            stacks = self._stacks[block] = {
                p.role: self._pool.arrays(first * self._step + p.slot_offset, self._step, count, _DTYPES[p.dtype], p.shape)
                for p in self._parts
            }  # fmt: skip
            mx.eval(list(stacks.values()))
        return stacks
