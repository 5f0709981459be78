"""Rotary positions for text: one position a token, rotation in halves of the first `dims` features."""

from __future__ import annotations

import mlx.core as mx

__all__ = ["Rope"]


class Rope:
    """Rotation of the first `dims` features by position * theta^(-2i/dims). Text uses equal positions on all three
    axes of the published interleaved multi-axis rotation, which then is this plain one."""

    def __init__(self, dims: int, theta: float) -> None:
        self._frequencies = 1.0 / (theta ** (mx.arange(0, dims, 2, dtype=mx.float32) / dims))
        mx.eval(self._frequencies)
        self.dims = dims

    def table(self, first: int, count: int, step: int = 1) -> tuple[mx.array, mx.array]:
        """(cos, sin), each [count, dims] float32, of the positions first, first + step, ..."""
        positions = mx.arange(first, first + count * step, step, dtype=mx.float32)
        angles = positions[:, None] * self._frequencies[None]
        angles = mx.concatenate([angles, angles], axis=-1)
        return mx.cos(angles), mx.sin(angles)

    def turn(self, x: mx.array, table: tuple[mx.array, mx.array]) -> mx.array:
        """x [T, heads, d] or [T, d] rotated by the table's T positions, in x's dtype."""
        cos, sin = (t.astype(x.dtype) for t in table)
        if x.ndim == 3:
            cos, sin = cos[:, None], sin[:, None]
        head, rest = x[..., : self.dims], x[..., self.dims :]
        half = self.dims // 2
        swapped = mx.concatenate([-head[..., half:], head[..., :half]], axis=-1)
        return mx.concatenate([head * cos + swapped * sin, rest], axis=-1)
