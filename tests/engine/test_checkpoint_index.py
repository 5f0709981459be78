"""Opening model folders: what is accepted, every fault as one CheckpointError, the fingerprint, and reading tensors."""

import errno
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from bad_files import json_values, many, refused, write_raw

from qwen_chat_mlx.engine.checkpoint.index import open_checkpoint, read_tensor, read_tensors
from qwen_chat_mlx.engine.errors import CheckpointError

CONFIG = {"model_type": "qwen4_exp", "text_config": {"num_hidden_layers": 2}}
BYTES = {"BF16": 2, "F8_E4M3": 1, "F32": 4, "I64": 8, "U8": 1}
TENSORS = {
    "model.language_model.layers.0.A_log": ("I64", [3]),
    "model.language_model.layers.0.b.weight": ("BF16", [4, 2]),
    "model.language_model.layers.10.b.weight": ("BF16", [4, 2]),
    "model.language_model.layers.1.c.weight": ("F8_E4M3", [5]),
}
ALL = list(TENSORS)


def header_of(tensors):
    header, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + int(np.prod(shape)) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    return header, end


def write_shard(path, tensors, first=0):
    header, end = header_of(tensors)
    write_raw(path, header, bytes((first + i) % 256 for i in range(end)))
    return end


def write_model(folder, *, index=True, split=2):
    """A two-shard model folder; the shards are cut after `split` tensors."""
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))
    shards = {"model-00001-of-00002.safetensors": ALL[:split], "model-00002-of-00002.safetensors": ALL[split:]}
    total = sum(write_shard(folder / f, {n: TENSORS[n] for n in names}) for f, names in shards.items())
    if index:
        weight_map = {name: file for file, names in shards.items() for name in names}
        write_index(folder, {"metadata": {"total_size": total}, "weight_map": weight_map})
    return folder


def write_index(folder, table):
    (folder / "model.safetensors.index.json").write_text(table if isinstance(table, str) else json.dumps(table))


def edit_index(folder, edit):
    table = json.loads((folder / "model.safetensors.index.json").read_text())
    edit(table)
    write_index(folder, table)


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path)


# --- what is accepted -------------------------------------------------------------------------------------------------


def test_an_indexed_folder_gives_every_entry_its_place(model):
    index = open_checkpoint(str(model))
    assert list(index.entries) == ALL
    assert index.folder == model
    assert index.config == CONFIG
    assert index.generation_config == {}
    assert index.total_bytes == 24 + 16 + 16 + 5
    tensor = index.entries[ALL[1]]
    assert (tensor.name, tensor.dtype, tensor.shape, tensor.n_bytes) == (ALL[1], "BF16", (4, 2), 16)
    assert tensor.path == str(model / FIRST)
    data = (model / FIRST).read_bytes()
    assert data[tensor.offset : tensor.offset + 16] == bytes(range(24, 40))


def test_one_file_and_shards_without_an_index_open_alike(tmp_path):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    without = open_checkpoint(write_model(tmp_path / "a", index=False))
    one = tmp_path / "b"
    (one / "config.json").write_text("{}")
    write_shard(one / "model.safetensors", TENSORS)
    assert list(open_checkpoint(one).entries) == list(without.entries) == ALL


def test_the_header_may_be_padded_and_the_generation_config_is_read(model):
    header, end = header_of({n: TENSORS[n] for n in ALL[:2]})
    write_raw(model / FIRST, json.dumps(header).encode() + b"   ", bytes(end))
    (model / "generation_config.json").write_text('{"top_k": 20}')
    assert open_checkpoint(model).generation_config == {"top_k": 20}


def test_other_files_beside_the_shards_are_left_alone(model):
    (model / "tokenizer.json").write_text("not JSON")
    (model / "optimizer.safetensors").write_bytes(b"")
    assert len(open_checkpoint(model).entries) == 4


