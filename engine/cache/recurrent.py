"""States that cannot be trimmed: the rows a causal convolution looks back on, and the matrix of the gated delta rule.

Inside a span the state before it is kept, and per row what the one-token update needs. A partial commit starts from the
kept state and applies that update to the kept rows: no weight, no router, no expert, no disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

__all__ = ["DeltaCache", "DeltaRows", "History"]


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
            self._seen.append(x)
        return joined

    def open_span(self) -> None:
        assert self._before is None, "spans do not nest"
        self._before, self._seen, self._span_position = self._rows, [], self.position

    def commit(self, keep: int) -> None:
        assert self._before is not None, "no open span"
        before, seen = self._before, self._seen
        self._before, self._seen = None, []
        if keep < self.position - self._span_position:
            joined = mx.concatenate([before, *seen], axis=0)
            self._rows = mx.contiguous(joined[keep : keep + before.shape[0]])
            self._position = self._span_position + keep

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


Advance = Callable[[mx.array, DeltaRows], mx.array]
"""(state, rows) -> state after the rows, one token at a time."""


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
        assert self._before is not None, "no open span"
        before, seen = self._before, self._seen
        self._before, self._seen = None, []
        self.history.commit(keep)
        if keep < sum(r.keys.shape[0] for r in seen):
            state = before
            for rows in seen:
                n = min(keep, rows.keys.shape[0])
                if n == 0:
                    break
                kept = DeltaRows(rows.keys[:n], rows.values[:n], rows.log_decay[:n], rows.beta[:n])
                state, keep = self._advance(state, kept), keep - n
            self.state = state

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
