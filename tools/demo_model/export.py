"""A trained run -> a folder in the published layout of Qwen4-Exp, as BF16 (fused experts) or FP8 (one by one, in blocks).

python export.py DATA RUN OUT --format bf16|fp8
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from pathlib import Path

import torch
from checkpoints import BLOCK, TRUNK_PREFIX, load_checkpoint
from network import NetworkConfig
from safetensors.torch import save_file

TABLE_SHARDS, FILES, FP8_LIMIT = 4, 2, 448.0
HERE = Path(__file__).parent


def fp8_blocks(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[R,C] -> float8 [R,C] and a bfloat16 scale per 128 x 128 block; the value is their product."""
    rows, columns = matrix.shape
    tall, wide = math.ceil(rows / BLOCK), math.ceil(columns / BLOCK)
    padded = torch.zeros(tall * BLOCK, wide * BLOCK)
    padded[:rows, :columns] = matrix
    tiles = padded.view(tall, BLOCK, wide, BLOCK)
    scale = (tiles.abs().amax(dim=(1, 3)) / FP8_LIMIT).clamp_min(1e-12).to(torch.bfloat16)
    scaled = (tiles / scale.float()[:, None, :, None]).view(padded.shape)[:rows, :columns]
    return scaled.clamp(-FP8_LIMIT, FP8_LIMIT).to(torch.float8_e4m3fn).contiguous(), scale


def _experts(name: str, value: torch.Tensor, out: dict) -> None:
    """A fused expert tensor as single FP8 experts with their scales."""
    base, fused = name.rsplit(".", 1)
    for number, matrix in enumerate(value.float()):
        parts = {"down_proj": matrix}
        if fused == "gate_up_proj":
            gate, up = matrix.chunk(2, 0)
            parts = {"gate_proj": gate, "up_proj": up}
        for part, weight in parts.items():
            stored, scale = fp8_blocks(weight)
            out[f"{base}.{number}.{part}.weight"] = stored
            out[f"{base}.{number}.{part}.weight_scale_inv"] = scale


def _table(name: str, value: torch.Tensor, fp8: bool, out: dict) -> None:
    base = name.removesuffix(".weight")
    stored = value.to(torch.bfloat16)
    if fp8:
        scale = (value.float().abs().max() / FP8_LIMIT).to(torch.bfloat16).reshape(1)
        stored = (value.float() / scale.float()).clamp(-FP8_LIMIT, FP8_LIMIT).to(torch.float8_e4m3fn)
        out[f"{base}.weight_scale"] = scale
    for i, shard in enumerate(stored.chunk(TABLE_SHARDS, 0)):
        out[f"{base}.shard_{i}.weight"] = shard.contiguous()


def published_tensors(model, fp8: bool) -> dict[str, torch.Tensor]:
    out: dict[str, torch.Tensor] = {}
    for ours, value in model.state_dict().items():
        name = TRUNK_PREFIX + ours[len("model.") :] if ours.startswith("model.") else ours
        if name.endswith("ngram_embedding.weight"):
            _table(name, value, fp8, out)
        elif fp8 and ".experts." in name:
            _experts(name, value, out)
        else:
            out[name] = (value.to(torch.bfloat16) if value.is_floating_point() else value).contiguous().clone()
    return out


