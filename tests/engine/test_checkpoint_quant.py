"""How tensors are stored, and their values: FP8 codes by value, block and scalar scales, every bad scale refused."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen_chat_mlx.engine.checkpoint.header import TensorEntry
from qwen_chat_mlx.engine.checkpoint.index import open_checkpoint
from qwen_chat_mlx.engine.checkpoint.quant import (
    E4M3,
    Quantization,
    bf16_to_f32,
    check_scales,
    dequantise_block,
    dequantise_scalar,
    read_f32,
    read_quantization,
    stored_as,
    widen,
)
from qwen_chat_mlx.engine.errors import CheckpointError

FP8 = Quantization("fp8", (128, 128))
TABLE = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding"
NUMPY = {"BF16": np.uint16, "F8_E4M3": np.uint8, "F32": np.float32, "F16": np.float16, "I64": np.int64}


def bf16(values):
    """BF16 bits of float32 values that BF16 holds exactly."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    assert not (bits & 0xFFFF).any()
    return (bits >> 16).astype(np.uint16)


def write(folder, tensors):
    """name -> (dtype, array) as one safetensors file and its index."""
    header, data = {}, b""
    for name, (dtype, array) in tensors.items():
        raw = np.ascontiguousarray(array, NUMPY[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    raw = json.dumps(header).encode()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    return open_checkpoint(folder).entries


def entry(name, dtype, *shape):
    return {name: TensorEntry(name, dtype, shape, "model.safetensors", 0, 0)}


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "value"),
    [
        (0x00, 0.0), (0x01, 2**-9), (0x07, 7 * 2**-9), (0x08, 2**-6), (0x09, 1.125 * 2**-6), (0x30, 0.5), (0x38, 1.0),
        (0x3C, 1.5), (0x40, 2.0), (0x78, 256.0), (0x7E, 448.0), (0xB8, -1.0), (0xFE, -448.0), (0x81, -(2**-9)),
    ],
)  # fmt: skip
def test_each_fp8_code_has_its_published_value(code, value):
    assert E4M3[code] == np.float32(value)


def test_the_fp8_table_has_two_zeros_two_nans_and_no_infinity():
    assert E4M3.shape == (256,)
    assert E4M3.dtype == np.float32
    assert np.flatnonzero(np.isnan(E4M3)).tolist() == [0x7F, 0xFF]
    assert not np.isinf(E4M3).any()
    assert np.flatnonzero(E4M3 == 0).tolist() == [0x00, 0x80]
    assert math.copysign(1, E4M3[0x80]) == -1
    assert (np.diff(E4M3[:0x7F]) > 0).all()
    assert np.array_equal(E4M3[0x80:0xFF], -E4M3[:0x7F])


def test_bf16_widens_exactly():
    bits = np.array([[0x3F80, 0xC000], [0x0001, 0x7F80], [0x8000, 0x7F7F]], np.uint16)
    wide = bf16_to_f32(bits)
    assert wide.dtype == np.float32
    assert wide.shape == (3, 2)
    assert wide[0].tolist() == [1.0, -2.0]
    assert wide[1, 0] == np.float32(2.0**-133)
    assert np.isinf(wide[1, 1])
    assert np.isnan(bf16_to_f32(np.uint16(0x7FC0)))
    assert bf16_to_f32(np.zeros((0, 3), np.uint16)).shape == (0, 3)


def test_plain_dtypes_widen_to_float32():
    assert widen(np.array([1.5], np.float16), "F16").dtype == np.float32
    assert widen(np.array([1.5], np.float32), "F32") == np.float32(1.5)
    assert widen(np.array([0x38], np.uint8), "F8_E4M3") == np.float32(1.0)
    assert widen(bf16([3.0]), "BF16") == np.float32(3.0)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (4, 6), (5, 7), (8, 6), (3, 13)])