def test_a_total_size_is_optional_and_may_be_a_whole_float(model):
    edit_index(model, lambda table: table.pop("metadata"))
    assert len(open_checkpoint(model).entries) == 4
    edit_index(model, lambda table: table.update(metadata={"total_size": 61.0}))
    assert len(open_checkpoint(model).entries) == 4


def test_links_to_files_elsewhere_open(model, tmp_path_factory):
    blobs = tmp_path_factory.mktemp("blobs")
    for file in list(model.iterdir()):
        file.rename(blobs / file.name)
        file.symlink_to(blobs / file.name)
    assert len(open_checkpoint(model).entries) == 4


# --- faults of the folder and its JSON files --------------------------------------------------------------------------


def test_a_missing_folder_a_file_and_a_folder_without_config_are_refused(tmp_path):
    assert "There is no folder" in str(refused(tmp_path / "nowhere"))
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert "is a file, not a model folder" in str(refused(tmp_path / "model.gguf"))
    assert "has no config.json" in str(refused(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert "holds no model*.safetensors" in str(refused(tmp_path))


def test_a_folder_that_may_not_be_looked_into_is_told(model, monkeypatch):
    def denied(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "listdir", denied)
    assert str(refused(model)).startswith(f"{model} cannot be read: Permission denied. ")


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "model.safetensors.index.json"])
@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{\n "a": 1,\n}', "line 3"),
        (b'{"a": 1,\n "b": "\xff"}', "line 2"),
        (b"[1, 2]", "not a JSON object"),
        (b"", "line 1"),
        (b"[" * 100_000, "too deep"),
        (b'{"a": ' + b"1" * 5000 + b"}", "number too long"),
        (b'{"a": 1, "a": 2}', "'a' twice"),
    ],
    ids=["comma", "encoding", "list", "empty", "deep", "number", "repeated"],
)
def test_a_json_file_that_is_none_is_named_with_its_line(model, file, text, why):
    (model / file).write_bytes(text)
    error = refused(model)
    assert why in str(error)
    assert error.path == str(model / file)


def test_a_folder_or_a_pipe_in_place_of_a_file_is_refused_at_once(model):
    for name in (FIRST, "config.json"):
        (model / name).unlink()
        os.mkfifo(model / name)
        assert "not a regular file" in str(refused(model))
        (model / name).unlink()
        (model / name).mkdir()
        assert "not a regular file" in str(refused(model))


def test_an_absent_shard_is_named_with_and_without_an_index(model):
    (model / FIRST).unlink()
    error = refused(model)
    assert error.path == str(model / FIRST)
    assert "is missing" in str(error)
    (model / "model.safetensors.index.json").unlink()
    assert refused(model).path == str(model / FIRST)


def test_a_dangling_link_counts_as_an_absent_shard(model):
    (model / SECOND).unlink()
    (model / SECOND).symlink_to(model / "gone")
    assert "is missing" in str(refused(model))


def test_all_absent_shards_are_counted(model):
    (model / FIRST).unlink(), (model / SECOND).unlink()
    assert "(and 1 more)" in str(refused(model))


# --- an index that lies -----------------------------------------------------------------------------------------------


def test_an_index_naming_a_tensor_that_its_shard_lacks_is_refused_with_near_names(model):
    edit_index(model, lambda table: table["weight_map"].update({"model.language_model.layers.0.bb.weight": FIRST}))
    error = refused(model)
    assert error.tensor == "model.language_model.layers.0.bb.weight"
    assert FIRST in str(error)
    assert "model.language_model.layers.0.b.weight" in str(error)


def test_a_shard_with_a_tensor_that_the_index_lacks_is_refused(model):
    edit_index(model, lambda table: table["weight_map"].pop(ALL[0]))
    error = refused(model)
    assert error.tensor == ALL[0]
    assert error.path == str(model / FIRST)


def test_an_index_that_puts_a_tensor_into_the_wrong_shard_is_refused(model):
    edit_index(model, lambda table: table["weight_map"].update({ALL[0]: SECOND}))
    error = refused(model)
    assert error.tensor == ALL[0]
    assert SECOND in str(error)
    assert FIRST in str(error)


