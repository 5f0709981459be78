"""How a tensor is stored: plain floats, or FP8 codes with a scale per block or one for all; and its values in float32.

Blocks, scales and dtypes are read from config.json and the tensors' own headers, never guessed. The dequantisation here
is the slow obvious numpy form, for resident tensors at load and as the reference for faster ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..errors import CheckpointError
from .codes import Form
from .header import DAMAGED, TensorEntry, shown
from .index import read_tensor
from .names import did_you_mean

__all__ = [
    "E4M3",
    "Quantization",
    "Stored",
    "bad_scale",
    "bf16_to_f32",
    "check_scales",
    "dequantise_block",
    "dequantise_scalar",
    "read_f32",
    "read_quantization",
    "stored_as",
    "widen",
]

_RELEASE = "Use the BF16 or the FP8 release."
_PLAIN = ("BF16", "F16", "F32")


@dataclass(frozen=True, slots=True)
class Quantization:
    """What config.json says about quantised tensors: `method` None for a checkpoint of plain floats."""

    method: Literal["fp8"] | None
    block: tuple[int, int] | None
    """Rows and columns that share one scale (`weight_block_size`); None where config.json names none."""


@dataclass(frozen=True, slots=True)
class Stored:
    """How one matrix is stored. value = code for `plain`, code * scale for the others."""

    kind: Literal["plain", "fp8_block", "fp8_scalar", "packed"]
    dtype: str
    """The safetensors dtype of the codes."""
    shape: tuple[int, ...]
    scale: str | None = None
    """Canonical name of the scale tensor: BF16 [ceil(R / block rows), ceil(C / block columns)], or one BF16 value."""
    block: tuple[int, int] | None = None
    form: Form | None = None
    """Of `packed`: MLX's codes; scales (and biases) lie beside them."""


def read_quantization(config: Mapping[str, Any], where: str) -> Quantization:
    """`quantization_config` of a config.json; `where` is its path, for errors. Raises CheckpointError if not known."""
    table = config.get("quantization_config")
    if table is None:
        text = config.get("text_config")
        table = text.get("quantization_config") if isinstance(text, Mapping) else None
    named = isinstance(table, Mapping) and "quant_method" in table
    if not named and config.get("quantization") is not None:
        raise CheckpointError(
            f"{where}: the weights are quantised by MLX ({shown(config['quantization'])}), which is not supported.",
            _RELEASE,
            path=where,
        )
    if table is None:
        return Quantization(None, None)
    if not isinstance(table, Mapping) or table.get("quant_method") != "fp8":
        method = table.get("quant_method") if isinstance(table, Mapping) else table
        raise CheckpointError(
            f"{where}: quantization_config.quant_method {shown(method)} is not known; known is 'fp8'.",
            _RELEASE,
            path=where,
        )
    block = table.get("weight_block_size")
    if block is None:
        return Quantization("fp8", None)
    if not isinstance(block, list) or len(block) != 2 or any(type(n) is not int or n < 1 for n in block):
        raise CheckpointError(
            f"{where}: quantization_config.weight_block_size {shown(block)} is not two positive numbers.",
            DAMAGED,
            path=where,
        )
    return Quantization("fp8", (block[0], block[1]))


def stored_as(entries: Mapping[str, TensorEntry], name: str, quantization: Quantization) -> Stored:
    """How the tensor with the canonical name `name` (of canonical `entries`) is stored.

    Raises CheckpointError when it is missing, of a dtype that holds no weights, or its scale is missing or does not fit.
    """
    entry = entries.get(name)
    if entry is None:
        raise CheckpointError(f"Tensor {shown(name)} is missing.", did_you_mean(name, entries), tensor=name)
    if entry.dtype in _PLAIN:
        return Stored("plain", entry.dtype, entry.shape)
    if entry.dtype != "F8_E4M3":
        raise _fault(entry, f"is {entry.dtype}; weights are read as {', '.join(_PLAIN)} or F8_E4M3")
    if (scale := entries.get(f"{name}_scale_inv")) is not None:
        return _block_stored(entry, scale, f"{name}_scale_inv", quantization)
    scale_name = f"{_table_stem(name)}.weight_scale"
    if (scale := entries.get(scale_name)) is not None:
        _check_scale_entry(scale, ((1,), ()))
        return Stored("fp8_scalar", entry.dtype, entry.shape, scale_name)
    raise _fault(entry, f"is F8_E4M3, but neither {shown(name + '_scale_inv')} nor {shown(scale_name)} is there")


