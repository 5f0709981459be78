"""One safetensors file: its header, checked completely, as tensor entries. Reads no tensor data, knows no model.

A safetensors file is an unsigned 64-bit length, that many bytes of JSON ({name: {dtype, shape, data_offsets}}), and the
tensors' bytes without a gap. Everything that can be wrong with that is a CheckpointError with the file and the tensor.
"""

from __future__ import annotations

import json
import os
import reprlib
import stat
from dataclasses import dataclass
from math import prod
from typing import Any

from ..errors import CheckpointError

__all__ = [
    "DAMAGED",
    "ITEM_BYTES",
    "Header",
    "Shapes",
    "TensorEntry",
    "file_size",
    "parse_json",
    "read_header",
    "shown",
    "unreadable",
]

ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
"""Bytes of one element by safetensors dtype string: the dtypes this program can read."""

Shapes = dict[tuple[int, ...], tuple[tuple[int, ...], int]]
"""Shapes met so far, each with its number of elements: equal shapes of many tensors share one tuple."""

_ITEM = {dtype: (dtype, n_bytes) for dtype, n_bytes in ITEM_BYTES.items()}  # one string object per dtype
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
_MAX_DIMS = 32
_MAX_ELEMENTS = 2**59  # what numpy can address, whatever the dtype
DAMAGED = "The file is damaged or was not downloaded completely; download it again."


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies: bytes [offset, offset + n_bytes) of `path`, C order, little-endian."""

    name: str
    """The checkpoint's own spelling."""
    dtype: str
    """The safetensors string, such as "BF16" or "F8_E4M3"; a key of ITEM_BYTES."""
    shape: tuple[int, ...]
    path: str
    offset: int
    """Bytes from the beginning of the file."""
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """A checked header: `entries` in file order, `raw` the header's JSON bytes, `size` the whole file's bytes."""

    entries: list[TensorEntry]
    raw: bytes
    size: int


def shown(value: object) -> str:
    """A name or another value from a file, safe and short enough for an error message."""
    if isinstance(value, str):
        return repr(value if len(value) <= 200 else value[:197] + "...")
    return reprlib.repr(value)


def unreadable(path: str | os.PathLike[str], error: OSError) -> CheckpointError:
    """The error for a file of a checkpoint that the system does not give."""
    hint = "Check that it is there, that you may read it, and that its disk works."
    return CheckpointError(f"{path} cannot be read: {error.strerror or error}.", hint, path=str(path))


def file_size(path: str, hint: str = DAMAGED) -> int:
    """Bytes of a regular file. Raises CheckpointError when there is none that can be read, with the hint for another kind."""
    try:
        info = os.stat(path)
    except OSError as error:
        raise unreadable(path, error) from error
    if not stat.S_ISREG(info.st_mode):
        raise CheckpointError(f"{path} is not a regular file.", hint, path=path)
    return info.st_size


