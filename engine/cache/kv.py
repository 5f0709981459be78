"""Keys and values of an attention layer, with its index keys: rows that are appended at the end and cut from the end."""

from __future__ import annotations

import mlx.core as mx

from .index import IndexKeys
from .rows import Rows

__all__ = ["KVCache"]


class KVCache:
    """Keys and values [kv_heads, rows, head_dim] of one attention layer and the index keys of its blocks."""

    def __init__(self, index: IndexKeys) -> None:
        self.keys, self.values, self.index = Rows(), Rows(), index
        self._span_start: int | None = None

    @property
    def position(self) -> int:
        return self.keys.length

    def append(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Add rows [kv_heads, T, d] and return all keys and values."""
        self.keys.append(keys)
        self.values.append(values)
        return self.keys.valid(), self.values.valid()

    def open_span(self) -> None:
        assert self._span_start is None, "spans do not nest"
        self._span_start = self.position

    def commit(self, keep: int) -> None:
        assert self._span_start is not None, "no open span"
        start, self._span_start = self._span_start, None
        self.trim(start + keep)

    def trim(self, length: int) -> None:
        """Forget every row from `length` on."""
        self.keys.cut(length)
        self.values.cut(length)
        self.index.cut(length)

    def save(self) -> int:
        return self.position

    def restore(self, saved: int) -> None:
        self._span_start = None
        self.trim(saved)

    def saved_nbytes(self) -> int:
        return 0

    def nbytes(self) -> int:
        return self.keys.nbytes() + self.values.nbytes() + self.index.nbytes()

    def arrays(self) -> list[mx.array]:
        return [b for b in (self.keys.buffer, self.values.buffer, *self.index.buffers()) if b is not None]