def text_config(c: NetworkConfig) -> dict:
    """The text part of config.json, key by key as published."""
    half = c.rotary_dim // 2
    third = half // 3
    kinds = ["full_attention" if c.is_attention(i) else "linear_attention" for i in range(c.num_layers)]
    rope = {
        "mrope_interleaved": True, "mrope_section": [half - 2 * third, third, third], "rope_theta": c.rope_theta,
        "partial_rotary_factor": c.rotary_dim / c.head_dim, "rope_type": "default",
    }  # fmt: skip
    mtp = {
        "hybrid": True, "layer_types": ["full_attention"], "mtp_use_hidden_state_from_layer": None, "num_hidden_layers": 1,
        "rope_theta": c.rope_theta,
    }  # fmt: skip
    return {
        "model_type": "qwen4_exp_text", "dtype": "bfloat16", "vocab_size": c.vocab_size, "hidden_size": c.hidden_size,
        "num_hidden_layers": c.num_layers, "num_attention_heads": c.num_heads, "num_key_value_heads": c.num_kv_heads,
        "head_dim": c.head_dim, "attention_bias": False, "attention_dropout": 0.0, "layer_types": kinds,
        "full_attention_interval": c.attention_every, "linear_num_key_heads": c.delta_key_heads,
        "linear_num_value_heads": c.delta_value_heads, "linear_key_head_dim": c.delta_key_dim,
        "linear_value_head_dim": c.delta_value_dim, "linear_conv_kernel_dim": c.delta_conv, "mamba_ssm_dtype": "float32",
        "output_gate_type": "sigmoid", "hidden_act": "silu", "num_experts": c.num_experts,
        "num_experts_per_tok": c.experts_per_token, "moe_intermediate_size": c.expert_size,
        "shared_expert_intermediate_size": c.shared_expert_size, "output_router_logits": False, "router_aux_loss_coef": 0.001,
        "initializer_range": 0.02, "hc_count": c.streams, "hc_lowrank": c.stream_rank, "rms_norm_eps": c.eps,
        "ple_layer_ids": [c.ple_layer_id], "ple_embed_dim": c.ple_size, "ple_conv_kernel_size": c.ple_conv,
        "ngram_size": c.ngram_size, "heads_per_ngram": c.heads_per_ngram, "ngram_vocab_size_base": c.ngram_vocab_base,
        "make_ngram_vocab_size_divisible_by": c.ngram_vocab_multiple, "split_ngram_parts": TABLE_SHARDS,
        "indexer_n_heads": c.index_heads, "indexer_kv_heads": 1, "indexer_head_dim": c.index_dim,
        "indexer_budget": c.index_budget, "indexer_compress_ratio": c.index_ratio, "rope_parameters": rope,
        "partial_rotary_factor": c.rotary_dim / c.head_dim, "mtp": mtp, "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False, "bos_token_id": c.cut_token, "eos_token_id": c.cut_token, "pad_token_id": None,
        "max_position_embeddings": c.max_positions, "tie_word_embeddings": False, "use_cache": True,
    }  # fmt: skip


def config(c: NetworkConfig, fp8: bool) -> dict:
    whole = {
        "architectures": ["Qwen4ExpForConditionalGeneration"], "language_model_only": True, "model_type": "qwen4_exp",
        "text_config": text_config(c), "tie_word_embeddings": False,
    }  # fmt: skip
    if fp8:
        whole["quantization_config"] = {
            "quant_method": "fp8", "activation_scheme": "dynamic", "weight_per_tensor": False, "act_per_tensor": False,
            "weight_block_size": [BLOCK, BLOCK], "modules_to_not_convert": ["lm_head"],
            "modules_to_convert": ["ple.ple_embedding.ngram_embedding"],
        }  # fmt: skip
    return whole


GENERATION = {
    "bos_token_id": 0,
    "do_sample": True,
    "eos_token_id": [2, 0],
    "pad_token_id": 0,
    "temperature": 0.7,
    "top_k": 20,
    "top_p": 0.9,
}
TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "model_max_length": 8192,
}


def write(folder: Path, tensors: dict[str, torch.Tensor], c: NetworkConfig, tokenizer: Path, fp8: bool) -> int:
    """-> bytes on disk. Tensors are split over the files by size, in the order of their names."""
    folder.mkdir(parents=True, exist_ok=True)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    parts: list[dict[str, torch.Tensor]] = [{}]
    filled = 0
    for name in sorted(tensors):
        if filled > total / FILES and len(parts) < FILES:
            parts, filled = [*parts, {}], 0
        parts[-1][name] = tensors[name]
        filled += tensors[name].numel() * tensors[name].element_size()
    weight_map = {}
    for i, part in enumerate(parts):
        file = f"model-{i + 1:05d}-of-{len(parts):05d}.safetensors"
        save_file(part, folder / file, metadata={"format": "pt"})
        (folder / file).chmod(0o644)
        weight_map.update(dict.fromkeys(part, file))
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    for name, value, indent in (
        ("model.safetensors.index.json", index, None),
        ("config.json", config(c, fp8), 2),
        ("generation_config.json", GENERATION, 2),
        ("tokenizer_config.json", TOKENIZER, 2),
    ):
        (folder / name).write_text(json.dumps(value, indent=indent) + "\n", encoding="utf-8")
    shutil.copy(tokenizer, folder / "tokenizer.json")
    shutil.copy(HERE / "chat_template.jinja", folder / "chat_template.jinja")
    return sum(f.stat().st_size for f in folder.iterdir())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--format", choices=("bf16", "fp8"), required=True)
    args = parser.parse_args()
    model, fp8 = load_checkpoint(args.run), args.format == "fp8"
    size = write(args.out, published_tensors(model, fp8), model.config, args.data / "tokenizer.json", fp8)
    print(f"{args.out.name}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