def test_a_block_scale_covers_its_block_to_the_ragged_edge(rows, columns):
    rng = np.random.default_rng(rows * columns)
    codes = rng.integers(0, 0x7F, (rows, columns)).astype(np.uint8)
    scales = bf16(2.0 ** rng.integers(-8, 8, (-(-rows // 4), -(-columns // 6))))
    values = dequantise_block(codes, scales, (4, 6))
    for r in range(rows):
        for c in range(columns):
            assert values[r, c] == E4M3[codes[r, c]] * bf16_to_f32(scales)[r // 4, c // 6]
    assert values.dtype == np.float32
    assert np.array_equal(dequantise_block(codes[None], scales[None], (4, 6))[0], values)


def test_one_scale_covers_a_whole_table():
    codes = np.array([[0x38, 0xB8], [0x7E, 0x01]], np.uint8)
    for scale in (bf16([0.5]), bf16(0.5)):
        assert dequantise_scalar(codes, scale).tolist() == [[0.5, -0.5], [224.0, 2.0**-10]]


def test_stored_tensors_are_read_by_value(tmp_path):
    codes = np.full((130, 129), 0x38, np.uint8)
    entries = write(
        tmp_path,
        {
            "a.weight": ("F8_E4M3", codes),
            "a.weight_scale_inv": ("BF16", bf16([[1.0, 2.0], [4.0, 8.0]])),
            TABLE + ".shard_0.weight": ("F8_E4M3", codes[:2]),
            TABLE + ".shard_1.weight": ("F8_E4M3", codes[:3]),
            TABLE + ".weight_scale": ("BF16", bf16([0.25])),
            "b.weight": ("BF16", bf16([[7.0]])),
            "c.weight": ("F32", np.float32([0.1])),
        },
    )
    values = read_f32(entries, "a.weight", FP8)
    assert values[0, 0] == 1
    assert values[127, 128] == 2
    assert values[128, 127] == 4
    assert values[129, 128] == 8
    for shard, rows in ((0, 2), (1, 3)):
        table = read_f32(entries, f"{TABLE}.shard_{shard}.weight", Quantization(None, None))
        assert table.shape == (rows, 129)
        assert (table == 0.25).all()
    assert read_f32(entries, "b.weight", FP8).tolist() == [[7.0]]
    assert read_f32(entries, "c.weight", FP8) == np.float32(0.1)


def test_a_whole_table_finds_the_same_scale():
    entries = entry(TABLE + ".weight", "F8_E4M3", 4, 2) | entry(TABLE + ".weight_scale", "BF16", 1)
    stored = stored_as(entries, TABLE + ".weight", FP8)
    assert (stored.kind, stored.scale, stored.block) == ("fp8_scalar", TABLE + ".weight_scale", None)


# --- what config.json says --------------------------------------------------------------------------------------------


def test_the_block_size_is_read_from_the_config_wherever_it_stands():
    table = {"quant_method": "fp8", "weight_block_size": [64, 32], "modules_to_not_convert": ["lm_head"]}
    assert read_quantization({"quantization_config": table}, "c") == Quantization("fp8", (64, 32))
    assert read_quantization({"text_config": {"quantization_config": table}}, "c") == Quantization("fp8", (64, 32))
    assert read_quantization({"text_config": {}}, "c") == Quantization(None, None)
    assert read_quantization({"quantization_config": None, "text_config": 3}, "c") == Quantization(None, None)
    assert read_quantization({"quantization_config": {"quant_method": "fp8"}}, "c") == Quantization("fp8", None)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quantization_config": {"quant_method": "awq"}}, "'awq'"),
        ({"quantization_config": {"quant_method": "modelopt", "weight_block_size": [1, 1]}}, "'modelopt'"),
        ({"quantization_config": {}}, "None"),
        ({"quantization_config": "fp8"}, "'fp8'"),
        ({"quantization_config": ["fp8"]}, "fp8"),
        ({"quantization": {"bits": 4, "group_size": 64, "mode": "affine"}}, "MLX"),
        ({"quantization": {"bits": 4}, "quantization_config": {"bits": 4}}, "MLX"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}}, "[128]"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 0]}}, "[128, 0]"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128.0, 128]}}, "128.0"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": 128}}, "128"),
    ],
)
def test_a_quantisation_that_is_not_known_is_named(config, named):
    with pytest.raises(CheckpointError) as caught:
        read_quantization(config, "folder/config.json")
    assert named in str(caught.value)
    assert caught.value.path == "folder/config.json"


