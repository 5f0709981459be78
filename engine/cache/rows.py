"""A growing array of rows that is appended to at the end and cut from the end."""

from __future__ import annotations

import mlx.core as mx

__all__ = ["Rows"]

_GROW = 256


class Rows:
    """A growing array [..., rows, d] with its row axis second to last; capacity grows in steps, contents never move
    backwards."""

    def __init__(self) -> None:
        self._buffer: mx.array | None = None
        self.length = 0

    def append(self, x: mx.array) -> None:
        """Put x [..., n, d] behind the rows that count."""
        need = self.length + x.shape[-2]
        if self._buffer is None or need > self._buffer.shape[-2]:
            # A quarter more than needed keeps the number of copies logarithmic at long contexts.
            room = -(-(need + need // 4) // _GROW) * _GROW if self._buffer is not None else -(-need // _GROW) * _GROW
            grown = mx.zeros((*x.shape[:-2], room, x.shape[-1]), dtype=x.dtype)
            if self._buffer is not None and self.length:
                grown[..., : self.length, :] = self._buffer[..., : self.length, :]
            self._buffer = grown
        self._buffer[..., self.length : need, :] = x
        self.length = need

    def cut(self, length: int) -> None:
        """Forget the rows from `length` on; their memory stays for the next append."""
        self.length = min(self.length, length)

    def valid(self) -> mx.array:
        """The rows that count, [..., length, d]."""
        assert self._buffer is not None
        return self._buffer[..., : self.length, :]

    def slice(self, start: int, stop: int) -> mx.array:
        assert self._buffer is not None
        return self._buffer[..., start:stop, :]

    @property
    def buffer(self) -> mx.array | None:
        return self._buffer

    def nbytes(self) -> int:
        return 0 if self._buffer is None else self._buffer.nbytes