def parse_json(raw: bytes, path: str, what: str, hint: str = DAMAGED) -> dict[str, Any]:
    """`raw` as a JSON object without repeated keys. Raises CheckpointError with the line where known, and the hint."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))
            raise CheckpointError(f"{path}: {what} holds {shown(twice)} twice.", hint, path=path, tensor=twice)
        return table

    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise CheckpointError(f"{path}: {what} is not valid JSON ({error.msg}, {where}).", hint, path=path) from error
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise CheckpointError(f"{path}: {what} is not UTF-8 text (line {line}).", hint, path=path) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: {what} is not usable JSON (too deep, or a number too long).", hint, path=path
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: {what} is not a JSON object.", hint, path=path)
    return value


def read_header(path: str, shapes: Shapes | None = None) -> Header:
    """The header of one safetensors file; `shapes` lets equal shapes of many files share one tuple.

    Raises CheckpointError for a file that is absent, truncated, longer than its header says, or whose header is damaged.
    """
    size = file_size(path)
    if size < 8:
        raise CheckpointError(f"{path} is too short for a safetensors file ({size} bytes).", DAMAGED, path=path)
    try:
        with open(path, "rb", buffering=0) as file:
            start = file.read(9)
            length = int.from_bytes(start[:8], "little")
            if length > size - 8 or length > _MAX_HEADER_BYTES:
                raise CheckpointError(
                    f"{path} claims a header of {length} bytes, the file has {size}.", DAMAGED, path=path
                )
            if length < 2 or start[8:9] != b"{":
                raise CheckpointError(f"{path} does not begin with a safetensors header.", DAMAGED, path=path)
            file.seek(8)
            raw = file.read(length)
    except OSError as error:
        raise unreadable(path, error) from error
    if len(raw) != length:
        raise CheckpointError(f"{path}: the header ends early.", DAMAGED, path=path)
    table = parse_json(raw, path, "the header")
    table.pop("__metadata__", None)
    entries = _entries(table, path, 8 + length, {} if shapes is None else shapes)
    _check_ranges(entries, path, 8 + length, size)
    return Header(entries, raw, size)


def _entries(table: dict[str, Any], path: str, base: int, shapes: Shapes) -> list[TensorEntry]:
    """One entry per tensor, in order of offset; each range agrees with its shape and dtype."""
    entries: list[TensorEntry] = []
    for name, info in table.items():
        try:
            dtype, dims, (begin, end) = info["dtype"], info["shape"], info["data_offsets"]
        except (TypeError, KeyError, ValueError):
            raise _fault(path, name, "lacks a dtype, a shape or two data_offsets") from None
        item = _ITEM.get(dtype) if type(dtype) is str else None
        if item is None:
            raise _fault(path, name, f"has the dtype {shown(dtype)}; known are {', '.join(ITEM_BYTES)}")
        if type(dims) is not list or list(map(type, dims)).count(int) != len(dims):
            raise _fault(path, name, f"has the impossible shape {shown(dims)}")
        shape = tuple(dims)
        known = shapes.get(shape)
        if known is None:
            if len(shape) > _MAX_DIMS or min(shape, default=0) < 0 or prod(filter(None, shape)) >= _MAX_ELEMENTS:
                raise _fault(path, name, f"has the impossible shape {shown(dims)}")
            known = shapes[shape] = (shape, prod(shape))
        n_bytes = known[1] * item[1]
        if type(begin) is not int or type(end) is not int or begin < 0 or end - begin != n_bytes:
            spans = shown([begin, end])
            raise _fault(path, name, f"is {dtype} {dims}, {n_bytes} bytes, but its data_offsets are {spans}")
        entries.append(TensorEntry(name, item[0], known[0], path, base + begin, n_bytes))
    entries.sort(key=_position)
    return entries


def _position(entry: TensorEntry) -> tuple[int, int]:
    return entry.offset, entry.n_bytes


def _check_ranges(entries: list[TensorEntry], path: str, base: int, size: int) -> None:
    """The ranges fill the file from `base` to its last byte, without a gap or an overlap."""
    end = base
    before = ""
    for entry in entries:
        if entry.offset < end:
            raise _fault(path, entry.name, f"overlaps {shown(before)} by {end - entry.offset} bytes")
        if entry.offset > end:
            raise _fault(path, entry.name, f"lies {entry.offset - end} bytes behind where it must begin")
        end, before = entry.offset + entry.n_bytes, entry.name
    if size != end:
        fault = "shorter" if size < end else "longer"
        tensor = next((entry.name for entry in entries if entry.offset + entry.n_bytes > size), None)
        raise CheckpointError(
            f"{path} is {fault} than its header says ({size} bytes, not {end}"
            + (f"; cut off at {shown(tensor)})." if tensor is not None else ")."),
            DAMAGED,
            path=path,
            tensor=tensor,
        )


def _fault(path: str, tensor: str, why: str) -> CheckpointError:
    return CheckpointError(f"{path}: tensor {shown(tensor)} {why}.", DAMAGED, path=path, tensor=tensor)
