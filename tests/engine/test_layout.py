"""Where experts lie: every slot and layer buffer holds the right bytes, and no more reads than the files force."""

import json
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from qwen_chat_mlx.engine.checkpoint import index as index_module
from qwen_chat_mlx.engine.checkpoint.header import TensorEntry
from qwen_chat_mlx.engine.checkpoint.index import open_checkpoint, read_tensor
from qwen_chat_mlx.engine.checkpoint.names import canonical_entries
from qwen_chat_mlx.engine.checkpoint.quant import Quantization
from qwen_chat_mlx.engine.errors import CheckpointError
from qwen_chat_mlx.engine.offload import shelf
from qwen_chat_mlx.engine.offload.layout import expert_layout, expert_scales
from qwen_chat_mlx.engine.offload.shelf import layer_blocks

FP8 = Quantization("fp8", (4, 4))
PLAIN = Quantization(None, None)
BYTES = {"BF16": 2, "F8_E4M3": 1, "F32": 4, "I64": 8}
HIDDEN, INNER = 8, 6


def prefixes_of(layers):
    return [f"model.language_model.layers.{i}" for i in range(layers)]


def single(prefix, experts, *, hidden=HIDDEN, inner=INNER):
    """Names -> (dtype, shape) of one layer with FP8 experts, each matrix with its scale."""
    tensors = {}
    for e in range(experts):
        for part, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
            stem = f"{prefix}.mlp.experts.{e}.{part}_proj.weight"
            tensors[stem] = ("F8_E4M3", shape)
            tensors[stem + "_scale_inv"] = ("BF16", (-(-shape[0] // 4), -(-shape[1] // 4)))
    return tensors


def fused(prefix, experts, *, hidden=HIDDEN, inner=INNER):
    return {
        f"{prefix}.mlp.experts.gate_up_proj": ("BF16", (experts, 2 * inner, hidden)),
        f"{prefix}.mlp.experts.down_proj": ("BF16", (experts, hidden, inner)),
    }


def written_order(name_and_kind):
    """The order in which the safetensors library writes: widest dtype first, then by name."""
    name, (dtype, _) = name_and_kind
    return -BYTES[dtype], name


def write(folder, shards, seed=0):
    """Each shard (names -> kinds, in file order) as one file of random bytes; scales become 1 + k/128."""
    rng = np.random.default_rng(seed)
    (folder / "config.json").write_text("{}")
    for i, tensors in enumerate(shards):
        header, data = {}, b""
        for name, (dtype, shape) in tensors.items():
            size = prod(shape) * BYTES[dtype]
            if name.endswith("_scale_inv"):
                raw = (0x3F80 + rng.integers(0, 128, size // 2)).astype(np.uint16).tobytes()
            else:
                raw = rng.integers(0, 256, size).astype(np.uint8).tobytes()
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + size]}
            data += raw
        raw = json.dumps(header).encode()
        (folder / f"model-{i}.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    return canonical_entries(open_checkpoint(folder).entries)


def in_order(tensors):
    return dict(sorted(tensors.items(), key=written_order))


def fill(ranges, size):
    """The buffer that these reads make; each byte is written at most once."""
    buffer, written = np.zeros(size, np.uint8), np.zeros(size, bool)
    for r in ranges:
        data = np.frombuffer(Path(r.path).read_bytes(), np.uint8)[r.offset : r.offset + r.n_bytes]
        place = slice(r.slot_offset, r.slot_offset + r.n_bytes)
        assert len(data) == r.n_bytes
        assert not written[place].any()
        buffer[place], written[place] = data, True
    return buffer


def expert_bytes(entries, layout, layer, expert, role):
    """The stored bytes of one matrix, found by its name."""
    stem = f"{layout.prefixes[layer]}.mlp.experts"
    if role == "gate_up" or f"{stem}.down_proj" in entries:
        return read_tensor(entries[f"{stem}.{role}_proj"])[expert].tobytes()
    return read_tensor(entries[f"{stem}.{expert}.{role}_proj.weight"]).tobytes()


def check(entries, layout):
    """Slots and layer buffers of a whole pool against the tensors' own bytes."""
    item = max(BYTES[part.dtype] for part in layout.parts)
    for layer in range(layout.n_layers):
        image = layout.layer_image(layer)
        assert image.n_bytes <= layout.layer_bytes
        assert all((r.offset - r.slot_offset) % 4096 < item for r in image.ranges)
        whole = fill(image.ranges, image.n_bytes)
        blocks, places = layer_blocks(image.starts, layout.part_starts)
        for expert in range(layout.n_experts):
            slot = fill(layout.ranges(layer, expert), layout.slot_bytes)
            block, at = divmod(places[expert], layout.n_experts)
            assert at < blocks[block].count
            for part, (first, step) in zip(layout.parts, blocks[block].parts):
                stored = expert_bytes(entries, layout, layer, expert, part.role)
                start = first + at * step
                assert start % BYTES[part.dtype] == step % BYTES[part.dtype] == 0
                assert slot[part.slot_offset :][: part.n_bytes].tobytes() == stored
                assert whole[start : start + part.n_bytes].tobytes() == stored


def blocks_of(layout):
    return layer_blocks(layout.layer_image(0).starts, layout.part_starts)[0]


def joined(tensors):
    return {name: kind for layer in tensors for name, kind in layer.items()}


# --- the published layouts --------------------------------------------------------------------------------------------


def test_an_fp8_expert_is_one_read_and_its_parts_follow_the_file(tmp_path):
    entries = write(tmp_path, [in_order(joined(single(p, 12) for p in prefixes_of(2)))])
    layout = expert_layout(entries, prefixes_of(2), 12, FP8)
    assert [part.role for part in layout.parts] == ["down", "gate", "up"]
    assert [part.slot_offset for part in layout.parts] == [0, 48, 96]
    assert layout.part("gate").shape == (INNER, HIDDEN)
    assert layout.part("gate").dtype == "F8_E4M3"
    assert layout.slot_bytes == 192
    assert layout.expert_bytes == 144
    assert layout.total_bytes == 144 * 24
    assert (layout.n_layers, layout.n_experts) == (2, 12)
    assert layout.stored["up"].kind == "fp8_block"
    assert layout.stored["up"].block == (4, 4)
    assert all(len(layout.ranges(layer, expert)) == 1 for layer in range(2) for expert in range(12))
    check(entries, layout)


def test_the_safetensors_library_writes_an_expert_in_one_piece(tmp_path):
    kinds = single("mtp.layers.0", 3)
    numpy_kinds = {"F8_E4M3": np.uint8, "BF16": np.uint16}
    file = tmp_path / "model.safetensors"
    save_file({name: np.ones(shape, numpy_kinds[dtype]) for name, (dtype, shape) in kinds.items()}, file)
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = raw[8 : 8 + length].replace(b'"U8"', b'"F8_E4M3"').replace(b'"U16"', b'"BF16"')
    file.write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + length :])
    (tmp_path / "config.json").write_text("{}")
    layout = expert_layout(open_checkpoint(tmp_path).entries, ["mtp.layers.0"], 3, FP8)
    assert [len(layout.ranges(0, expert)) for expert in range(3)] == [1, 1, 1]


def test_a_fused_bf16_expert_is_two_reads(tmp_path):
    entries = write(tmp_path, [in_order(joined(fused(p, 5) for p in prefixes_of(3)))])
    layout = expert_layout(entries, prefixes_of(3), 5, PLAIN)
    assert [(part.role, part.shape) for part in layout.parts] == [
        ("down", (HIDDEN, INNER)),
        ("gate_up", (2 * INNER, HIDDEN)),
    ]
    assert all(len(layout.ranges(layer, expert)) == 2 for layer in range(3) for expert in range(5))
    assert len(layout.layer_image(0).ranges) == 1
    assert len(blocks_of(layout)) == 1
    check(entries, layout)
    assert expert_scales(entries, layout, 0, PLAIN) == {}


def test_the_draft_layer_is_a_pool_of_its_own(tmp_path):
    entries = write(tmp_path, [in_order(single("mtp.layers.0", 4) | single(prefixes_of(1)[0], 4))])
    layout = expert_layout(entries, ["mtp.layers.0"], 4, FP8)
    assert layout.prefixes == ("mtp.layers.0",)
    assert layout.n_layers == 1
    check(entries, layout)


def test_one_expert_alone_is_a_pool(tmp_path):
    for experts, make in ((1, single), (1, fused)):
        entries = write(tmp_path, [in_order(make("mtp.layers.0", experts))])
        layout = expert_layout(entries, ["mtp.layers.0"], 1, FP8)
        check(entries, layout)


def test_prefixed_names_of_other_tools_make_the_same_layout(tmp_path):
    tensors = in_order(single("language_model.layers.0", 2))
    entries = write(tmp_path, [tensors])
    layout = expert_layout(entries, prefixes_of(1), 2, FP8)
    assert len(layout.ranges(0, 1)) == 1
    check(entries, layout)


# --- slots and merging ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["number", "name"])
def test_experts_that_follow_one_another_in_any_order_make_one_read_of_a_layer(tmp_path, order):
    tensors = single("mtp.layers.0", 11, hidden=8, inner=8)
    weights = {n: k for n, k in tensors.items() if not n.endswith("_inv")}
    names = sorted(weights, key=lambda n: (int(n.split(".")[5]), n) if order == "number" else n)
    scales = {n: k for n, k in tensors.items() if n.endswith("_inv")}
    entries = write(tmp_path, [scales | {n: weights[n] for n in names}])
    layout = expert_layout(entries, ["mtp.layers.0"], 11, FP8)
    assert layout.slot_bytes == layout.expert_bytes == 192
    (whole,) = layout.layer_image(0).ranges
    assert whole.n_bytes == 11 * 192
    (block,) = blocks_of(layout)
    assert block.count == 11
    assert [step for _, step in block.parts] == [192] * 3
    check(entries, layout)


def test_an_expert_whose_file_order_differs_is_still_right(tmp_path):
    tensors = in_order(single("mtp.layers.0", 3))
    stem = "mtp.layers.0.mlp.experts.1."
    names = list(tensors)
    down, gate = names.index(stem + "down_proj.weight"), names.index(stem + "gate_proj.weight")
    names[down], names[gate] = names[gate], names[down]
    entries = write(tmp_path, [{name: tensors[name] for name in names}])
    layout = expert_layout(entries, ["mtp.layers.0"], 3, FP8)
    assert [len(layout.ranges(0, expert)) for expert in range(3)] == [1, 3, 1]
    check(entries, layout)


def test_an_expert_cut_by_the_end_of_a_shard_is_read_from_both(tmp_path):
    tensors = in_order(single("mtp.layers.0", 3))
    names = list(tensors)
    cut = names.index("mtp.layers.0.mlp.experts.1.up_proj.weight")
    shards = [{n: tensors[n] for n in names[:cut]}, {n: tensors[n] for n in names[cut:]}]
    entries = write(tmp_path, shards)
    layout = expert_layout(entries, ["mtp.layers.0"], 3, FP8)
    assert [len(layout.ranges(0, expert)) for expert in range(3)] == [1, 2, 1]
    assert len(layout.paths) == len(layout.layer_image(0).ranges) == 2
    check(entries, layout)


def test_a_layer_too_long_for_one_array_is_several_blocks(tmp_path, monkeypatch):
    entries = write(tmp_path, [in_order(single("mtp.layers.0", 7, hidden=8, inner=8))])
    layout = expert_layout(entries, ["mtp.layers.0"], 7, FP8)
    for experts, counts in ((1, [1] * 7), (3, [3, 3, 1]), (7, [7])):
        monkeypatch.setattr(shelf, "FLAT_BYTES", experts * 192)
        assert [block.count for block in blocks_of(layout)] == counts
        check(entries, layout)


def test_parts_of_wider_items_begin_where_their_items_can(tmp_path):
    stem = "mtp.layers.0.mlp.experts.0."
    tensors = {
        stem + "down_proj.weight_scale_inv": ("BF16", (1, 1)),
        stem + "down_proj.weight": ("F8_E4M3", (3, 1)),
        stem + "gate_proj.weight": ("BF16", (1, 3)),
        stem + "up_proj.weight": ("F32", (1, 3)),
    }
    entries = write(tmp_path, [tensors])
    layout = expert_layout(entries, ["mtp.layers.0"], 1, FP8)
    assert [(part.role, part.slot_offset) for part in layout.parts] == [("down", 0), ("gate", 4), ("up", 12)]
    assert layout.slot_bytes == 64
    assert len(layout.ranges(0, 0)) == 3
    check(entries, layout)
    assert list(expert_scales(entries, layout, 0, FP8)) == ["down"]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_the_order_and_the_shards_every_byte_lands_in_its_place(tmp_path_factory, data):
    experts, layers = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 2))
    make = data.draw(st.sampled_from([single, fused]))
    tensors = joined(make(p, experts) for p in prefixes_of(layers))
    names = data.draw(st.permutations(list(tensors)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(names)), max_size=2)))
    shards = [names[a:b] for a, b in zip([0, *cuts], [*cuts, len(names)])]
    folder = tmp_path_factory.mktemp("model")
    entries = write(folder, [{n: tensors[n] for n in shard} for shard in shards])
    layout = expert_layout(entries, prefixes_of(layers), experts, FP8)
    check(entries, layout)
    for layer in range(layers):
        for role, scales in expert_scales(entries, layout, layer, FP8).items():
            stem = f"{layout.prefixes[layer]}.mlp.experts"
            for e in range(experts):
                assert np.array_equal(scales[e], read_tensor(entries[f"{stem}.{e}.{role}_proj.weight_scale_inv"]))


