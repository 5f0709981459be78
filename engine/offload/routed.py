"""The routed rows of one forward as products to be made and places for their results: which expert, which row, which rank.

Neither what was resident nor what arrived first shows in the outputs: each product's result lands in its own place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx
import numpy as np

from .shelf import Shelf

__all__ = ["Routed", "routed"]


class Routed(Protocol):
    """Products of one forward of a layer."""

    def compute(self, shelf: Shelf, layer: int, found: Sequence[tuple[int, int]]) -> list[mx.array]:
        """Make every product with the experts of `found`, (expert, place on the shelf); returns the new pieces."""
        ...

    def outputs(self) -> list[mx.array]:
        """[t_i, k, H] of every part; every routed expert has been computed."""
        ...


def routed(hidden: Sequence[mx.array], ids: Sequence[np.ndarray], *, together: bool) -> Routed:
    """hidden[i] [t_i, H] and ids[i] [t_i, k]. `together`: rows that go to one expert are one product."""
    return _Together(hidden, ids) if together else _Apart(hidden, ids)


class _Apart:
    """Every row is a product of its own."""

    def __init__(self, hidden: Sequence[mx.array], ids: Sequence[np.ndarray]) -> None:
        self._hidden = hidden[0] if len(hidden) == 1 else mx.concatenate(list(hidden), axis=0)
        self._k = ids[0].shape[1]
        self._parts = [i.shape[0] for i in ids]
        self._at: dict[int, list[int]] = {}
        flat = ids[0].reshape(-1) if len(ids) == 1 else np.concatenate([i.reshape(-1) for i in ids])
        self._count = len(flat)
        for place, expert in enumerate(flat.tolist()):
            self._at.setdefault(expert, []).append(place)
        self._pieces: list[mx.array] = []
        self._places: list[int] = []

    def compute(self, shelf: Shelf, layer: int, found: Sequence[tuple[int, int]]) -> list[mx.array]:
        jobs = sorted((at, expert, place) for expert, place in found for at in self._at.pop(expert, ()))
        if not jobs:
            return []
        if self._hidden.shape[0] == 1:
            x = mx.broadcast_to(self._hidden[None], (len(jobs), 1, self._hidden.shape[1]))
        else:
            x = mx.take(self._hidden, mx.array([at // self._k for at, *_ in jobs]), axis=0)[:, None]
        made = []
        for rows, piece in shelf.apart(x, layer, [expert for _, expert, _ in jobs], [place for *_, place in jobs]):
            self._places += [jobs[row][0] for row in rows]
            made.append(piece)
        self._pieces += made
        return made

    def outputs(self) -> list[mx.array]:
        assert not self._at, "a routed expert was not computed"
        flat = self._pieces[0] if len(self._pieces) == 1 else mx.concatenate(self._pieces, axis=0)
        if self._places != list(range(self._count)):
            back = np.empty(self._count, np.int32)
            back[self._places] = np.arange(self._count, dtype=np.int32)
            flat = mx.take(flat, mx.array(back), axis=0)
        whole = flat.reshape(-1, self._k, flat.shape[-1])
        return [whole] if len(self._parts) == 1 else [*mx.split(whole, np.cumsum(self._parts[:-1]).tolist(), axis=0)]


class _Together:
    """The rows that go to one expert are one product, part by part."""

    def __init__(self, hidden: Sequence[mx.array], ids: Sequence[np.ndarray]) -> None:
        self._parts = [_Sorted(h, i) for h, i in zip(hidden, ids)]

    def compute(self, shelf: Shelf, layer: int, found: Sequence[tuple[int, int]]) -> list[mx.array]:
        made = []
        for expert, place in found:
            for part in self._parts:
                rows = part.rows.pop(expert, None)
                if rows is not None:
                    part.pieces[expert] = shelf.together(rows, layer, expert, place)
                    made.append(part.pieces[expert])
        return made

    def outputs(self) -> list[mx.array]:
        return [part.outputs() for part in self._parts]


class _Sorted:
    """The rows of one part in the order of their experts, and the way back."""

    def __init__(self, hidden: mx.array, ids: np.ndarray) -> None:
        self._shape, flat = ids.shape, ids.reshape(-1)
        order = np.argsort(flat, kind="stable")
        rows = mx.take(hidden, mx.array((order // ids.shape[1]).astype(np.int32)), axis=0)
        experts, starts = np.unique(flat[order], return_index=True)
        stops = [*starts[1:].tolist(), len(flat)]
        self.rows = {e: rows[a:b] for e, a, b in zip(experts.tolist(), starts.tolist(), stops)}
        self._experts = experts.tolist()
        self.pieces: dict[int, mx.array] = {}
        self._back = np.empty(len(flat), np.int32)
        self._back[order] = np.arange(len(flat), dtype=np.int32)

    def outputs(self) -> mx.array:
        assert not self.rows, "a routed expert was not computed"
        flat = mx.concatenate([self.pieces[e] for e in self._experts], axis=0)
        return mx.take(flat, mx.array(self._back), axis=0).reshape(*self._shape, -1)
