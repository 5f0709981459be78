"""Qwen4-Exp checkpoints as files: every name, shape and dtype for given sizes, cut into shards, written as sparse files.

Written from the published layout and sharing no code with the reader, so that the two check each other. Fills nothing in:
a fresh checkpoint is holes behind headers, and whoever made it writes the bytes that it needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

__all__ = ["ITEM_BYTES", "PUBLISHED", "Place", "Sizes", "config_of", "expert_stems", "tensors_of", "write_files"]

ITEM_BYTES = {"BF16": 2, "F8_E4M3": 1, "I64": 8}
TRUNK = "model.language_model."
BLOCK = 128

Kind = tuple[str, tuple[int, ...]]
"""(safetensors dtype, shape)."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What the published config.json says about sizes; every fourth layer is sparse attention."""

    layers: int
    hidden: int
    vocab: int
    experts: int
    top_k: int
    expert_width: int
    heads: int
    kv_heads: int
    head_dim: int
    key_heads: int
    value_heads: int
    linear_dim: int
    low_rank: int
    index_heads: int
    index_dim: int
    index_budget: int
    ngram_base: int
    ngram_rows: int
    """Rows of the n-gram table, padded to a multiple of 128."""
    ngram_parts: int
    max_context: int
    cut_token: int
    draft: bool = True
    vision: bool = False

    @property
    def wide(self) -> int:
        return 4 * self.hidden

    def is_sparse(self, layer: int) -> bool:
        return layer % 4 == 3


PUBLISHED = Sizes(
    layers=48, hidden=2560, vocab=248320, experts=512, top_k=10, expert_width=640, heads=24, kv_heads=2, head_dim=256,
    key_heads=16, value_heads=48, linear_dim=128, low_rank=320, index_heads=4, index_dim=128, index_budget=2048,
    ngram_base=20_000_000, ngram_rows=320_001_536, ngram_parts=128, max_context=262144, cut_token=248044, vision=True,
)  # fmt: skip
"""Qwen3.8-Flash-Next."""


@dataclass(frozen=True)
class Place:
    """Where one tensor lies."""

    path: Path
    offset: int
    n_bytes: int
    dtype: str
    shape: tuple[int, ...]


# ---- names, shapes, dtypes


def _mixer(s: Sizes, *, injects: bool = True) -> dict[str, tuple[int, ...]]:
    found = {
        "hc_norm.weight": (s.wide,),
        "input_mix_weight_down.weight": (s.low_rank, s.wide),
        "input_mix_weight_up.weight": (s.wide, s.low_rank),
    }
    return found | {"block_inject_weight.weight": (4, s.wide)} if injects else found


def _attention(s: Sizes) -> dict[str, tuple[int, ...]]:
    return {
        "q_proj.weight": (2 * s.heads * s.head_dim, s.hidden),
        "k_proj.weight": (s.kv_heads * s.head_dim, s.hidden),
        "v_proj.weight": (s.kv_heads * s.head_dim, s.hidden),
        "o_proj.weight": (s.hidden, s.heads * s.head_dim),
        "q_norm.weight": (s.head_dim,),
        "k_norm.weight": (s.head_dim,),
        "indexer.index_qk_proj.weight": ((s.index_heads + 1) * s.index_dim, s.hidden),
        "indexer.q_layernorm.weight": (s.index_dim,),
        "indexer.k_layernorm.weight": (s.index_dim,),
    }


def _delta(s: Sizes) -> dict[str, tuple[int, ...]]:
    values = s.value_heads * s.linear_dim
    conv = 2 * s.key_heads * s.linear_dim + values
    return {
        "A_log": (s.value_heads,),
        "dt_bias": (s.value_heads,),
        "conv1d.weight": (conv, 1, 4),
        "in_proj_a.weight": (s.value_heads, s.hidden),
        "in_proj_b.weight": (s.value_heads, s.hidden),
        "in_proj_qkv.weight": (conv, s.hidden),
        "in_proj_z.weight": (values, s.hidden),
        "norm.weight": (s.linear_dim,),
        "out_proj.weight": (s.hidden, values),
    }