def test_there_is_no_expert_outside_the_pool(tmp_path):
    entries = write(tmp_path, [in_order(single("mtp.layers.0", 2))])
    layout = expert_layout(entries, ["mtp.layers.0"], 2, FP8)
    for layer, expert in ((1, 0), (-1, 0), (0, 2), (0, -1)):
        with pytest.raises(IndexError):
            layout.ranges(layer, expert)
    with pytest.raises(IndexError):
        layout.layer_image(1)
    with pytest.raises(IndexError):
        layout.layer_image(-1)
    with pytest.raises(KeyError):
        layout.part("gate_up")


# --- scales -----------------------------------------------------------------------------------------------------------


def test_scales_are_gathered_by_expert_number(tmp_path):
    entries = write(tmp_path, [in_order(joined(single(p, 12, hidden=9, inner=5) for p in prefixes_of(2)))])
    layout = expert_layout(entries, prefixes_of(2), 12, FP8)
    for layer, prefix in enumerate(layout.prefixes):
        scales = expert_scales(entries, layout, layer, FP8)
        assert {role: s.shape for role, s in scales.items()} == {
            "down": (12, 3, 2),
            "gate": (12, 2, 3),
            "up": (12, 2, 3),
        }
        for role, values in scales.items():
            assert values.dtype == np.uint16
            for e in range(12):
                name = f"{prefix}.mlp.experts.{e}.{role}_proj.weight_scale_inv"
                assert np.array_equal(values[e], read_tensor(entries[name]))


