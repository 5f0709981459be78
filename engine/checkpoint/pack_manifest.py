"""What a packed model folder says about itself: manifest.json, read completely checked, and written.

A packed folder holds config.json and the other small files of its source, `model*.safetensors` with everything but the
experts, and one file of experts a layer. Every expert is a blob of `blob_bytes`, a multiple of PAGE, at expert * blob_bytes.
Knows no model and reads no tensor.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from .codes import Form, form_of
from .header import ITEM_BYTES, file_size, parse_json, shown, unreadable
from .names import Expected

__all__ = [
    "EXPERT_FORMS",
    "FORMAT",
    "JOURNAL",
    "MANIFEST",
    "PAGE",
    "REPACK",
    "PackManifest",
    "PackedExperts",
    "PackedFile",
    "PackedPart",
    "blob_layout",
    "hash_file",
    "read_manifest",
]  # fmt: skip

FORMAT = "qwen-chat pack"
VERSION = 1
MANIFEST = "manifest.json"
JOURNAL = "packing.json"
"""Stands in the folder while it is being packed."""
PAGE = 4096
"""Experts begin and end on multiples of this, so that direct reads need no copy."""
EXPERT_FORMS = ("mxfp4", "mxfp8", "affine8", "affine4", "bf16")

_AGAIN = "Run `qwen-chat pack` again with the same arguments; finished files are kept."
REPACK = "Delete the folder and pack the model again."
_MAX_MANIFEST_BYTES = 64 * 2**20
_SMALL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class PackedPart:
    """One array inside every expert's blob."""

    role: str
    """"gate_up" (gate rows first) or "down", followed by ".scales" or ".biases" for those of a quantised matrix."""
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Bytes from the blob's beginning."""
    n_bytes: int


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """All experts of the folder: those of the trunk's layers and of the draft layer."""

    form: str
    """One of EXPERT_FORMS."""
    group: int
    """Columns that share a scale; 0 for bf16."""
    count: int
    """Experts of one layer."""
    blob_bytes: int
    parts: tuple[PackedPart, ...]
    layers: Mapping[str, str]
    """Canonical layer prefix -> file name below the folder."""


