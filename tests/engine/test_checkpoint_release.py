"""The published FP8 release as sparse files: every name, shape and total, and the layout of its experts."""

import json
import time
from math import prod

import pytest

from qwen_chat_mlx.engine.checkpoint.index import open_checkpoint
from qwen_chat_mlx.engine.checkpoint.names import canonical_entries
from qwen_chat_mlx.engine.checkpoint.quant import Quantization
from qwen_chat_mlx.engine.offload.layout import expert_layout

BYTES = {"BF16": 2, "F8_E4M3": 1, "I64": 8}
TRUNK = [f"model.language_model.layers.{i}" for i in range(48)]


def resident():
    """Names and kinds of everything but routed experts in the published FP8 release of 48 layers."""
    h, wide, low = 2560, 10240, 320
    mixer = {"hc_norm": (wide,), "input_mix_weight_down": (low, wide), "input_mix_weight_up": (wide, low)}
    streams = {**mixer, "block_inject_weight": (4, wide)}
    moe = {"gate": (512, h), "shared_expert.gate_proj": (640, h), "shared_expert.up_proj": (640, h)}
    moe |= {"shared_expert.down_proj": (h, 640), "shared_expert_gate": (1, h)}
    attention = {"q_proj": (12288, h), "k_proj": (512, h), "v_proj": (512, h), "o_proj": (h, 6144), "q_norm": (256,)}
    attention |= {"k_norm": (256,), "indexer.index_qk_proj": (640, h)}
    attention |= {"indexer.q_layernorm": (128,), "indexer.k_layernorm": (128,)}
    delta = {"conv1d": (wide, 1, 4), "in_proj_a": (48, h), "in_proj_b": (48, h), "in_proj_qkv": (wide, h)}
    delta |= {"in_proj_z": (6144, h), "norm": (128,), "out_proj": (h, 6144)}
    ple = {"key_proj": (wide, h), "value_proj": (h, h), "conv1d": (wide, 1, 4)}
    ple |= {"norm_key": (wide,), "norm_query": (wide,), "norm_conv": (wide,)}
    block = {"norm1": 1152, "norm2": 1152, "attn.qkv": (3456, 1152), "attn.proj": (1152, 1152)}
    block |= {"mlp.linear_fc1": (4304, 1152), "mlp.linear_fc2": (1152, 4304)}
    tensors = {}

    def add(prefix, shapes, tail=".weight"):
        tensors.update({f"{prefix}{name}{tail}": ("BF16", shape) for name, shape in shapes.items()})

    trunk = "model.language_model."
    add("", {"lm_head": (248320, h), trunk + "embed_tokens": (248320, h)})
    add(trunk + "hyper_connection_mixer.", mixer), add("mtp.hyper_connection_mixer.", mixer)
    add(
        "mtp.",
        {"pre_fc_norm_embedding": (h,), "pre_fc_norm_hidden": (wide,), "fc_embedding": (h, h), "fc_hidden": (h, h)},
    )
    for i, prefix in enumerate([*TRUNK, "mtp.layers.0"]):
        add(prefix + ".attn_hyper_connection.", streams), add(prefix + ".mlp_hyper_connection.", streams)
        add(prefix + ".mlp.", moe)
        if i % 4 == 3 or i == 48:
            add(prefix + ".self_attn.", attention)
        else:
            add(prefix + ".linear_attn.", delta), add(prefix + ".linear_attn.", {"A_log": (48,), "dt_bias": (48,)}, "")
    stem = trunk + "layers.1.ple."
    add(stem, ple)
    table = stem + "ple_embedding."
    for name, count in (("layer_multipliers", 3), ("ngram_heads_vocab_sizes", 16), ("ngram_heads_offsets", 16)):
        tensors[table + name] = ("I64", (count,))
    for i in range(128):
        tensors[f"{table}ngram_embedding.shard_{i}.weight"] = ("F8_E4M3", (2500012, 160))
    add(table, {"ngram_embedding": (1,)}, ".weight_scale")
    vision = {"patch_embed.proj": (1152, 3, 2, 16, 16), "merger.norm": 1152}
    vision |= {"merger.linear_fc1": (4608, 4608), "merger.linear_fc2": (h, 4608)}
    vision |= {f"blocks.{b}.{name}": shape for b in range(27) for name, shape in block.items()}
    add("model.visual.", {name: shape if isinstance(shape, tuple) else (shape,) for name, shape in vision.items()})
    add(
        "model.visual.",
        {name: (shape[0] if isinstance(shape, tuple) else shape,) for name, shape in vision.items()},
        ".bias",
    )
    add("model.visual.", {"pos_embed": (2304, 1152)})
    return tensors