def _table_stem(name: str) -> str:
    """`x.ngram_embedding` of `x.ngram_embedding.shard_7.weight` and of `x.ngram_embedding.weight`."""
    stem = name.removesuffix(".weight")
    head, _, last = stem.rpartition(".")
    return head if last.startswith("shard_") else stem


def _block_stored(entry: TensorEntry, scale: TensorEntry, scale_name: str, quantization: Quantization) -> Stored:
    block = quantization.block
    if block is None:
        raise _fault(entry, "has scales per block, but config.json has no quantization_config.weight_block_size")
    if len(entry.shape) != 2:
        raise _fault(entry, f"has scales per block and the shape {list(entry.shape)}; only matrices can")
    rows, columns = entry.shape
    _check_scale_entry(scale, ((-(-rows // block[0]), -(-columns // block[1])),))
    return Stored("fp8_block", entry.dtype, entry.shape, scale_name, block)


def _check_scale_entry(scale: TensorEntry, shapes: tuple[tuple[int, ...], ...]) -> None:
    if scale.dtype != "BF16" or scale.shape not in shapes:
        raise _fault(scale, f"is {scale.dtype} {list(scale.shape)}, expected BF16 {list(shapes[0])}")


def bad_scale(scales: np.ndarray) -> tuple[int, ...] | None:
    """The position of the first BF16 scale (uint16 bits) that is not positive and finite; None when all are."""
    bad = (scales == 0) | (scales >= 0x7F80)  # zero; infinities, NaNs and everything with the sign bit set
    return tuple(int(i) for i in np.argwhere(bad)[0]) if bad.any() else None


def check_scales(scales: np.ndarray, entry: TensorEntry) -> None:
    """Refuse BF16 scales (uint16 bits) that are not positive and finite: CheckpointError with tensor and position."""
    position = bad_scale(scales)
    if position is not None:
        value = float(bf16_to_f32(scales[position]))
        raise _fault(entry, f"holds the scale {value} at {list(position)}; scales are positive and finite")


def _e4m3_table() -> np.ndarray:
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    magnitude = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    magnitude[(codes & 127) == 127] = np.nan
    table = np.where(codes < 128, magnitude, -magnitude).astype(np.float32)
    table.flags.writeable = False
    return table


E4M3 = _e4m3_table()
"""float32 [256]: the value of each F8_E4M3 code (4 exponent bits, bias 7, no infinity, 0x7F and 0xFF are NaN)."""


def bf16_to_f32(bits: np.ndarray) -> np.ndarray:
    """float32 of BF16 bits (uint16), exact, same shape."""
    return (np.asarray(bits, np.uint32) << np.uint32(16)).view(np.float32)


def widen(array: np.ndarray, dtype: str) -> np.ndarray:
    """float32 of what read_tensor returned for a tensor of this safetensors dtype (BF16, F16, F32 or F8_E4M3)."""
    if dtype == "BF16":
        return bf16_to_f32(array)
    if dtype == "F8_E4M3":
        return E4M3[array]
    return array.astype(np.float32, copy=False)


def dequantise_block(codes: np.ndarray, scales: np.ndarray, block: tuple[int, int]) -> np.ndarray:
    """float32 [..., R, C] of F8_E4M3 codes (uint8 [..., R, C]) and BF16 scales (uint16 [..., ceil(R/b0), ceil(C/b1)])."""
    rows, columns = codes.shape[-2:]
    full = bf16_to_f32(scales).repeat(block[0], -2).repeat(block[1], -1)
    return E4M3[codes] * full[..., :rows, :columns]


def dequantise_scalar(codes: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """float32 of F8_E4M3 codes (uint8, any shape) and one BF16 scale (uint16 [1] or [])."""
    return E4M3[codes] * bf16_to_f32(scale).reshape(())


def read_f32(entries: Mapping[str, TensorEntry], name: str, quantization: Quantization) -> np.ndarray:
    """The values of one weight tensor in float32, read from disk. Raises CheckpointError, for bad scales too."""
    stored = stored_as(entries, name, quantization)
    codes = read_tensor(entries[name])
    if stored.scale is None:
        return widen(codes, stored.dtype)
    scale_entry = entries[stored.scale]
    scales = read_tensor(scale_entry)
    check_scales(scales, scale_entry)
    if stored.block is None:
        return dequantise_scalar(codes, scales)
    return dequantise_block(codes, scales, stored.block)


def _fault(entry: TensorEntry, why: str) -> CheckpointError:
    return CheckpointError(
        f"{entry.path}: tensor {shown(entry.name)} {why}.", _RELEASE, path=entry.path, tensor=entry.name
    )