def test_the_scales_of_a_layer_are_one_read(tmp_path, monkeypatch):
    entries = write(tmp_path, [in_order(joined(single(p, 12) for p in prefixes_of(2)))])
    layout = expert_layout(entries, prefixes_of(2), 12, FP8)
    reads = []
    read = index_module._read_bytes
    monkeypatch.setattr(index_module, "_read_bytes", lambda *place: reads.append(place) or read(*place))
    expert_scales(entries, layout, 1, FP8)
    assert len(reads) == 1


def test_a_bad_scale_of_one_expert_is_named(tmp_path):
    entries = write(tmp_path, [in_order(single("mtp.layers.0", 3))])
    layout = expert_layout(entries, ["mtp.layers.0"], 3, FP8)
    scale = entries["mtp.layers.0.mlp.experts.2.up_proj.weight_scale_inv"]
    with open(scale.path, "r+b") as file:
        file.seek(scale.offset + 2)
        file.write(b"\xc0\x7f")
    with pytest.raises(CheckpointError, match="nan") as caught:
        expert_scales(entries, layout, 0, FP8)
    assert caught.value.tensor == scale.name
    assert "[0, 1]" in str(caught.value)


def test_a_missing_or_misshapen_scale_of_one_expert_is_named(tmp_path):
    entries = write(tmp_path, [in_order(single("mtp.layers.0", 3))])
    layout = expert_layout(entries, ["mtp.layers.0"], 3, FP8)
    name = "mtp.layers.0.mlp.experts.2.up_proj.weight_scale_inv"
    for change in (None, TensorEntry(name, "BF16", (9, 9), "x", 0, 162), TensorEntry(name, "F32", (2, 2), "x", 0, 16)):
        changed = {n: e for n, e in entries.items() if n != name} | ({name: change} if change else {})
        with pytest.raises(CheckpointError) as caught:
            expert_scales(changed, layout, 0, FP8)
        assert "experts.2.up_proj.weight" in str(caught.value)


