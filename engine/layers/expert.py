"""One expert's SwiGLU from the raw bytes that were read: stored codes -> matrices in the computing dtype -> product."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ..offload.layout import ExpertLayout
from ..offload.memory import shape_numbers
from .device import on_gpu
from .linear import gathered_product, quantised_product
from .moe import silu

__all__ = ["APART_BYTES", "ExpertMath"]

APART_BYTES = 16 << 20
"""Matrices that a gathered product makes of stored ones, in float32; at least those of one expert."""
_MANY = 1 << 20
_RAISED = 2.0**120
_MOST_RAISED = 2.0**7
"""Scales below this can be raised within float32."""

Views = Mapping[str, mx.array]
"""Part's role -> what is stored of it."""


@dataclass(frozen=True, slots=True)
class _Scales:
    """Block scales of one layer's experts for one role: float32 [E, r, c] and the block they stand for."""

    values: mx.array
    """Times 2^120 where `raised`."""
    block: tuple[int, int]
    raised: bool


class ExpertMath:
    """Computes experts of one pool. Its inputs decide its output bits: never where or when the bytes were read."""

    most_apart: int
    """Rows of one `apart`: those of packed experts are computed from the stored codes, others have matrices made."""

    def __init__(self, layout: ExpertLayout, dtype: mx.Dtype, scales: list[Mapping[str, np.ndarray]]) -> None:
        """`scales[layer]` maps roles to BF16 bits uint16 [E, r, c], {} for experts of plain floats."""
        self._forms = {role: stored.form for role, stored in layout.stored.items() if stored.form is not None}
        self.by_number = any(scales)
        """Whether experts have scales beside their bytes."""
        self._dtype = dtype
        numbers = sum(shape_numbers(p.shape) for p in layout.parts)
        self.most_apart = _MANY if self._forms else max(1, APART_BYTES // (4 * numbers))
        self._scales: list[dict[str, _Scales]] = []
        for layer in scales:
            found = {}
            for role, bits in layer.items():
                block = layout.stored[role].block
                assert block is not None
                values = mx.array(bits).view(mx.bfloat16).astype(mx.float32)
                raised = not on_gpu() and float(mx.abs(values).max()) < _MOST_RAISED
                found[role] = _Scales(values * _RAISED if raised else values, block, raised)
            self._scales.append(found)
        mx.eval([s.values for layer in self._scales for s in layer.values()])

    def together(self, x: mx.array, views: Views, layer: int, expert: int) -> mx.array:
        """x [m, H] -> [m, H], all rows through one expert in one product; `views` are the stored parts of the expert."""

        def product(x: mx.array, role: str) -> mx.array:
            form = self._forms.get(role)
            if form is None:
                return x @ self._matrix(views[role], role, layer, expert).T
            return quantised_product(x, views[role], views[f"{role}.scales"], views.get(f"{role}.biases"), form)

        return _swiglu(x, product, fused="gate_up" in views)

    def apart(self, x: mx.array, stacks: Views, places: mx.array, layer: int, experts: mx.array) -> mx.array:
        """x [n, 1, H] -> [n, 1, H]: row i through the expert numbered experts[i], whose parts are at places[i].

        `stacks` are [count, *shape]; `places` and `experts` are int32 [n] and may be unknown yet.
        """

        def product(x: mx.array, role: str) -> mx.array:
            form = self._forms.get(role)
            if form is None:
                codes = mx.take(stacks[role], places, axis=0)
                return x @ self._matrix(codes, role, layer, experts).swapaxes(-1, -2)
            return gathered_product(
                x, stacks[role], stacks[f"{role}.scales"], stacks.get(f"{role}.biases"), places, form
            )

        return _swiglu(x, product, fused="gate_up" in stacks)

    def _matrix(self, codes: mx.array, role: str, layer: int, experts: int | mx.array) -> mx.array:
        """Stored codes [..., out, in] of one expert or several as matrices in the computing dtype."""
        scales = self._scales[layer].get(role) if self._scales else None
        if scales is None:
            return codes.astype(self._dtype)
        values = _lowered(codes) if scales.raised else mx.from_fp8(codes, mx.float32)
        return _scaled(values, scales.values[experts], scales.block).astype(self._dtype)


def _lowered(codes: mx.array) -> mx.array:
    """E4M3 codes as float32 values times 2^-120, exactly (the code of NaN, which no weight has, counts as 480).

    Sign, exponent and mantissa only move into place: MLX's conversion goes through half precision, slow on a CPU.
    """
    wide = codes.view(mx.int8).astype(mx.int32) << 20
    return (wide & mx.array(-0x78100000)).view(mx.float32)


def _swiglu(x: mx.array, product: Callable[[mx.array, str], mx.array], *, fused: bool) -> mx.array:
    if fused:
        both = product(x, "gate_up")
        half = both.shape[-1] // 2
        gate, up = both[..., :half], both[..., half:]
    else:
        gate, up = product(x, "gate"), product(x, "up")
    return product(silu(gate) * up, "down")


def _scaled(values: mx.array, scales: mx.array, block: tuple[int, int]) -> mx.array:
    """values [..., R, C] times scales [..., r, c], each for a block of rows and columns (the last one may be cut)."""
    (*many, rows, columns), (r, c) = values.shape, scales.shape[-2:]
    high, wide = rows if r == 1 else block[0], columns if c == 1 else block[1]
    if r * high == rows and c * wide == columns:
        blocks = values.reshape(*many, r, high, c, wide) * scales[..., :, None, :, None]
        return blocks.reshape(*many, rows, columns)
    full = mx.repeat(mx.repeat(scales, high, axis=-2), wide, axis=-1)
    return values * full[..., :rows, :columns]
