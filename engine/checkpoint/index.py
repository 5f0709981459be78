"""A model folder as an index: every tensor's place, the config, a fingerprint; and reading tensors by entry.

Knows safetensors folders (one file, shards with an index, shards without one); knows no model and loads no tensor on
opening. A folder that cannot be trusted is a CheckpointError, never a half-opened index.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError
from .header import DAMAGED, Shapes, TensorEntry, file_size, parse_json, read_header, shown, unreadable
from .names import MIXED, did_you_mean
from .pack_manifest import PackManifest, read_manifest

__all__ = ["CheckpointIndex", "TensorEntry", "open_checkpoint", "read_tensor", "read_tensors"]

_INDEX_NAME = "model.safetensors.index.json"
_MAX_CONFIG_BYTES = 64 * 2**20
_MAX_INDEX_BYTES = 512 * 2**20
_BATCH_BYTES = 8 * 2**20
_SHARD_OF = re.compile(r"-(\d+)-of-(\d+)\.safetensors$")

_NUMPY = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1",
    "U16": "<u2", "I16": "<i2", "F16": "<f2", "BF16": "<u2",
    "U32": "<u4", "I32": "<i4", "F32": "<f4",
    "U64": "<u8", "I64": "<i8", "F64": "<f8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CheckpointIndex:
    """An opened model folder. All of it was checked against the files' sizes; no tensor was read."""

    folder: Path
    config: dict[str, Any]
    """config.json as it stands."""
    generation_config: dict[str, Any]
    """generation_config.json as it stands; {} where there is none."""
    entries: Mapping[str, TensorEntry]
    """Under the checkpoint's own names, in file order."""
    fingerprint: str
    """Hex digest over config.json and the shards' names, sizes and header bytes; equal copies have equal ones."""
    total_bytes: int
    """Bytes of all tensors, without headers; of a packed folder without the experts."""
    packed: PackManifest | None = None
    """The manifest of a packed folder, whose experts are not among the entries; None for a published layout."""


def open_checkpoint(folder: str | os.PathLike[str]) -> CheckpointIndex:
    """Open a model folder. Raises CheckpointError (file, tensor, nearest names) for anything wrong with it."""
    folder = Path(folder)
    if not os.path.exists(folder):
        raise CheckpointError(f"There is no folder {folder}.", "Give the path of a model folder.", path=str(folder))
    if not os.path.isdir(folder):
        raise CheckpointError(
            f"{folder} is a file, not a model folder.",
            "Give the folder that holds config.json and model*.safetensors.",
            path=str(folder),
        )
    try:
        os.listdir(folder)
    except OSError as error:
        raise unreadable(folder, error) from error
    packed = read_manifest(folder)
    config_path = str(folder / "config.json")
    if not os.path.exists(config_path):
        raise CheckpointError(
            f"{folder} is not a model folder: it has no config.json.",
            "Give the folder that holds config.json and model*.safetensors.",
            path=config_path,
        )
    config_bytes = _read_small(config_path, _MAX_CONFIG_BYTES)
    config = parse_json(config_bytes, config_path, "the file")
    generation_path = str(folder / "generation_config.json")
    generation = {}
    if os.path.exists(generation_path):
        generation = parse_json(_read_small(generation_path, _MAX_CONFIG_BYTES), generation_path, "the file")

    index_path = str(folder / _INDEX_NAME)
    weight_map: dict[str, str] | None = None
    total_size: object = None
    if packed is not None:
        shards = packed.shards()
    elif os.path.exists(index_path):
        weight_map, total_size = _read_index(index_path)
        shards = sorted(set(weight_map.values()))
    else:
        shards = _shards_without_index(folder)

    digest = hashlib.sha256()
    _feed(digest, b"config.json", config_bytes)
    if packed is not None:
        _feed(digest, b"manifest", packed.digest.encode())
    entries: dict[str, TensorEntry] = {}
    shapes: Shapes = {}
    _check_present(folder, shards)
    for shard in shards:
        header = read_header(str(folder / shard), shapes)
        _feed(digest, shard.encode(), header.size.to_bytes(8, "little"), header.raw)
        for entry in header.entries:
            known = entries.setdefault(entry.name, entry)
            if known is not entry:
                raise CheckpointError(
                    f"{entry.path}: tensor {shown(entry.name)} is also in {known.path}.",
                    MIXED,
                    path=entry.path,
                    tensor=entry.name,
                )
    total = sum(entry.n_bytes for entry in entries.values())
    if weight_map is not None:
        _check_index(index_path, weight_map, total_size, entries, total)
    return CheckpointIndex(folder, config, generation, entries, digest.hexdigest(), total, packed)


def read_tensor(entry: TensorEntry) -> np.ndarray:
    """One whole tensor, C-contiguous: BF16 as uint16, F8 dtypes as uint8, others as they are.

    Raises CheckpointError when the file cannot be read or has fewer bytes.
    """
    return _as_array(entry, _read_bytes(entry.path, entry.offset, entry.n_bytes, entry.name))


def read_tensors(entries: Iterable[TensorEntry]) -> Iterator[tuple[TensorEntry, np.ndarray]]:
    """Many tensors, one after another in file order; neighbours in the file share one read. Arrays as in read_tensor."""
    batch: list[TensorEntry] = []
    for entry in sorted(entries, key=lambda entry: (entry.path, entry.offset)):
        if batch:
            first, last = batch[0], batch[-1]
            touches = entry.path == last.path and entry.offset == last.offset + last.n_bytes
            if not touches or entry.offset + entry.n_bytes - first.offset > _BATCH_BYTES:
                yield from _read_batch(batch)
                batch = []
        batch.append(entry)
    if batch:
        yield from _read_batch(batch)


