"""The header of one safetensors file: every fault of it as one CheckpointError that names the file and the tensor."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from bad_files import json_values, many, refused, write_raw

from qwen_chat_mlx.engine.checkpoint.index import open_checkpoint, read_tensor
from qwen_chat_mlx.engine.errors import CheckpointError


def single(tmp_path, header, data=b"", config="{}"):
    (tmp_path / "config.json").write_text(config)
    write_raw(tmp_path / "model.safetensors", header, data)
    return tmp_path


def entry(dtype="BF16", shape=(2,), span=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(span)}


def test_a_folder_may_hold_empty_tensors_scalars_metadata_and_no_tensors_at_all(tmp_path):
    header = {
        "__metadata__": {"format": "pt"},
        "none": entry("F32", (0, 4), (0, 0)),
        "scalar": entry("F32", (), (0, 4)),
        "last": entry("F32", (0,), (4, 4)),
    }
    index = open_checkpoint(single(tmp_path, header, np.float32(1.5).tobytes()))
    assert read_tensor(index.entries["none"]).shape == (0, 4)
    assert read_tensor(index.entries["scalar"]) == np.float32(1.5)
    assert open_checkpoint(single(tmp_path, {})).entries == {}


@pytest.mark.parametrize(
    "raw",
    [
        b"not json at all",
        b'{"a": }',
        b'{"a": {"dtype": "BF16"',
        b"{" + b'"a":{' * 5000,
        b'{"\xff": 1}',
        b'{"a": {"dtype":"U8","shape":[1],"data_offsets":[0,1]}, "a": {"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
    ],
    ids=["text", "value", "cut", "deep", "encoding", "repeated"],
)
def test_a_header_that_is_no_json_object_is_refused(tmp_path, raw):
    assert refused(single(tmp_path, raw, b"x")).path == str(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("info", "why"),
    [
        (entry("F8_E9"), "'F8_E9'"),
        (entry(None), "None"),
        (entry(["BF16"]), "dtype"),
        (entry(shape=(-2,)), "impossible shape"),
        (entry(shape=(2.0,)), "impossible shape"),
        (entry(shape=(True, 2)), "impossible shape"),
        (entry(shape=([2],)), "impossible shape"),
        (entry(shape=("2",)), "impossible shape"),
        (entry(shape=(10**30, 10**30), span=(0, 0)), "impossible shape"),
        (entry(shape=(0, 10**30), span=(0, 0)), "impossible shape"),
        (entry(shape=(1,) * 200, span=(0, 2)), "impossible shape"),
        ({**entry(), "shape": 2}, "impossible shape"),
        ({**entry(), "shape": None}, "impossible shape"),
        (entry(span=(0, 2)), "data_offsets"),
        (entry(span=(4, 0)), "data_offsets"),
        (entry(span=(-4, 0)), "data_offsets"),
        (entry(span=(0.0, 4.0)), "data_offsets"),
        (entry(span=(0, 4, 8)), "data_offsets"),
        (entry(span=()), "data_offsets"),
        ({"dtype": "BF16", "shape": [2]}, "data_offsets"),
        ({"shape": [2], "data_offsets": [0, 4]}, "dtype"),
        (None, "dtype"),
        (["dtype"], "dtype"),
        (entry(span=(2, 6)), "behind where it must begin"),
        (entry(span=(10**25, 10**25 + 4)), "behind where it must begin"),
    ],
)
def test_a_tensor_that_cannot_be_is_named_with_the_reason(tmp_path, info, why):
    error = refused(single(tmp_path, {"good.weight": entry("U8", (0,), (0, 0)), "bad.weight": info}, b"1234"))
    assert why in str(error)
    assert error.tensor == "bad.weight"
    assert error.path == str(tmp_path / "model.safetensors")


def test_overlapping_tensors_are_refused(tmp_path):
    error = refused(single(tmp_path, {"a": entry(span=(0, 4)), "b": entry(span=(2, 6))}, b"123456"))
    assert error.tensor == "b"
    assert "overlaps 'a' by 2 bytes" in str(error)


def test_a_gap_between_tensors_is_refused(tmp_path):
    error = refused(single(tmp_path, {"a": entry(span=(0, 4)), "b": entry(span=(5, 9))}, b"123456789"))
    assert error.tensor == "b"
    assert "lies 1 bytes behind" in str(error)


@pytest.mark.parametrize(
    "name", ["\x1b[2J", "\ud800", "\n", "x" * 10_000], ids=["escape", "surrogate", "newline", "long"]
)
def test_a_hostile_name_does_not_reach_the_terminal(tmp_path, name):
    header = json.dumps({name: entry("NO")}).encode()
    assert len(str(refused(single(tmp_path, header, b"1234")))) < 1000


infos = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["BF16", "U8", "F32", "I64", "X"]) | json_values,
        "shape": st.lists(st.integers(-1, 5), max_size=3) | json_values,
        "data_offsets": st.lists(st.integers(-1, 40), min_size=2, max_size=2) | json_values,
    }
)


@many
@given(header=st.dictionaries(st.text(max_size=6), infos | json_values, max_size=3), size=st.integers(0, 40))
def test_a_well_formed_header_of_nonsense_never_raises_anything_else(tmp_path, header, size):
    try:
        index = open_checkpoint(single(tmp_path, json.dumps(header).encode(), bytes(size)))
        assert sum(read_tensor(place).nbytes for place in index.entries.values()) == size
    except CheckpointError as error:
        str(error).encode()
