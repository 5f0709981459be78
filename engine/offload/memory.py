"""Raw memory that threads read into and MLX computes from: one over-allocated buffer, cut into aligned pieces.

Invariants: the buffer is never assigned to by MLX (that would move it while views live), and whoever rewrites a piece
has evaluated every array that reads it. Large CPU buffers start some bytes past a page, hence the over-allocation. MLX
counts an axis in 31 bits: the buffer has rows of a page, and nothing flattens more than a range that was asked for.
"""

from __future__ import annotations

import ctypes

import mlx.core as mx

__all__ = ["Pool"]

PAGE = 4096


class Pool:
    """`count` pieces of `piece_bytes`, each beginning on a page; a piece is seen as memory and as a uint8 array."""

    def __init__(self, count: int, piece_bytes: int) -> None:
        self.count, self.piece_bytes = count, piece_bytes
        self._stride = -(-piece_bytes // PAGE) * PAGE
        self._array = mx.zeros((count * self._stride // PAGE + 1, PAGE), dtype=mx.uint8)
        mx.eval(self._array)
        self._memory = memoryview(self._array).cast("B")  # pyright: ignore[reportArgumentType]
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._start = -address % PAGE

    @staticmethod
    def bytes_for(count: int, piece_bytes: int) -> int:
        """Memory that a pool takes."""
        return count * (-(-piece_bytes // PAGE) * PAGE) + PAGE

    def memory(self, piece: int) -> memoryview:
        """The piece as writable bytes, page-aligned."""
        first = self._start + piece * self._stride
        return self._memory[first : first + self.piece_bytes]

    def array(self, piece: int, first: int = 0, size: int | None = None) -> mx.array:
        """`size` bytes of the piece from byte `first` on (all of it), as uint8 [size], sharing memory.

        Made on the engine's thread. `size` is below 2 GiB.
        """
        size = self.piece_bytes - first if size is None else size
        row, column = divmod(self._start + piece * self._stride + first, PAGE)
        rows = self._array[row : row + -(-(column + size) // PAGE)]
        return rows.reshape(-1)[column : column + size]

    @property
    def nbytes(self) -> int:
        return self._array.nbytes