@dataclass(frozen=True, slots=True)
class PackedFile:
    n_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class PackManifest:
    """A checked manifest."""

    source: str
    """Fingerprint of the model folder that was packed."""
    source_name: str
    files_read: Mapping[str, Any]
    """What `Source.stamps` said of its files; empty in a manifest of before they were kept."""
    experts: PackedExperts
    resident_bits: int
    """16: as in the source; 8: the tensors of `quantised` are affine with 8 bits."""
    resident_group: int
    quantised: frozenset[str]
    """Canonical names of the matrices stored with `resident_bits`: codes under the name, `.scales` and `.biases` beside."""
    files: Mapping[str, PackedFile]
    """Every file but the manifest, by its name below the folder."""
    digest: str = ""
    """Over the whole manifest."""

    @property
    def total_bytes(self) -> int:
        """Of every file but the manifest."""
        return sum(file.n_bytes for file in self.files.values())

    def shards(self) -> list[str]:
        """The safetensors files, sorted."""
        return sorted(name for name in self.files if name.endswith(".safetensors"))

    @property
    def resident_form(self) -> Form:
        """How the matrices of `quantised` are stored."""
        return Form("affine", self.resident_bits, self.resident_group)

    def adjusted(self, expected: Mapping[str, Expected]) -> dict[str, Expected]:
        """What a published layout must hold, turned into what this folder's safetensors files must hold."""
        experts = tuple(f"{prefix}.mlp.experts." for prefix in self.experts.layers)
        found = {name: want for name, want in expected.items() if not name.startswith(experts)}
        for name in self.quantised:
            want = found.get(name)
            if want is not None and len(want.shape) == 2:
                rows, columns = want.shape
                stem, groups = name.removesuffix(".weight"), Expected((rows, columns // self.resident_group), ("BF16",))
                found[name] = Expected((rows, columns * self.resident_bits // 32), ("U32",))
                found[f"{stem}.scales"] = found[f"{stem}.biases"] = groups
        return found

    def to_json(self) -> bytes:
        """The bytes of manifest.json."""
        e = self.experts
        table: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "source": {"fingerprint": self.source, "name": self.source_name, "files": self.files_read},
            "experts": {
                "form": e.form, "group": e.group, "count": e.count, "blob_bytes": e.blob_bytes,
                "parts": [
                    {"role": p.role, "dtype": p.dtype, "shape": list(p.shape), "offset": p.offset, "bytes": p.n_bytes}
                    for p in e.parts
                ],
                "layers": dict(e.layers),
            },
            "resident": {
                "bits": self.resident_bits, "group": self.resident_group,
                "quantised": sorted(self.quantised),
            },
            "files": {name: {"bytes": f.n_bytes, "sha256": f.sha256} for name, f in sorted(self.files.items())},
        }  # fmt: skip
        table["sha256"] = _digest(table)
        return (json.dumps(table, indent=1) + "\n").encode()


def blob_layout(width: int, hidden: int, form: Form | None) -> tuple[tuple[PackedPart, ...], int]:
    """The parts of one expert's blob and the blob's bytes; `form` None is BF16."""
    parts: list[PackedPart] = []
    end = 0

    def add(role: str, dtype: str, shape: tuple[int, int]) -> None:
        nonlocal end
        n_bytes = shape[0] * shape[1] * ITEM_BYTES[dtype]
        offset = -(-end // 64) * 64
        parts.append(PackedPart(role, dtype, shape, offset, n_bytes))
        end = offset + n_bytes

    for role, rows, columns in (("gate_up", 2 * width, hidden), ("down", hidden, width)):
        if form is None:
            add(role, "BF16", (rows, columns))
            continue
        add(role, "U32", (rows, columns * form.bits // 32))
        add(f"{role}.scales", form.scale_dtype, (rows, columns // form.group))
        if form.has_biases:
            add(f"{role}.biases", form.scale_dtype, (rows, columns // form.group))
    return tuple(parts), -(-end // PAGE) * PAGE


def _digest(table: Mapping[str, Any]) -> str:
    """Over everything but the digest itself."""
    rest = {key: value for key, value in table.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_manifest(folder: Path) -> PackManifest | None:
    """The manifest of a packed folder, its files' sizes and the small files' hashes checked; None for any other folder.

    Raises CheckpointError for a folder whose packing did not finish, or whose manifest or files are not what was written.
    """
    path = folder / MANIFEST
    if not os.path.exists(path):
        if os.path.exists(folder / JOURNAL):
            raise CheckpointError(f"{folder} was not packed to the end.", _AGAIN, path=str(folder / JOURNAL))
        return None
    size = file_size(str(path), REPACK)
    if size > _MAX_MANIFEST_BYTES:
        raise CheckpointError(
            f"{path} has {size} bytes; at most {_MAX_MANIFEST_BYTES} are expected.", REPACK, path=str(path)
        )
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    table = parse_json(raw, str(path), "the manifest", REPACK)
    if table.get("format") != FORMAT:
        return None
    if table.get("version") != VERSION:
        raise CheckpointError(
            f"{path} has the version {shown(table.get('version'))}; this program reads version {VERSION}.",
            "Use the program that packed it, or pack the model again.",
            path=str(path),
        )
    if table.get("sha256") != _digest(table):
        raise CheckpointError(f"{path} was changed after packing.", REPACK, path=str(path))
    try:
        manifest = _parsed(table)
        _check_experts(manifest)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise CheckpointError(f"{path} is not usable ({shown(str(error))}).", REPACK, path=str(path)) from error
    for name, file in manifest.files.items():
        _check_file(folder, name, file)
    return manifest


def _parsed(table: dict[str, Any]) -> PackManifest:
    e, r = table["experts"], table["resident"]
    parts = tuple(PackedPart(p["role"], p["dtype"], tuple(p["shape"]), p["offset"], p["bytes"]) for p in e["parts"])
    return PackManifest(
        source=table["source"]["fingerprint"],
        source_name=table["source"]["name"],
        files_read=dict(table["source"].get("files", {})),
        experts=PackedExperts(e["form"], e["group"], e["count"], e["blob_bytes"], parts, dict(e["layers"])),
        resident_bits=r["bits"],
        resident_group=r["group"],
        quantised=frozenset(r["quantised"]),
        files={name: PackedFile(f["bytes"], f["sha256"]) for name, f in table["files"].items()},
        digest=table["sha256"],
    )


def _check_experts(manifest: PackManifest) -> None:
    """Raises ValueError for a layout in which a read could go outside its file or its slot."""
    e = manifest.experts
    if e.form not in EXPERT_FORMS or e.count < 1:
        raise ValueError("experts: form or count")
    shapes = {part.role: part.shape for part in e.parts}
    width, hidden = shapes["gate_up"][0] // 2, shapes["down"][0]
    if width < 1 or (e.parts, e.blob_bytes) != blob_layout(width, hidden, form_of(e.form, e.group)):
        raise ValueError("experts: parts or blob_bytes")
    if manifest.quantised and (manifest.resident_bits, manifest.resident_group) != (8, 64):
        raise ValueError("resident: bits or group")
    for name in manifest.files:
        # A manifest can be handed over by strangers: no file outside the folder is named.
        if os.path.isabs(name) or ".." in Path(name).parts or not name.isprintable():
            raise ValueError(f"file {name}")
    for file in e.layers.values():
        if manifest.files[file].n_bytes != e.count * e.blob_bytes:
            raise ValueError(f"experts: {file}")


def _check_file(folder: Path, name: str, file: PackedFile) -> None:
    path = str(folder / name)
    size = file_size(path, REPACK)
    if size != file.n_bytes:
        raise CheckpointError(f"{path} has {size} bytes, {file.n_bytes} were packed.", REPACK, path=path)
    if file.n_bytes <= _SMALL_BYTES and hash_file(path) != file.sha256:
        raise CheckpointError(f"{path} was changed after packing.", REPACK, path=path)


def hash_file(path: str, told: Any = None) -> str:
    """SHA-256 of a file as hex; `told(n)` hears of every n bytes. Raises CheckpointError."""
    digest = hashlib.sha256()
    buffer = bytearray(4 << 20)
    try:
        with open(path, "rb", buffering=0) as file:
            while n := file.readinto(buffer):
                digest.update(memoryview(buffer)[:n])
                if told is not None:
                    told(n)
    except OSError as error:
        raise unreadable(path, error) from error
    return digest.hexdigest()
