"""Index keys of block-sparse attention: raw keys of every token, and one pooled key of every complete block.

Invariant: pooled keys exist for exactly the first `length // ratio` blocks. A block is pooled once, when its last token
arrives, and is dropped only when one of its tokens is; it is never rebuilt.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from .rows import Rows

__all__ = ["IndexKeys"]

Pool = Callable[[mx.array, int], mx.array]


class IndexKeys:
    """Raw keys [rows, d] and pooled keys [rows // ratio, d] of one attention layer."""

    def __init__(self, ratio: int) -> None:
        self.ratio = ratio
        self._raw, self._pooled = Rows(), Rows()

    @property
    def length(self) -> int:
        return self._raw.length

    @property
    def blocks(self) -> int:
        """Complete blocks."""
        return self._pooled.length

    def append(self, raw: mx.array, pool: Pool) -> None:
        """Add raw keys [T, d]; `pool(rows [n * ratio, d], first block) -> [n, d]` makes the keys of new blocks."""
        self._raw.append(raw)
        first, last = self._pooled.length, self._raw.length // self.ratio
        if last > first:
            rows = self._raw.slice(first * self.ratio, last * self.ratio)
            self._pooled.append(pool(rows, first))

    def pooled(self) -> mx.array:
        """Keys of the complete blocks, [blocks, d]."""
        return self._pooled.valid()

    def cut(self, length: int) -> None:
        """Forget tokens from `length` on, and with them the blocks that they completed."""
        self._raw.cut(length)
        self._pooled.cut(length // self.ratio)

    def nbytes(self) -> int:
        return self._raw.nbytes() + self._pooled.nbytes()

    def buffers(self) -> list[mx.array | None]:
        return [self._raw.buffer, self._pooled.buffer]
