"""Experts that lie in memory at equal distances, as the arrays to compute from, and their products.

Rows that are computed apart are one gathered product over whole shelves: the arithmetic of a row is that of a row
alone, whoever else is computed with it, and nothing in Python happens per expert.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import mlx.core as mx
import numpy as np

from .layout import Part
from .memory import FLAT_BYTES, Pool

__all__ = ["Block", "Computes", "Shelf", "layer_blocks", "slot_blocks"]

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


@dataclass(frozen=True, slots=True)
class Block:
    """Experts at equal distances, short enough for one array; a gathered product reaches no further."""

    count: int
    parts: tuple[tuple[int, int], ...]
    """Of each part the first expert's byte in the pool, and the distance to the next expert's."""


def slot_blocks(step: int, count: int, parts: Sequence[Part], layer: int) -> list[Block]:
    """`count` slots, `step` bytes apart. `layer` experts belong together: where they can, they lie in one block."""
    most = max(1, FLAT_BYTES // step)
    size = min(count, most - most % layer if most > layer else most)
    return [
        Block(min(size, count - first), tuple((first * step + p.slot_offset, step) for p in parts))
        for first in range(0, count, size)
    ]


def layer_blocks(starts: np.ndarray, parts: Sequence[tuple[int, int]]) -> tuple[list[Block], list[int]]:
    """Blocks of E experts that lie anywhere, longest stretches of equal distances first to last, and their places.

    starts int64 [E, n]; part i of an expert lies at parts[i] = (column of starts, bytes behind that start).
    """
    order = np.argsort(starts[:, 0])
    lie = starts[order].tolist()
    steps = [tuple(b - a for a, b in zip(*pair)) for pair in pairwise(lie)]
    blocks: list[Block] = []
    places = [0] * len(lie)
    first = 0
    while first < len(lie):
        step = steps[first] if first < len(steps) else (0,)
        stop = first + 1
        while (
            stop < len(lie)
            and steps[stop - 1] == step
            and min(step) > 0
            and (stop + 1 - first) * max(step) <= FLAT_BYTES
        ):
            stop += 1
        n = stop - first
        for i, expert in enumerate(order[first:stop].tolist()):
            places[expert] = len(blocks) * len(lie) + i
        blocks.append(Block(n, tuple((lie[first][c] + at, step[c] if n > 1 else 0) for c, at in parts)))
        first = stop
    return blocks, places


class Shelf:
    """Experts in a pool. Place i of block b is the number b * `width` + i.

    Whoever rewrites a place has evaluated every product made with it.
    """

    def __init__(
        self, pool: Pool, blocks: Sequence[Block], width: int, parts: Sequence[Part], computes: Computes
    ) -> None:
        self._pool, self._blocks, self.width = pool, blocks, width
        self._parts, self._computes = parts, computes
        self._stacks: dict[int, Mapping[str, mx.array]] = {}
        self._views: dict[int, Mapping[str, mx.array]] = {}

    def together(self, x: mx.array, layer: int, expert: int, place: int) -> mx.array:
        """x [m, H] -> [m, H]."""
        views = self._views.get(place)
        if views is None:
            block, at = divmod(place, self.width)
            # An integer index would copy: a slice shares memory.
            views = self._views[place] = {r: stack[at : at + 1].squeeze(0) for r, stack in self._block(block).items()}
            mx.eval(list(views.values()))
        return self._computes.together(x, views, layer, expert)

    def apart(
        self, x: mx.array, layer: int, experts: Sequence[int], places: Sequence[int]
    ) -> list[tuple[Sequence[int], mx.array]]:
        """x [n, 1, H], row i through experts[i] at places[i]: (rows, their outputs [m, 1, H]) of each block."""
        blocks = {place // self.width for place in places}
        if len(blocks) == 1:
            return [(range(len(places)), self._apart(x, layer, experts, places, blocks.pop()))]
        made = []
        for block in sorted(blocks):
            rows = [i for i, place in enumerate(places) if place // self.width == block]
            some = mx.take(x, mx.array(rows), axis=0)
            made.append((rows, self._apart(some, layer, [experts[i] for i in rows], [places[i] for i in rows], block)))
        return made

    def _apart(self, x: mx.array, layer: int, experts: Sequence[int], places: Sequence[int], block: int) -> mx.array:
        first = block * self.width
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
            found = self._blocks[block]
            stacks = self._stacks[block] = {
                p.role: self._pool.arrays(first, step, found.count, _DTYPES[p.dtype], p.shape)
                for p, (first, step) in zip(self._parts, found.parts)
            }
            mx.eval(list(stacks.values()))
        return stacks
