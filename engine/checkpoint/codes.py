"""Rounding of weights to MLX's storage forms (mxfp4, mxfp8, affine), bit for bit what mx.quantize stores. Numpy only.

A matrix [rows, columns] becomes codes (uint32, little-endian bits along a row), one scale a group of `group` columns, and
for affine one bias a group. Values come in as float32 and must be finite.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Codes", "Form", "encode", "f32_to_bf16", "form_for", "form_of"]

_FP4_EDGES = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)
"""Midpoints between the neighbouring values 0, .5, 1, 1.5, 2, 3, 4, 6."""


@dataclass(frozen=True, slots=True)
class Form:
    """A storage form: `kind` is MLX's mode ("mxfp4", "mxfp8" or "affine")."""

    kind: str
    bits: int
    group: int

    @property
    def has_biases(self) -> bool:
        return self.kind == "affine"

    @property
    def scale_dtype(self) -> str:
        """The safetensors dtype of scales (and biases)."""
        return "BF16" if self.kind == "affine" else "U8"


@dataclass(frozen=True, slots=True)
class Codes:
    """One encoded matrix: `weight` uint32 [R, C * bits / 32]; `scales` and `biases` [R, C / group]."""

    weight: np.ndarray
    scales: np.ndarray
    """uint8 exponents (bias 127) for mxfp4 and mxfp8, BF16 bits (uint16) for affine."""
    biases: np.ndarray | None


def form_for(name: str, columns: tuple[int, ...]) -> Form | None:
    """The form that the words "mxfp4", "mxfp8", "affine8", "affine4" mean for matrices of these widths; None if none fits."""
    if name in ("mxfp4", "mxfp8"):
        return Form(name, int(name[-1]), 32) if all(n % 32 == 0 for n in columns) else None
    for group in (64, 32):
        if all(n % group == 0 for n in columns):
            return Form("affine", int(name[-1]), group)
    return None


def form_of(name: str, group: int) -> Form | None:
    """The form of a word that `form_for` takes, with the group it was stored with; None for "bf16"."""
    if name == "bf16":
        return None
    return Form(name if name.startswith("mx") else "affine", int(name[-1]), group)


def f32_to_bf16(values: np.ndarray) -> np.ndarray:
    """BF16 bits (uint16) of finite float32 values, to the nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)).astype(np.uint16)


def encode(values: np.ndarray, form: Form) -> Codes:
    """Encode finite float32 [R, C]; C is a multiple of the form's group."""
    rows, columns = values.shape
    groups = values.reshape(rows, columns // form.group, form.group)
    if form.kind == "affine":
        codes, scales, biases = _affine(groups, form.bits)
    else:
        codes, scales = _microscaled(groups, form.bits)
        biases = None
    return Codes(_packed(codes.reshape(rows, columns), form.bits), scales, biases)


def _affine(groups: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """value = scale * code + bias. The end of larger magnitude is hit exactly, so the scale may be negative."""
    most = np.float32((1 << bits) - 1)
    low, high = groups.min(-1), groups.max(-1)
    below = np.abs(low) > np.abs(high)
    scale = np.maximum((high - low) / most, np.float32(1e-7))
    scale = np.where(below, scale, -scale)
    edge = np.where(below, low, high)
    steps = np.rint(edge / scale)
    exact = steps != 0
    scale = np.where(exact, edge / np.where(exact, steps, np.float32(1)), scale)
    bias = np.where(exact, edge, np.float32(0))
    codes = np.clip(np.rint((groups - bias[..., None]) / scale[..., None]), 0, most).astype(np.uint8)
    return codes, f32_to_bf16(scale), f32_to_bf16(bias)


def _microscaled(groups: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """value = 2^(scale - 127) * code, the smallest power of two that keeps the largest value in range."""
    most = np.abs(groups).max(-1) / np.float32(6 if bits == 4 else 448)
    mantissa, exponent = np.frexp(most)  # most = mantissa * 2^exponent, mantissa in [0.5, 1)
    exponent = np.where(mantissa == 0.5, exponent - 1, exponent)
    exponent = np.clip(np.where(most == 0, 0, exponent), -127, 127)
    scaled = groups * np.ldexp(np.float32(1), -exponent)[..., None].astype(np.float32)
    codes = _e2m1(scaled) if bits == 4 else _e4m3(scaled)
    return codes, (exponent + 127).astype(np.uint8)


def _e2m1(x: np.ndarray) -> np.ndarray:
    """4-bit codes: sign, two exponent bits, one mantissa bit; the nearest value, ties towards zero, zero without a sign."""
    size = np.abs(x)
    codes = np.zeros(x.shape, np.uint8)
    for edge in _FP4_EDGES:
        codes += size > edge
    return codes | (((x < 0) & (codes > 0)).astype(np.uint8) << np.uint8(3))


def _e4m3(x: np.ndarray) -> np.ndarray:
    """F8_E4M3 codes of float32 values, nearest, ties to even, at most 448."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    sign = (bits >> np.uint32(24)) & np.uint32(0x80)
    size = bits & np.uint32(0x7FFFFFFF)
    # Normal codes: move the exponent's bias from 127 to 7 and round away 20 mantissa bits.
    odd = (size >> np.uint32(20)) & np.uint32(1)
    normal = (size - np.uint32(120 << 23) + np.uint32(0x7FFFF) + odd) >> np.uint32(20)
    # Subnormal codes: adding 2^14 leaves steps of 2^-9 in the mantissa, rounded by the addition itself.
    magic = np.float32(16384)
    small = (size.view(np.float32) + magic).view(np.uint32) - magic.view(np.uint32)
    codes = np.where(size < np.uint32(121 << 23), small, normal)
    codes = np.where(size >= np.uint32(543 << 21), np.uint32(0x7E), codes)
    return (codes | sign).astype(np.uint8)


def _packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes [R, C] of 4 or 8 bits -> uint32 [R, C * bits / 32], the first code in the lowest bits."""
    if bits == 4:
        codes = codes[:, 0::2] | (codes[:, 1::2] << np.uint8(4))
    return np.ascontiguousarray(codes).view("<u4")
