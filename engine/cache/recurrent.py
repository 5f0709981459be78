"""States that cannot be trimmed: the rows a causal convolution looks back on, and the matrix of the gated delta rule.

Inside a span the state before it is kept, and per row what the one-token update needs. A partial commit starts from the
kept state and applies that update to the kept rows: no weight, no router, no expert, no disk. `commit_all` does so for
many layers at once, because a layer's update is a dozen tiny operations whose fixed cost is most of what they cost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from .base import CacheGroup, LayerCache

__all__ = ["DeltaCache", "DeltaRows", "History", "commit_all"]

_TOGETHER_BYTES = 32 << 20
"""States that are updated in one call take at most this much: they are copied into one array for it."""


class History:
    """The last `rows` inputs [rows, width] of a causal convolution; zeros before the first token."""

    def __init__(self, rows: int, width: int, dtype: mx.Dtype) -> None:
        self._rows = mx.zeros((rows, width), dtype=dtype)
        self._before: mx.array | None = None
        self._seen: list[mx.array] = []
        self._span_position = 0
        self._position = 0

    @property
    def position(self) -> int:
        return self._position

    def extend(self, x: mx.array) -> mx.array:
        """Append x [T, width]; returns history and x as one [rows + T, width]."""
        joined = mx.concatenate([self._rows, x], axis=0)
        # A slice of `joined` would keep all of a long chunk alive; a copy keeps `rows` rows.
        self._rows = mx.contiguous(joined[x.shape[0] :])
        self._position += x.shape[0]
        if self._before is not None:
            self._seen.append(joined)
        return joined

    def open_span(self) -> None:
        assert self._before is None, "spans do not nest"
        self._before, self._seen, self._span_position = self._rows, [], self.position

    def commit(self, keep: int) -> None:
        assert self._before is not None, "no open span"
        before, seen = self._before, self._seen
        self._before, self._seen = None, []
        if keep < self.position - self._span_position:
            self._rows, self._position = _rows_after(before, seen, keep), self._span_position + keep

    def save(self) -> tuple[int, mx.array]:
        return self.position, self._rows

    def restore(self, saved: tuple[int, mx.array]) -> None:
        self._before, self._seen = None, []
        self._position, self._rows = saved

    def saved_nbytes(self) -> int:
        return self._rows.nbytes

    def nbytes(self) -> int:
        return self._rows.nbytes

    def arrays(self) -> list[mx.array]:
        return [self._rows]


def _rows_after(before: mx.array, seen: Iterable[mx.array], keep: int) -> mx.array:
    """The history after `keep` rows; `seen` holds what each `extend` of the span returned."""
    size = before.shape[0]
    for joined in seen:
        rows = joined.shape[0] - size
        if 0 < keep <= rows:
            # A view: a span has few rows, so it keeps little more alive than itself.
            return joined[keep : keep + size]
        keep -= rows
    return before


@dataclass(frozen=True, slots=True)
class DeltaRows:
    """What the one-token update of the delta rule needs of T rows, all float32."""

    keys: mx.array
    """[T, heads, key_dim], normalised."""
    values: mx.array
    """[T, heads, value_dim]."""
    log_decay: mx.array
    """[T, heads], at most 0."""
    beta: mx.array
    """[T, heads]."""
    decay: mx.array
    """[T, heads], exp(log_decay): captured, as an exponential's bits may depend on the shape it is computed in."""


Advance = Callable[[Sequence[mx.array], Sequence[DeltaRows], int], Sequence[mx.array]]
"""(states of layers with equal shapes, a DeltaRows of each, n) -> the states after the first n rows, one token at a time;
every layer's bits are those of the layer alone."""


class DeltaCache:
    """Convolution history and state matrix [heads, value_dim, key_dim] float32 of one gated-delta layer."""

    def __init__(self, history: History, state: mx.array, advance: Advance) -> None:
        self.history, self.state = history, state
        self._advance = advance
        self._before: mx.array | None = None
        self._seen: list[DeltaRows] = []

    @property
    def position(self) -> int:
        return self.history.position

    def append(self, state: mx.array, rows: DeltaRows) -> None:
        """The state after rows whose convolution inputs `history` has just been extended by."""
        self.state = state
        if self._before is not None:
            self._seen.append(rows)

    def open_span(self) -> None:
        self.history.open_span()
        self._before, self._seen = self.state, []

    def commit(self, keep: int) -> None:
        commit_all([self], keep)

    def end_span(self, keep: int) -> list[DeltaRows]:
        """Commit but for the update: rows that the state, now the one before the span, still has to see."""
        assert self._before is not None, "no open span"
        before, seen = self._before, self._seen
        self._before, self._seen = None, []
        self.history.commit(keep)
        if keep >= sum(r.keys.shape[0] for r in seen):
            return []
        self.state = before
        return seen if keep else []

    def save(self) -> tuple[tuple[int, mx.array], mx.array]:
        return self.history.save(), self.state

    def restore(self, saved: tuple[tuple[int, mx.array], mx.array]) -> None:
        self._before, self._seen = None, []
        self.history.restore(saved[0])
        self.state = saved[1]

    def saved_nbytes(self) -> int:
        return self.history.saved_nbytes() + self.state.nbytes

    def nbytes(self) -> int:
        return self.history.nbytes() + self.state.nbytes

    def arrays(self) -> list[mx.array]:
        return [self.state, *self.history.arrays()]


def commit_all(caches: Iterable[LayerCache], keep: int) -> None:
    """End the spans of all `caches`, which saw the same rows, keeping the first `keep` rows of each."""
    behind: dict[object, list[tuple[DeltaCache, list[DeltaRows]]]] = defaultdict(list)
    for cache in caches:
        for part in cache.parts.values() if isinstance(cache, CacheGroup) else (cache,):
            if not isinstance(part, DeltaCache):
                part.commit(keep)
            elif rows := part.end_span(keep):
                behind[(part._advance, *part.state.shape, *(r.keys.shape for r in rows))].append((part, rows))
    for alike in behind.values():
        size = max(1, _TOGETHER_BYTES // alike[0][0].state.nbytes)
        for first in range(0, len(alike), size):
            _catch_up(alike[first : first + size], keep)


def _catch_up(layers: Sequence[tuple[DeltaCache, Sequence[DeltaRows]]], keep: int) -> None:
    """Take the states of layers with equal shapes through the first `keep` of their rows."""
    states: Sequence[mx.array] = [cache.state for cache, _ in layers]
    for pieces in zip(*(rows for _, rows in layers)):
        if keep <= 0:
            break
        count = min(keep, pieces[0].keys.shape[0])
        states, keep = layers[0][0]._advance(states, pieces, count), keep - count
    for (cache, _), state in zip(layers, states):
        cache.state = state