def _read_batch(batch: list[TensorEntry]) -> Iterator[tuple[TensorEntry, np.ndarray]]:
    if len(batch) == 1:
        yield batch[0], read_tensor(batch[0])
        return
    first, last = batch[0], batch[-1]
    data = _read_bytes(first.path, first.offset, last.offset + last.n_bytes - first.offset, first.name)
    for entry in batch:
        begin = entry.offset - first.offset
        yield entry, _as_array(entry, data[begin : begin + entry.n_bytes].copy())


def _as_array(entry: TensorEntry, data: np.ndarray) -> np.ndarray:
    return data.view(_NUMPY[entry.dtype]).reshape(entry.shape)


def _read_bytes(path: str, offset: int, n_bytes: int, tensor: str) -> np.ndarray:
    data = np.empty(n_bytes, np.uint8)
    view = data.data
    done = 0
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(offset)
            while done < n_bytes:
                count = file.readinto(view[done:])
                if not count:
                    raise CheckpointError(
                        f"{path} ends inside tensor {shown(tensor)} ({done} of {n_bytes} bytes read).",
                        MIXED,
                        path=path,
                        tensor=tensor,
                    )
                done += count
    except OSError as error:
        raise unreadable(path, error) from error
    return data


def _read_small(path: str, most: int) -> bytes:
    size = file_size(path)
    if size > most:
        raise CheckpointError(f"{path} has {size} bytes; at most {most} are expected.", DAMAGED, path=path)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error


def _feed(digest: Any, *parts: bytes) -> None:
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)


def _shards_without_index(folder: Path) -> list[str]:
    shards = sorted(path.name for path in folder.glob("model*.safetensors"))
    if not shards:
        raise CheckpointError(
            f"{folder} holds no model*.safetensors file.",
            "Give a folder with weights in safetensors.",
            path=str(folder),
        )
    for match in filter(None, map(_SHARD_OF.search, shards)):
        stem, digits, count = match.string[: match.start()], len(match[1]), int(match[2])
        if count <= 100_000:
            present = set(shards)
            wanted = [f"{stem}-{i:0{digits}d}-of-{match[2]}.safetensors" for i in range(1, count + 1)]
            _require(folder, [name for name in wanted if name not in present])
    return shards


def _check_present(folder: Path, shards: list[str]) -> None:
    _require(folder, [shard for shard in shards if not os.path.exists(folder / shard)])


def _require(folder: Path, absent: list[str]) -> None:
    if absent:
        more = f" (and {len(absent) - 1} more)" if len(absent) > 1 else ""
        raise CheckpointError(f"{folder / absent[0]} is missing{more}.", MIXED, path=str(folder / absent[0]))


def _read_index(path: str) -> tuple[dict[str, str], object]:
    """The weight map and metadata.total_size (None where absent) of an index file."""
    table = parse_json(_read_small(path, _MAX_INDEX_BYTES), path, "the index")
    weight_map, metadata = table.get("weight_map"), table.get("metadata")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path} has no weight_map.", MIXED, path=path)
    for shard in {value if isinstance(value, str) else "" for value in weight_map.values()}:
        if not shard.endswith(".safetensors") or not shard.isprintable() or os.path.basename(shard) != shard:
            tensor = next(name for name, value in weight_map.items() if value == shard or not isinstance(value, str))
            raise CheckpointError(
                f"{path} puts {shown(tensor)} into {shown(weight_map[tensor])}, which is no safetensors file name.",
                MIXED,
                path=path,
                tensor=tensor,
            )
    return weight_map, metadata.get("total_size") if isinstance(metadata, dict) else None


def _check_index(
    path: str, weight_map: dict[str, str], total_size: object, entries: Mapping[str, TensorEntry], total: int
) -> None:
    """The index and the shards name the same tensors in the same files, and the same number of bytes."""
    paths = {shard: os.path.join(os.path.dirname(path), shard) for shard in set(weight_map.values())}
    for name, entry in entries.items():
        shard = weight_map.get(name)
        if shard is None:
            raise CheckpointError(
                f"{entry.path} holds {shown(name)}, which {_INDEX_NAME} does not name.",
                did_you_mean(name, weight_map) or MIXED,
                path=entry.path,
                tensor=name,
            )
        if entry.path != paths[shard]:
            raise CheckpointError(
                f"{path} puts {shown(name)} into {shard}, but it is in {os.path.basename(entry.path)}.",
                MIXED,
                path=path,
                tensor=name,
            )
    if len(weight_map) != len(entries):
        absent = [name for name in weight_map if name not in entries]
        name = absent[0]
        more = f" (and {len(absent) - 1} more)" if len(absent) > 1 else ""
        raise CheckpointError(
            f"{path} names {shown(name)}{more}, which {weight_map[name]} does not hold.",
            did_you_mean(name, entries) or MIXED,
            path=path,
            tensor=name,
        )
    if total_size is not None and total_size != total:
        raise CheckpointError(
            f"{path} says total_size {shown(total_size)}, but the tensors take {total} bytes.",
            MIXED,
            path=path,
        )
