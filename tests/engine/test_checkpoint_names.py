"""Canonical names, near names, table shards, and the census check."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen_chat_mlx.engine.checkpoint.header import TensorEntry
from qwen_chat_mlx.engine.checkpoint.names import (
    SKIPPED,
    Expected,
    canonical_entries,
    check_census,
    nearest_names,
    normalise_name,
    table_shards,
)
from qwen_chat_mlx.engine.errors import CheckpointError

TRUNK = "model.language_model."
TABLE = TRUNK + "layers.1.ple.ple_embedding.ngram_embedding"


def entries_of(*names, dtype="BF16", shape=(2,), path="model.safetensors"):
    return {name: TensorEntry(name, dtype, shape, path, 8, 4) for name in names}


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model.", "language_model.", "model.", ""])
def test_trunk_names_lose_their_prefix_variant(prefix):
    for tail in (
        "embed_tokens.weight",
        "hyper_connection_mixer.hc_norm.weight",
        "layers.47.mlp.experts.gate_up_proj",
        "layers.0.mlp.experts.511.gate_proj.weight_scale_inv",
        "layers.1.ple.ple_embedding.ngram_embedding.shard_127.weight",
        "layers.1.ple.ple_embedding.ngram_embedding.weight_scale",
        "norm.weight",
    ):
        assert normalise_name(prefix + tail) == TRUNK + tail
    assert normalise_name(prefix + "lm_head.weight") == "lm_head.weight"
    assert normalise_name(prefix + "mtp.layers.0.mlp.gate.weight") == "mtp.layers.0.mlp.gate.weight"
    assert normalise_name(prefix + "visual.merger.norm.bias") == "model.visual.merger.norm.bias"
    assert normalise_name(prefix + "vision_tower.merger.norm.bias") == "model.visual.merger.norm.bias"


def test_table_shards_have_one_spelling():
    assert normalise_name("language_model.model.layers.1.ple.ple_embedding.ngram_embedding.shards.5.weight") == (
        TABLE + ".shard_5.weight"
    )
    assert normalise_name(TABLE + ".weight") == TABLE + ".weight"


@pytest.mark.parametrize("name", ["", ".", "model.", "optimizer.state", "model.optimizer", "mtpx.a", "Layers.0.a"])
def test_names_of_no_known_group_stay_as_they_are(name):
    assert normalise_name(name) == name


@given(
    st.lists(
        st.sampled_from(
            ["model", "language_model", "layers", "mtp", "lm_head", "visual", "0", "ngram_embedding", "shards", ""]
        ),
        max_size=7,
    ).map(".".join)
)
def test_normalising_twice_changes_nothing_more(name):
    assert normalise_name(normalise_name(name)) == normalise_name(name)


def test_canonical_entries_keep_the_order_and_the_files_own_names():
    entries = entries_of("language_model.layers.0.A_log", "mtp.fc.weight", "language_model.mtp.norm.weight")
    canonical = canonical_entries(entries)
    assert list(canonical) == [TRUNK + "layers.0.A_log", "mtp.fc.weight", "mtp.norm.weight"]
    assert canonical["mtp.norm.weight"].name == "language_model.mtp.norm.weight"


def test_two_spellings_of_one_tensor_are_refused():
    with pytest.raises(CheckpointError) as caught:
        canonical_entries(entries_of("model.lm_head.weight", "lm_head.weight"))
    assert "'model.lm_head.weight'" in str(caught.value)
    assert caught.value.tensor == "lm_head.weight"


def test_table_shards_come_in_numeric_order_or_whole():
    names = [f"{TABLE}.shard_{i}.weight" for i in range(12)]
    assert [entry.name for entry in table_shards(entries_of(*sorted(names)), TABLE)] == names
    assert [entry.name for entry in table_shards(entries_of(TABLE + ".weight"), TABLE)] == [TABLE + ".weight"]
    assert table_shards(entries_of(TABLE + ".weight_scale"), TABLE) == ()


def test_a_missing_shard_and_a_table_in_both_forms_are_refused():
    with pytest.raises(CheckpointError, match=r"shard_1\.weight' is missing"):
        table_shards(entries_of(f"{TABLE}.shard_0.weight", f"{TABLE}.shard_2.weight"), TABLE)
    with pytest.raises(CheckpointError, match="whole and in shards"):
        table_shards(entries_of(f"{TABLE}.shard_0.weight", f"{TABLE}.weight"), TABLE)


def test_near_names_differ_in_few_letters_or_numbers():
    known = [
        f"layers.{i}.mlp.{part}.weight" for i in range(60) for part in ("gate", "up", "down", "shared_expert_gate")
    ]
    assert nearest_names("layers.7.mlp.gat.weight", known)[0] == "layers.7.mlp.gate.weight"
    assert nearest_names("layers.61.mlp.up.weight", known)[0] == "layers.59.mlp.up.weight"
    assert nearest_names("zzz", known) == []
    assert nearest_names("a", []) == []
    assert len(nearest_names("layers.7.mlp.gat.weight", known)) == 3
    assert len(nearest_names("layers.7.mlp.gat.weight", known, most=1)) == 1


def test_near_names_are_found_quickly_among_very_many():
    known = [f"{TRUNK}layers.{i}.mlp.experts.{e}.{p}_proj.weight" for i in range(20) for e in range(512) for p in "gud"]
    start = time.process_time()
    near = nearest_names(f"{TRUNK}layers.7.mlp.experts.500.gg_proj.weight", known)
    assert near[0] == f"{TRUNK}layers.7.mlp.experts.500.g_proj.weight"
    assert time.process_time() - start < 10


# --- the census -------------------------------------------------------------------------------------------------------

WANT = {
    TRUNK + "embed_tokens.weight": Expected((2,), ("BF16",)),
    TRUNK + "layers.0.mlp.gate.weight": Expected((2,), ("BF16", "F8_E4M3")),
}


def census(entries):
    return check_census(entries, WANT, SKIPPED, "folder")


def refused(entries):
    with pytest.raises(CheckpointError) as caught:
        census(entries)
    return caught.value


def test_a_complete_checkpoint_passes_and_unused_groups_are_counted():
    entries = entries_of(*WANT, "model.visual.a", "model.visual.b")
    report = census(entries)
    assert (report.used_count, report.used_bytes, report.skipped_count, report.skipped_bytes) == (2, 8, 2, 8)
    assert check_census({}, {}, (), "folder").used_count == 0


def test_a_missing_tensor_is_named_with_what_is_there_instead():
    error = refused(entries_of(TRUNK + "embed_tokens.weight", TRUNK + "layers.0.mlp.gates.weight"))
    assert error.tensor == TRUNK + "layers.0.mlp.gate.weight"
    assert "folder" in str(error)
    assert "layers.0.mlp.gates.weight" in str(error)
    assert "(and 1 more)" in str(error)


def test_an_unknown_tensor_is_named_with_its_file_and_near_names():
    error = refused(entries_of(*WANT, TRUNK + "layers.0.mlp.gate.wait"))
    assert error.tensor == TRUNK + "layers.0.mlp.gate.wait"
    assert error.path == "model.safetensors"
    assert "not part of this model" in str(error)
    assert "'model.language_model.layers.0.mlp.gate.weight'" in str(error)


@pytest.mark.parametrize(("dtype", "shape"), [("F32", (2,)), ("BF16", (2, 1)), ("F32", ())])
def test_a_wrong_shape_or_dtype_is_named_with_both_sides(dtype, shape):
    entries = entries_of(*WANT)
    name = TRUNK + "layers.0.mlp.gate.weight"
    entries[name] = TensorEntry("layers.0.mlp.gate.weight", dtype, shape, "b.safetensors", 8, 4)
    error = refused(entries)
    assert error.path == "b.safetensors"
    assert error.tensor == "layers.0.mlp.gate.weight"
    assert f"{dtype} {list(shape)}" in str(error)
    assert "BF16 or F8_E4M3 [2]" in str(error)


def test_an_unused_group_can_still_be_expected():
    want = {"model.visual.a": Expected((3,), ("BF16",))}
    with pytest.raises(CheckpointError, match="expected BF16"):
        check_census(entries_of("model.visual.a"), want, SKIPPED, "folder")