def test_scales_of_another_kind_are_refused(tmp_path):
    entries = dict(write(tmp_path, [in_order(single("mtp.layers.0", 2))]))
    layout = expert_layout(entries, ["mtp.layers.0"], 2, FP8)
    for expert in (1, 0):
        stem = f"mtp.layers.0.mlp.experts.{expert}.up_proj.weight"
        entries[stem + "_scale"] = TensorEntry(stem + "_scale", "BF16", (1,), "x", 0, 2)
        del entries[stem + "_scale_inv"]
        with pytest.raises(CheckpointError, match="scales per block"):
            expert_scales(entries, layout, 0, FP8)
    with pytest.raises(CheckpointError, match="experts need scales per block"):
        expert_layout(entries, ["mtp.layers.0"], 2, FP8)


# --- experts that do not fit together ---------------------------------------------------------------------------------


def refused(entries, prefixes, experts, quantization=FP8):
    with pytest.raises(CheckpointError) as caught:
        expert_layout(entries, prefixes, experts, quantization)
    return str(caught.value)


def test_a_missing_expert_is_named_with_near_names(tmp_path):
    entries = write(tmp_path, [in_order(single("mtp.layers.0", 2))])
    message = refused(entries, ["mtp.layers.0"], 3)
    assert "'mtp.layers.0.mlp.experts.2." in message
    assert "Nearest names: 'mtp.layers.0.mlp.experts.1." in message
    assert "is missing" in refused({}, ["mtp.layers.0"], 3)


