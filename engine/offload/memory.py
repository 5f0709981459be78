"""Raw memory that threads read into and MLX computes from: one over-allocated buffer, cut into aligned pieces.

Invariants: the buffer is never assigned to by MLX (that would move it while views live), and whoever rewrites a piece
has evaluated every array that reads it. Large CPU buffers start some bytes past a page, hence the over-allocation. MLX
counts an axis in 31 bits: the buffer has rows of a page, and nothing flattens more than a range that was asked for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import mlx.core as mx

__all__ = ["FLAT_BYTES", "PAGE", "Pool", "shape_numbers"]

PAGE = 4096
FLAT_BYTES = (1 << 31) - 2 * PAGE
"""The longest range of a pool that one array can stand for."""


class Pool:
    """`count` pieces of `piece_bytes`, each beginning on a page; a piece is seen as memory, ranges of pieces as arrays."""

    def __init__(self, count: int, piece_bytes: int) -> None:
        self.count, self.piece_bytes = count, piece_bytes
        self.stride = -(-piece_bytes // PAGE) * PAGE
        """Bytes from one piece to the next."""
        self._array = mx.zeros((count * self.stride // PAGE + 1, PAGE), dtype=mx.uint8)
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
        first = self._start + piece * self.stride
        return self._memory[first : first + self.piece_bytes]

    def arrays(self, first: int, step: int, count: int, dtype: mx.Dtype, shape: Sequence[int]) -> mx.array:
        """The arrays of `shape` at bytes first, first + step, … of the pieces, as [count, *shape] sharing memory.

        Made on the engine's thread. `first` and `step` are multiples of the dtype's size; step * count is at most
        FLAT_BYTES.
        """
        row, column = divmod(self._start + first, PAGE)
        n = shape_numbers(shape)
        length = (count - 1) * step + n * dtype.size
        rows = self._array[row : row + -(-(column + length) // PAGE)]
        flat = rows.reshape(-1)[column : column + length].view(dtype)
        strides = [step // dtype.size]
        for axis in shape:
            n //= axis
            strides.append(n)
        return mx.as_strided(flat, (count, *shape), strides)

    @property
    def nbytes(self) -> int:
        return self._array.nbytes


def shape_numbers(shape: Sequence[int]) -> int:
    """How many numbers an array of this shape holds."""
    n = 1
    for axis in shape:
        n *= axis
    return n
