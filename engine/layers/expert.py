"""One expert's SwiGLU from the raw bytes that were read: stored codes -> matrices in the computing dtype -> product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ..offload.layout import ExpertLayout, Part
from .linear import quantised_product
from .moe import silu

__all__ = ["ExpertMath"]

_DTYPES = {
    "BF16": mx.bfloat16, "F16": mx.float16, "F32": mx.float32, "F8_E4M3": mx.uint8, "U8": mx.uint8, "U32": mx.uint32,
}  # fmt: skip

Views = dict[str, mx.array]
"""Part's role -> its stored bytes of one expert, sharing memory with its slot."""


@dataclass(frozen=True, slots=True)
class _Scales:
    """Block scales of one layer's experts for one role: float32 [E, r, c] and the block they stand for."""

    values: mx.array
    block: tuple[int, int]


class ExpertMath:
    """Computes experts of one pool. Its inputs decide its output bits: never where or when the bytes were read."""

    def __init__(self, layout: ExpertLayout, dtype: mx.Dtype, scales: list[Mapping[str, np.ndarray]]) -> None:
        """`scales[layer]` maps roles to BF16 bits uint16 [E, r, c], {} for experts of plain floats."""
        self._parts = layout.parts
        self._forms = {role: stored.form for role, stored in layout.stored.items() if stored.form is not None}
        self._dtype = dtype
        self._scales: list[dict[str, _Scales]] = []
        for layer in scales:
            found = {}
            for role, bits in layer.items():
                block = layout.stored[role].block
                assert block is not None
                found[role] = _Scales(mx.array(bits).view(mx.bfloat16).astype(mx.float32), block)
            self._scales.append(found)
        mx.eval([s.values for layer in self._scales for s in layer.values()])

    def views(self, raw: mx.array) -> Views:
        """The parts inside a slot's bytes (uint8 [slot_bytes]), without a copy."""
        return {p.role: _view(raw, p) for p in self._parts}

    def __call__(self, x: mx.array, views: Views, layer: int, expert: int) -> mx.array:
        """x [m, H] -> [m, H]."""
        if "gate_up" in views:
            both = self._product(x, views, "gate_up", layer, expert)
            half = both.shape[-1] // 2
            gate, up = both[:, :half], both[:, half:]
        else:
            gate = self._product(x, views, "gate", layer, expert)
            up = self._product(x, views, "up", layer, expert)
        return self._product(silu(gate) * up, views, "down", layer, expert)

    def _product(self, x: mx.array, views: Views, role: str, layer: int, expert: int) -> mx.array:
        form = self._forms.get(role)
        if form is None:
            return x @ self._matrix(views, role, layer, expert).T
        return quantised_product(x, views[role], views[f"{role}.scales"], views.get(f"{role}.biases"), form)

    def _matrix(self, views: Views, role: str, layer: int, expert: int) -> mx.array:
        codes = views[role]
        scales = self._scales[layer].get(role) if self._scales else None
        if scales is None:
            return codes.astype(self._dtype)
        values = mx.from_fp8(codes, mx.float32)
        return _scaled(values, scales.values[expert], scales.block).astype(self._dtype)


def _view(raw: mx.array, part: Part) -> mx.array:
    return raw[part.slot_offset : part.slot_offset + part.n_bytes].view(_DTYPES[part.dtype]).reshape(part.shape)


def _scaled(values: mx.array, scales: mx.array, block: tuple[int, int]) -> mx.array:
    """values [R, C] times scales [r, c], each of which stands for a block of rows and columns (the last one may be cut)."""
    (rows, columns), (r, c) = values.shape, scales.shape
    high, wide = rows if r == 1 else block[0], columns if c == 1 else block[1]
    if r * high == rows and c * wide == columns:
        return (values.reshape(r, high, c, wide) * scales[:, None, :, None]).reshape(rows, columns)
    full = mx.repeat(mx.repeat(scales, high, axis=0), wide, axis=1)
    return values * full[:rows, :columns]