@pytest.mark.parametrize("size", [62, 0, "61", [61], 61.5])
def test_a_total_size_that_lies_is_refused(model, size):
    edit_index(model, lambda table: table["metadata"].update(total_size=size))
    assert "total_size" in str(refused(model))


@pytest.mark.parametrize(
    "shard", ["../x.safetensors", "/etc/passwd", "x.bin", "", 7, None, "a\x00.safetensors", "\ud800"]
)
def test_an_index_can_only_name_files_of_its_folder(model, shard):
    edit_index(model, lambda table: table["weight_map"].update({ALL[0]: shard}))
    assert refused(model).tensor == ALL[0]


@pytest.mark.parametrize("table", [{}, {"weight_map": []}, {"weight_map": {}}, {"weight_map": None}])
def test_an_index_without_a_weight_map_is_refused(model, table):
    write_index(model, table)
    assert "weight_map" in str(refused(model))


def test_a_tensor_in_two_shards_is_refused(model):
    (model / "model.safetensors.index.json").unlink()
    write_shard(model / "model-extra.safetensors", {ALL[0]: TENSORS[ALL[0]]})
    error = refused(model)
    assert error.tensor == ALL[0]
    assert "model-extra" in str(error)
    assert FIRST in str(error)


# --- faults of one safetensors file -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 30])
def test_a_file_cut_off_in_its_header_is_refused(model, size):
    os.truncate(model / SECOND, size)
    assert refused(model).path == str(model / SECOND)


@pytest.mark.parametrize("length", [0, 1, 10**9, 2**63, 2**64 - 1])
def test_an_absurd_header_length_is_refused_without_reading_it(model, length):
    with open(model / FIRST, "r+b") as file:
        file.write(length.to_bytes(8, "little"))
        file.truncate(5 * 10**9)
    assert refused(model).path == str(model / FIRST)


def test_a_file_shorter_or_longer_than_its_header_says_is_refused(model):
    size = (model / FIRST).stat().st_size
    os.truncate(model / FIRST, size - 1)
    error = refused(model)
    assert "shorter" in str(error)
    assert error.tensor == ALL[1]
    os.truncate(model / FIRST, size + 1)
    assert "longer" in str(refused(model))


# --- the fingerprint --------------------------------------------------------------------------------------------------


def test_a_copy_has_the_same_fingerprint_whatever_its_place_and_times(tmp_path):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    write_model(tmp_path / "a"), write_model(tmp_path / "b", index=False)
    os.utime(tmp_path / "b" / FIRST, (1, 1))
    first = open_checkpoint(tmp_path / "a").fingerprint
    assert first == open_checkpoint(tmp_path / "b").fingerprint
    assert first == open_checkpoint(tmp_path / "a").fingerprint
    assert int(first, 16) > 0


def test_one_changed_byte_of_config_or_header_changes_the_fingerprint(model):
    seen = {open_checkpoint(model).fingerprint}
    config = (model / "config.json").read_bytes()
    (model / "config.json").write_bytes(config.replace(b": 2", b": 3"))
    seen.add(open_checkpoint(model).fingerprint)
    (model / "config.json").write_bytes(config + b"\n")
    seen.add(open_checkpoint(model).fingerprint)
    (model / "config.json").write_bytes(config)
    raw = (model / SECOND).read_bytes()
    (model / SECOND).write_bytes(raw.replace(b'"F8_E4M3"', b'"F8_E5M2"'))
    seen.add(open_checkpoint(model).fingerprint)
    (model / "model.safetensors.index.json").unlink()
    (model / SECOND).write_bytes(raw.replace(b"layers.1.c", b"layers.1.d"))
    seen.add(open_checkpoint(model).fingerprint)
    assert len(seen) == 5


# --- reading ----------------------------------------------------------------------------------------------------------