# --- how a tensor is stored -------------------------------------------------------------------------------------------


def refused(entries, name="a.weight", quantization=FP8):
    with pytest.raises(CheckpointError) as caught:
        stored_as(entries, name, quantization)
    return caught.value


@pytest.mark.parametrize(("shape", "scale"), [((640, 2560), (5, 20)), ((2560, 640), (20, 5)), ((1, 129), (1, 2))])
def test_a_block_scale_has_one_value_for_each_block(shape, scale):
    entries = entry("a.weight", "F8_E4M3", *shape) | entry("a.weight_scale_inv", "BF16", *scale)
    stored = stored_as(entries, "a.weight", FP8)
    assert (stored.kind, stored.scale, stored.block) == ("fp8_block", "a.weight_scale_inv", (128, 128))
    wrong = entries | entry("a.weight_scale_inv", "BF16", *reversed(scale), 1)
    assert refused(wrong).tensor == "a.weight_scale_inv"


def test_plain_floats_need_no_scale():
    for dtype in ("BF16", "F16", "F32"):
        assert stored_as(entry("a.weight", dtype, 3), "a.weight", FP8).kind == "plain"


def test_what_cannot_be_a_weight_is_refused_with_the_reason():
    codes, scale = entry("a.weight", "F8_E4M3", 4, 4), entry("a.weight_scale_inv", "BF16", 1, 1)
    assert "is missing" in str(refused({"a.wait": codes["a.weight"]}))
    assert "'a.wait'" in str(refused({"a.wait": codes["a.weight"]}))
    for dtype in ("F8_E5M2", "I64", "U32", "U8"):
        assert dtype in str(refused(entry("a.weight", dtype, 4, 4)))
    assert "neither 'a.weight_scale_inv' nor 'a.weight_scale'" in str(refused(codes))
    assert "weight_block_size" in str(refused(codes | scale, quantization=Quantization("fp8", None)))
    assert "weight_block_size" in str(refused(codes | scale, quantization=Quantization(None, None)))
    assert "F32" in str(refused(codes | entry("a.weight_scale_inv", "F32", 1, 1)))
    assert "[2]" in str(refused(codes | entry("a.weight_scale", "BF16", 2)))
    fused = entry("a.weight", "F8_E4M3", 2, 4, 4) | entry("a.weight_scale_inv", "BF16", 2, 1, 1)
    assert "only matrices" in str(refused(fused))


# --- scales -----------------------------------------------------------------------------------------------------------

SCALE = TensorEntry("a.weight_scale_inv", "BF16", (2, 3), "model.safetensors", 0, 12)


@pytest.mark.parametrize("bits", [0x7FC0, 0x7F81, 0xFFC0, 0x7F80, 0xFF80, 0x0000, 0x8000, 0xBF80, 0x8001])
def test_a_scale_that_is_not_positive_and_finite_is_named_with_its_place(bits):
    scales = np.full((2, 3), 0x3F80, np.uint16)
    check_scales(scales, SCALE)
    scales[1, 2] = bits
    with pytest.raises(CheckpointError) as caught:
        check_scales(scales, SCALE)
    assert "[1, 2]" in str(caught.value)
    assert caught.value.tensor == SCALE.name
    assert caught.value.path == SCALE.path


@settings(deadline=None)
@given(st.integers(0, 0xFFFF))
def test_exactly_the_positive_finite_numbers_are_scales(bits):
    value = float(bf16_to_f32(np.uint16(bits)))
    try:
        check_scales(np.array([bits], np.uint16), SCALE)
        assert math.isfinite(value)
        assert value > 0
    except CheckpointError:
        assert not (math.isfinite(value) and value > 0)


def test_bad_scales_are_refused_where_values_are_read(tmp_path):
    entries = write(
        tmp_path,
        {"a.weight": ("F8_E4M3", np.zeros((2, 2))), "a.weight_scale_inv": ("BF16", np.full((1, 1), 0x7FC0, np.uint16))},
    )
    with pytest.raises(CheckpointError, match="nan"):
        read_f32(entries, "a.weight", FP8)