def _moe(s: Sizes) -> dict[str, tuple[int, ...]]:
    return {
        "gate.weight": (s.experts, s.hidden),
        "shared_expert.gate_proj.weight": (s.expert_width, s.hidden),
        "shared_expert.up_proj.weight": (s.expert_width, s.hidden),
        "shared_expert.down_proj.weight": (s.hidden, s.expert_width),
        "shared_expert_gate.weight": (1, s.hidden),
    }


def _layer(s: Sizes, prefix: str, *, sparse: bool) -> dict[str, tuple[int, ...]]:
    mixer = (("self_attn.", _attention(s)) if sparse else ("linear_attn.", _delta(s)),)
    groups = (("attn_hyper_connection.", _mixer(s)), ("mlp_hyper_connection.", _mixer(s)), ("mlp.", _moe(s)), *mixer)
    return {f"{prefix}{group}{name}": shape for group, names in groups for name, shape in names.items()}


def _vision(hidden: int) -> dict[str, tuple[int, ...]]:
    """The image encoder, which a text engine only counts."""
    d, m = 1152, 4304
    shapes: dict[str, tuple[int, ...]] = {
        "patch_embed.proj.weight": (d, 3, 2, 16, 16), "patch_embed.proj.bias": (d,), "pos_embed.weight": (2304, d),
        "merger.norm.weight": (d,), "merger.norm.bias": (d,), "merger.linear_fc1.weight": (4608, 4608),
        "merger.linear_fc1.bias": (4608,), "merger.linear_fc2.weight": (hidden, 4608), "merger.linear_fc2.bias": (hidden,),
    }  # fmt: skip
    for b in range(27):
        for name, rows, columns in (
            ("attn.qkv", 3 * d, d),
            ("attn.proj", d, d),
            ("mlp.linear_fc1", m, d),
            ("mlp.linear_fc2", d, m),
        ):
            shapes |= {f"blocks.{b}.{name}.weight": (rows, columns), f"blocks.{b}.{name}.bias": (rows,)}
        shapes |= {f"blocks.{b}.{norm}.{part}": (d,) for norm in ("norm1", "norm2") for part in ("weight", "bias")}
    return {f"model.visual.{name}": shape for name, shape in shapes.items()}


def expert_stems(s: Sizes) -> list[str]:
    """Prefixes of all layers with routed experts, the draft layer last."""
    trunk = [f"{TRUNK}layers.{i}.mlp.experts" for i in range(s.layers)]
    return [*trunk, "mtp.layers.0.mlp.experts"] if s.draft else trunk