def test_a_pool_has_layers_and_experts():
    assert "not supported" in refused({}, [], 3)
    assert "not supported" in refused({}, ["mtp.layers.0"], 0)


def test_experts_of_different_shapes_or_dtypes_are_refused(tmp_path):
    first, second = prefixes_of(2)
    entries = write(tmp_path, [in_order(single(first, 2) | single(second, 2, inner=7))])
    assert "[8, 7], expected F8_E4M3 [8, 6]" in refused(entries, [first, second], 2)
    entries = write(tmp_path, [in_order(fused(first, 2) | fused(second, 3))])
    assert "[3, 8, 6], expected BF16 [2, 8, 6]" in refused(entries, [first, second], 2)
    assert "expected [3, rows, columns]" in refused(entries, [first], 3)
    entries = write(tmp_path, [in_order(fused(first, 2) | single(second, 2))])
    assert "is missing" in refused(entries, [first, second], 2)
    flat = {f"{first}.mlp.experts.0.{p}_proj.weight": ("BF16", (6,)) for p in ("gate", "up", "down")}
    assert "expected [rows, columns]" in refused(write(tmp_path, [flat]), [first], 1)


def test_fused_fp8_experts_are_refused(tmp_path):
    stem = "mtp.layers.0.mlp.experts."
    tensors = {
        stem + "down_proj": ("F8_E4M3", (2, 8, 6)),
        stem + "down_proj_scale_inv": ("BF16", (2, 2, 2)),
        stem + "gate_up_proj": ("F8_E4M3", (2, 12, 8)),
        stem + "gate_up_proj_scale_inv": ("BF16", (2, 3, 2)),
    }
    assert "only matrices" in refused(write(tmp_path, [tensors]), ["mtp.layers.0"], 2)