def release(layers, experts):
    """Names and kinds of the routed experts at the published FP8 release's shapes, draft layer included."""
    tensors = {}
    for prefix in [*TRUNK[:layers], "mtp.layers.0"]:
        for e in range(experts):
            for part, shape in (("gate", (640, 2560)), ("up", (640, 2560)), ("down", (2560, 640))):
                stem = f"{prefix}.mlp.experts.{e}.{part}_proj.weight"
                tensors[stem] = ("F8_E4M3", shape)
                tensors[stem + "_scale_inv"] = ("BF16", (shape[0] // 128, shape[1] // 128))
    return tensors


def write_sparse(folder, tensors, shards):
    """Files of the right size with nothing in them but headers, cut by number of tensors, and their index."""
    names = sorted(tensors)
    per = -(-len(names) // shards)
    weight_map, total = {}, 0
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        header, end = {}, 0
        for name in sorted(names[i * per : (i + 1) * per], key=lambda n: (-BYTES[tensors[n][0]], n)):
            dtype, shape = tensors[name]
            begin, end = end, end + prod(shape) * BYTES[dtype]
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
            weight_map[name] = file
        raw = json.dumps(header).encode()
        with open(folder / file, "wb") as out:
            out.write(len(raw).to_bytes(8, "little") + raw)
            out.truncate(8 + len(raw) + end)
        total += end
    (folder / "config.json").write_text("{}")
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def check_release(folder, tensors, layers, experts, shards):
    quantization = Quantization("fp8", (128, 128))
    total = write_sparse(folder, tensors, shards)
    index = open_checkpoint(folder)
    assert len(index.entries) == len(tensors)
    assert index.total_bytes == total
    layout = expert_layout(canonical_entries(index.entries), TRUNK[:layers], experts, quantization)
    assert layout.slot_bytes == layout.expert_bytes == 3 * 640 * 2560
    reads = [len(layout.ranges(layer, e)) for layer in range(layers) for e in range(experts)]
    assert sum(n != 1 for n in reads) < shards
    assert max(reads) <= 2
    for layer in range(layers):
        ranges = layout.layer_image(layer).ranges
        assert sum(r.n_bytes for r in ranges) == experts * layout.expert_bytes
        assert len(ranges) <= shards
    return index, layout


def test_a_few_layers_at_the_real_shapes_read_each_expert_in_one_piece(tmp_path):
    check_release(tmp_path, release(2, 64), layers=2, experts=64, shards=5)


@pytest.mark.slow
def test_the_release_at_its_real_size_opens_and_its_layout_stays_small(tmp_path):
    index, layout = check_release(tmp_path, resident() | release(48, 512), layers=48, experts=512, shards=131)
    assert len(index.entries) == 152_089
    assert index.total_bytes == 185_502_232_570
    assert layout.total_bytes == 24_576 * 4_915_200
    arrays = [getattr(layout, name) for name in ("_files", "_offsets")]
    assert sum(array.nbytes for array in arrays) < 2**20
    assert max(len(layout.layer_image(layer).ranges) for layer in range(48)) <= 4
    start = time.process_time()
    open_checkpoint(tmp_path)
    assert time.process_time() - start < 10