def test_tensors_are_read_with_their_own_bytes_dtype_and_shape(model):
    entries = open_checkpoint(model).entries
    wanted = {ALL[0]: "<i8", ALL[1]: "<u2", ALL[2]: "<u2", ALL[3]: "u1"}
    for name, dtype in wanted.items():
        array = read_tensor(entries[name])
        place = entries[name]
        data = Path(place.path).read_bytes()[place.offset : place.offset + place.n_bytes]
        assert array.dtype == np.dtype(dtype)
        assert array.shape == place.shape
        assert array.tobytes() == data


def test_many_tensors_come_in_file_order_and_equal_single_reads(model):
    entries = open_checkpoint(model).entries
    read = list(read_tensors(reversed(list(entries.values()))))
    assert [entry.name for entry, _ in read] == ALL
    for place, array in read:
        assert np.array_equal(array, read_tensor(place))
        array[...] = 0  # each array has bytes of its own
    assert list(read_tensors([])) == []
    assert [entry.name for entry, _ in read_tensors([entries[ALL[1]], entries[ALL[3]]])] == [ALL[1], ALL[3]]


def test_neighbours_share_a_read_and_keep_their_bytes(tmp_path):
    tensors = {f"t{i}": ("U8", [3]) for i in range(100)}
    (tmp_path / "config.json").write_text("{}")
    write_shard(tmp_path / "model.safetensors", tensors)
    entries = open_checkpoint(tmp_path).entries
    picked = [place for i, place in enumerate(entries.values()) if i % 7]
    for place, array in read_tensors(picked):
        first = 3 * int(place.name[1:])
        assert array.tolist() == [(first + i) % 256 for i in range(3)]


def test_a_short_read_and_a_lost_file_are_checkpoint_errors(model):
    entries = open_checkpoint(model).entries
    place = entries[ALL[3]]
    os.truncate(place.path, place.offset + 2)
    for read in (read_tensor, lambda entry: list(read_tensors([entries[ALL[2]], entry]))):
        with pytest.raises(CheckpointError, match="ends inside") as caught:
            read(place)
        assert caught.value.path == place.path
    os.unlink(place.path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_tensor(place)


# --- anything else ----------------------------------------------------------------------------------------------------


def opened_or_refused(folder):
    """Open and read everything; only a CheckpointError may come instead."""
    try:
        index = open_checkpoint(folder)
        for place, array in read_tensors(index.entries.values()):
            assert array.nbytes == place.n_bytes <= 1000
    except CheckpointError as error:
        str(error).encode()


@many
@given(data=st.data())
def test_changed_bytes_of_any_file_never_raise_anything_else(model, data):
    file = model / data.draw(st.sampled_from([FIRST, SECOND, "config.json", "model.safetensors.index.json"]))
    before = file.read_bytes()
    changed = bytearray(before)
    for place in data.draw(st.lists(st.integers(0, len(before) - 1), min_size=1, max_size=4)):
        changed[place] = data.draw(st.integers(0, 255) | st.sampled_from(b'{}[]",:0123456789-.eE\\n'))
    file.write_bytes(changed)
    try:
        opened_or_refused(model)
    finally:
        file.write_bytes(before)


@many
@given(data=st.data())
def test_a_file_cut_off_or_grown_anywhere_never_raises_anything_else(model, data):
    file = model / data.draw(st.sampled_from([FIRST, SECOND, "config.json", "model.safetensors.index.json"]))
    before = file.read_bytes()
    cut = data.draw(st.integers(0, len(before)))
    file.write_bytes(before[:cut] + data.draw(st.binary(max_size=20)))
    try:
        opened_or_refused(model)
    finally:
        file.write_bytes(before)


@many
@given(
    table=st.fixed_dictionaries(
        {"weight_map": st.dictionaries(st.sampled_from(ALL), json_values), "metadata": json_values}
    )
)
def test_an_index_of_nonsense_never_raises_anything_else(model, table):
    write_index(model, table)
    opened_or_refused(model)
