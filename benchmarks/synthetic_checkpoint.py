"""A Qwen4-Exp checkpoint in the published FP8 layout, filled with random bytes, whose experts take 8 GiB.

Scales and dense weights keep activations near one, so that values stay finite; text it has none.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from checkpoint_files import TRUNK, Place, Sizes, write_files
from measuring import bf16_bits

__all__ = ["SIZES", "TINY", "write_checkpoint"]

SIZES = Sizes(
    layers=24, hidden=1024, vocab=8192, experts=228, top_k=8, expert_width=512, heads=8, kv_heads=2, head_dim=64,
    key_heads=4, value_heads=8, linear_dim=64, low_rank=64, index_heads=4, index_dim=64, index_budget=512,
    ngram_base=20_000, ngram_rows=321_280, ngram_parts=4, max_context=1024, cut_token=8000, draft=False,
)  # fmt: skip
"""24 layers of 228 experts of 1.5 MiB: 8.02 GiB."""
TINY = replace(
    SIZES, layers=4, hidden=128, vocab=512, experts=16, top_k=2, expert_width=128, heads=2, kv_heads=1, key_heads=2,
    value_heads=4, linear_dim=32, low_rank=16, index_dim=32, index_budget=64, ngram_base=100, ngram_rows=2304,
    cut_token=500,
)  # fmt: skip
"""For tests of the scripts."""
CODE_RMS = 107.0
"""Root mean square of the finite F8_E4M3 codes."""


def _floats(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Values for a BF16 tensor that keep activations near one."""
    draw = rng.standard_normal(shape, np.float32)
    if name.endswith("_scale_inv"):
        columns = shape[1] * 128
        return rng.uniform(0.7, 1.3, shape).astype(np.float32) / (CODE_RMS * columns**0.5)
    if name.endswith(".weight_scale"):
        return np.full(shape, 0.7 / CODE_RMS, np.float32)
    if name.endswith("A_log"):
        return np.log(rng.uniform(0.5, 4.0, shape)).astype(np.float32)
    if len(shape) == 1:
        return draw * 0.1 + (1.0 if name.endswith("linear_attn.norm.weight") else 0.0)
    if "embed_tokens" in name:
        return draw * 0.7
    return draw / np.float32(shape[-1] ** 0.5)


def _codes(n: int, rng: np.random.Generator) -> np.ndarray:
    """Random F8_E4M3 codes; the two that are no numbers become their neighbours."""
    codes = np.frombuffer(rng.bytes(n), np.uint8).copy()
    codes[codes & 0x7F == 0x7F] ^= 1
    return codes


def _constants(s: Sizes) -> dict[str, Sequence[int]]:
    from qwen_chat_mlx.engine.layers.ngram import NgramHash

    built = NgramHash.build(
        vocab=s.vocab, ngram=3, heads=8, base=s.ngram_base, layer=0, seed=1234, cut_token=s.cut_token
    )
    stem = f"{TRUNK}layers.1.ple.ple_embedding."
    return {
        f"{stem}layer_multipliers": built.multipliers,
        f"{stem}ngram_heads_vocab_sizes": built.sizes,
        f"{stem}ngram_heads_offsets": built.offsets,
    }


def write_checkpoint(folder: Path, s: Sizes, shards: int, seed: int) -> None:
    """The whole checkpoint, on the disk and out of the page cache when this returns."""
    places = write_files(folder, s, "fp8", shards)
    constants = _constants(s)
    by_path: dict[Path, list[tuple[str, Place]]] = {}
    for name, place in places.items():
        by_path.setdefault(place.path, []).append((name, place))
    for number, (path, tensors) in enumerate(sorted(by_path.items())):
        rng = np.random.Generator(np.random.SFC64((seed, number)))
        with path.open("r+b", buffering=16 << 20) as out:
            out.seek(min(p.offset for _, p in tensors))
            for name, place in sorted(tensors, key=lambda t: t[1].offset):
                if place.dtype == "I64":
                    out.write(np.asarray(constants[name], "<i8").tobytes())
                elif place.dtype == "F8_E4M3":
                    out.write(_codes(place.n_bytes, rng).data)
                else:
                    out.write(bf16_bits(_floats(name, place.shape, rng)).data)
            out.flush()
            os.fsync(out.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
