"""Rounding of weights to MLX's storage forms: the same bytes as mx.quantize."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen_chat_mlx.engine.checkpoint.codes import Form, encode, f32_to_bf16, form_for
from qwen_chat_mlx.engine.checkpoint.quant import bf16_to_f32

FORMS = [
    Form("mxfp4", 4, 32), Form("mxfp8", 8, 32),
    Form("affine", 8, 64), Form("affine", 8, 32), Form("affine", 4, 64), Form("affine", 4, 32),
]  # fmt: skip


def _weights(seed: int, scale: float = 0.05) -> np.ndarray:
    """BF16 bits [16, 256] with groups of every sort: zeros, one value, one sign, one outlier, ties, tiny and huge ones."""
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((16, 256)).astype(np.float32) * np.float32(scale)
    w[0] = 0
    w[1] = 0.375
    w[2] = np.abs(w[2])
    w[3] = -np.abs(w[3])
    w[4, ::64] = 40.0
    w[5] = np.tile(np.linspace(-6, 6, 97)[:64], 4)  # ties of the 4-bit values
    w[6] = np.tile(np.linspace(-448, 448, 64), 4)
    w[7] *= 1e-30
    w[8] *= 1e30
    w[9] = rng.choice([-0.0, 0.0, 1.0, -1.0], 256)
    w[10] = 2.0 ** rng.integers(-12, 12, 256)
    return f32_to_bf16(w)


def _same(bits: np.ndarray, form: Form) -> None:
    ours = encode(bf16_to_f32(bits), form)
    theirs = mx.quantize(mx.array(bits).view(mx.bfloat16), group_size=form.group, bits=form.bits, mode=form.kind)
    np.testing.assert_array_equal(ours.weight, np.array(theirs[0]))
    scales = theirs[1].view(mx.uint16) if form.kind == "affine" else theirs[1]
    np.testing.assert_array_equal(ours.scales, np.array(scales))
    assert (ours.biases is not None) == (len(theirs) == 3) == form.has_biases
    if ours.biases is not None:
        np.testing.assert_array_equal(ours.biases, np.array(theirs[2].view(mx.uint16)))


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f"{f.kind}-{f.bits}-{f.group}")
@pytest.mark.parametrize("seed", [0, 1])
def test_codes_are_those_of_mlx_bit_for_bit(form: Form, seed: int) -> None:
    _same(_weights(seed), form)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(FORMS), st.integers(0, 2**32 - 1), st.floats(1e-6, 1e6))
def test_codes_of_any_random_matrix_are_those_of_mlx(form: Form, seed: int, scale: float) -> None:
    w = np.random.default_rng(seed).standard_normal((8, 128)).astype(np.float32) * np.float32(scale)
    _same(f32_to_bf16(w), form)


def test_bf16_rounding_is_that_of_mlx() -> None:
    w = np.random.default_rng(3).standard_normal(4096).astype(np.float32)
    np.testing.assert_array_equal(f32_to_bf16(w), np.array(mx.array(w).astype(mx.bfloat16).view(mx.uint16)))


def test_a_width_that_no_group_divides_has_no_form() -> None:
    assert form_for("mxfp4", (64, 32)) == Form("mxfp4", 4, 32)
    assert form_for("affine8", (64, 128)) == Form("affine", 8, 64)
    assert form_for("affine8", (64, 32)) == Form("affine", 8, 32)
    assert form_for("affine4", (64, 24)) is None
    assert form_for("mxfp8", (48,)) is None