def _experts(s: Sizes, stem: str, form: str) -> dict[str, Kind]:
    wide, narrow = (s.expert_width, s.hidden), (s.hidden, s.expert_width)
    if form == "bf16":
        return {
            f"{stem}.gate_up_proj": ("BF16", (s.experts, 2 * wide[0], wide[1])),
            f"{stem}.down_proj": ("BF16", (s.experts, *narrow)),
        }
    found: dict[str, Kind] = {}
    for e in range(s.experts):
        for role, shape in (("gate_proj", wide), ("up_proj", wide), ("down_proj", narrow)):
            name = f"{stem}.{e}.{role}.weight"
            found[name] = ("F8_E4M3", shape)
            found[f"{name}_scale_inv"] = ("BF16", (-(-shape[0] // BLOCK), -(-shape[1] // BLOCK)))
    return found


def tensors_of(s: Sizes, form: str) -> dict[str, Kind]:
    """Every tensor of a release; `form` is "bf16" or "fp8"."""
    plain: dict[str, tuple[int, ...]] = {"lm_head.weight": (s.vocab, s.hidden)}
    plain[f"{TRUNK}embed_tokens.weight"] = (s.vocab, s.hidden)
    plain |= {f"{TRUNK}hyper_connection_mixer.{n}": shape for n, shape in _mixer(s, injects=False).items()}
    for i in range(s.layers):
        plain |= _layer(s, f"{TRUNK}layers.{i}.", sparse=s.is_sparse(i))
    ple = f"{TRUNK}layers.1.ple."
    plain |= {f"{ple}{norm}.weight": (s.wide,) for norm in ("norm_key", "norm_query", "norm_conv")}
    plain |= {f"{ple}key_proj.weight": (s.wide, s.hidden), f"{ple}value_proj.weight": (s.hidden, s.hidden)}
    plain[f"{ple}conv1d.weight"] = (s.wide, 1, 4)
    if s.draft:
        plain |= {"mtp.fc_embedding.weight": (s.hidden, s.hidden), "mtp.fc_hidden.weight": (s.hidden, s.hidden)}
        plain |= {"mtp.pre_fc_norm_embedding.weight": (s.hidden,), "mtp.pre_fc_norm_hidden.weight": (s.wide,)}
        plain |= {f"mtp.hyper_connection_mixer.{n}": shape for n, shape in _mixer(s, injects=False).items()}
        plain |= _layer(s, "mtp.layers.0.", sparse=True)
    if s.vision:
        plain |= _vision(s.hidden)
    found: dict[str, Kind] = {name: ("BF16", shape) for name, shape in plain.items()}
    for stem in expert_stems(s):
        found |= _experts(s, stem, form)
    table = f"{ple}ple_embedding."
    for name, count in (("layer_multipliers", 3), ("ngram_heads_vocab_sizes", 16), ("ngram_heads_offsets", 16)):
        found[f"{table}{name}"] = ("I64", (count,))
    shard = (s.ngram_rows // s.ngram_parts, s.hidden // 16)
    stored = "BF16" if form == "bf16" else "F8_E4M3"
    found |= {f"{table}ngram_embedding.shard_{i}.weight": (stored, shard) for i in range(s.ngram_parts)}
    if form == "fp8":
        found[f"{table}ngram_embedding.weight_scale"] = ("BF16", (1,))
    return found


# ---- config.json


def config_of(s: Sizes, form: str) -> dict[str, Any]:
    """config.json with the keys of the published one."""
    text = {
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": s.cut_token, "dtype": "bfloat16",
        "eos_token_id": s.cut_token, "full_attention_interval": 4, "hc_count": 4, "hc_lowrank": s.low_rank,
        "head_dim": s.head_dim, "heads_per_ngram": 8, "hidden_act": "silu", "hidden_size": s.hidden,
        "indexer_budget": s.index_budget, "indexer_compress_ratio": 4, "indexer_head_dim": s.index_dim,
        "indexer_kv_heads": 1, "indexer_n_heads": s.index_heads, "initializer_range": 0.02,
        "layer_types": ["full_attention" if s.is_sparse(i) else "linear_attention" for i in range(s.layers)],
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": s.linear_dim, "linear_num_key_heads": s.key_heads,
        "linear_num_value_heads": s.value_heads, "linear_value_head_dim": s.linear_dim,
        "make_ngram_vocab_size_divisible_by": 128, "mamba_ssm_dtype": "float32",
        "max_position_embeddings": s.max_context, "model_type": "qwen4_exp_text",
        "moe_intermediate_size": s.expert_width,
        "mtp": {"hybrid": True, "layer_types": ["full_attention"], "mtp_use_hidden_state_from_layer": None,
                "num_hidden_layers": 1, "rope_theta": 10000000},
        "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False, "ngram_size": 3,
        "ngram_vocab_size_base": s.ngram_base, "num_attention_heads": s.heads, "num_experts": s.experts,
        "num_experts_per_tok": s.top_k, "num_hidden_layers": s.layers, "num_key_value_heads": s.kv_heads,
        "output_gate_type": "sigmoid", "output_router_logits": False, "pad_token_id": None,
        "partial_rotary_factor": 0.25, "ple_conv_kernel_size": 4, "ple_embed_dim": s.hidden, "ple_layer_ids": [2],
        "rms_norm_eps": 1e-06,
        "rope_parameters": {"mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
                            "rope_theta": 10000000, "rope_type": "default"},
        "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": s.expert_width,
        "split_ngram_parts": s.ngram_parts, "tie_word_embeddings": False, "use_cache": True, "vocab_size": s.vocab,
    }  # fmt: skip
    config: dict[str, Any] = {
        "architectures": ["Qwen4ExpForConditionalGeneration"], "language_model_only": not s.vision,
        "model_type": "qwen4_exp", "text_config": text, "tie_word_embeddings": False,
        "transformers_version": "5.8.0.dev0",
    }  # fmt: skip
    if s.vision:
        config |= {
            "image_token_id": 248056, "video_token_id": 248057, "vision_start_token_id": 248053,
            "vision_end_token_id": 248054,
            "vision_config": {
                "deepstack_visual_indexes": [], "depth": 27, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1152,
                "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 4304, "model_type": "qwen4_exp",
                "num_heads": 16, "num_position_embeddings": 2304, "out_hidden_size": s.hidden, "patch_size": 16,
                "spatial_merge_size": 2, "temporal_patch_size": 2,
            },
        }  # fmt: skip
    if form == "fp8":
        config["quantization_config"] = {
            "quant_method": "fp8", "activation_scheme": "dynamic", "weight_per_tensor": False, "act_per_tensor": False,
            "weight_block_size": [BLOCK, BLOCK], "modules_to_not_convert": ["lm_head"],
            "modules_to_convert": ["ple.ple_embedding.ngram_embedding"],
        }  # fmt: skip
    return config


# ---- files


def _cut(tensors: Mapping[str, Kind], shards: int) -> Iterable[list[str]]:
    """Names in order, in `shards` groups of about equal bytes."""
    left = sum(_n_bytes(kind) for kind in tensors.values())
    names = sorted(tensors)
    group: list[str] = []
    size, groups_left, names_left = 0, shards, len(names)
    for name in names:
        group.append(name)
        size += _n_bytes(tensors[name])
        names_left -= 1
        if groups_left > 1 and (size >= left / groups_left or names_left < groups_left):
            yield group
            left, groups_left = left - size, groups_left - 1
            group, size = [], 0
    if group:
        yield group


def _n_bytes(kind: Kind) -> int:
    return prod(kind[1]) * ITEM_BYTES[kind[0]]


def write_files(folder: Path, s: Sizes, form: str, shards: int) -> dict[str, Place]:
    """A checkpoint with nothing in it but headers, config and index; returns where each tensor's bytes belong.

    Tensors of larger items come first in a shard, then names decide, as safetensors' writers do it.
    """
    tensors = tensors_of(s, form)
    groups = list(_cut(tensors, shards))
    places: dict[str, Place] = {}
    weight_map: dict[str, str] = {}
    for number, names in enumerate(groups, 1):
        path = folder / f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        ordered = sorted(names, key=lambda n: (-ITEM_BYTES[tensors[n][0]], n))
        for name in ordered:
            dtype, shape = tensors[name]
            begin, end = end, end + _n_bytes(tensors[name])
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        raw = json.dumps(header, separators=(",", ":")).encode()
        raw += b" " * (-len(raw) % 8)
        with path.open("wb") as out:
            out.write(len(raw).to_bytes(8, "little") + raw)
            out.truncate(8 + len(raw) + end)
        for name in ordered:
            begin, stop = header[name]["data_offsets"]
            places[name] = Place(path, 8 + len(raw) + begin, stop - begin, *tensors[name])
            weight_map[name] = path.name
    total = sum(p.n_bytes for p in places.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    (folder / "config.json").write_text(json.dumps(config_of(s, form), indent=4))
    generation = {
        "bos_token_id": s.cut_token, "do_sample": True, "eos_token_id": [s.cut_token + 2, s.cut_token],
        "pad_token_id": s.cut_token, "temperature": 1.0, "top_k": 20, "top_p": 0.95,
    }  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=4))
    return places
