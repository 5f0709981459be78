"""Where each expert's bytes lie in the files and where they land in a slot. Reads only scales, knows no MLX and no policy.

A slot holds one expert: its matrices one after another, in the order the files have them, so that an expert stored in
one piece is one read. Places are kept as numbers in arrays; ranges are made when asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..checkpoint.codes import form_of
from ..checkpoint.header import ITEM_BYTES, TensorEntry, shown
from ..checkpoint.index import read_tensors
from ..checkpoint.names import did_you_mean
from ..checkpoint.pack_manifest import PackedExperts
from ..checkpoint.quant import Quantization, Stored, bad_scale, check_scales, stored_as
from ..errors import CheckpointError

__all__ = ["ExpertLayout", "LayerImage", "Part", "ReadRange", "expert_layout", "expert_scales", "packed_layout"]

SLOT_ALIGNMENT = 64
_PAGE = 16384
"""The largest page of the systems that this runs on."""

_FUSED = {"gate_up": "gate_up_proj", "down": "down_proj"}
_SINGLE = {"gate": "gate_proj.weight", "up": "up_proj.weight", "down": "down_proj.weight"}


@dataclass(frozen=True, slots=True)
class Part:
    """One matrix of an expert inside a slot; the same for all experts of a pool."""

    role: str
    """"gate_up" (gate rows first) and "down", or "gate", "up" and "down"; with ".scales" or ".biases" where packed."""
    dtype: str
    """The safetensors dtype of the stored bytes."""
    shape: tuple[int, ...]
    slot_offset: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Bytes [offset, offset + n_bytes) of a file, to be put at `slot_offset` of a slot (or of a layer buffer)."""

    path: str
    offset: int
    n_bytes: int
    slot_offset: int


@dataclass(frozen=True, slots=True)
class LayerImage:
    """A whole layer in memory: stretches of its files as they are, each as far into a page as in its file.

    So direct reads go straight to their place wherever an expert begins, and a layer is a few long reads.
    """

    ranges: tuple[ReadRange, ...]
    """The stretches, in file order."""
    starts: np.ndarray
    """int64 [experts, reads of one expert]: where each read's bytes begin."""
    n_bytes: int
    """Room that it takes, from the beginning of a page."""


class ExpertLayout:
    """The places of all experts of one pool: layers x experts, every expert with the same parts."""

    __slots__ = (
        "_files", "_layer_bytes", "_offsets", "_paths", "parts", "prefixes", "reads", "slot_bytes", "stored",
    )  # fmt: skip

    def __init__(
        self,
        *,
        prefixes: tuple[str, ...],
        parts: tuple[Part, ...],
        stored: dict[str, Stored],
        paths: tuple[str, ...],
        files: np.ndarray,
        offsets: np.ndarray,
        blob_bytes: int | None = None,
    ) -> None:
        """`files` (int32, indices into `paths`) and `offsets` (int64) are [layers, experts, parts].

        With `blob_bytes` an expert is one read of that many bytes as it lies in the file, and they are [layers, experts, 1].
        """
        self.prefixes = prefixes
        self.parts = parts
        self.stored = stored
        """How each role's matrix is stored; scales are those of expert 0 of the first layer."""
        end = max(part.slot_offset + part.n_bytes for part in parts)
        self.slot_bytes = blob_bytes or -(-end // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
        self.reads = ((blob_bytes, 0),) if blob_bytes else tuple((p.n_bytes, p.slot_offset) for p in parts)
        """What an expert is read in: (bytes, place in a slot)."""
        self._paths, self._files, self._offsets = paths, files, offsets
        self._layer_bytes = 0

    @property
    def n_layers(self) -> int:
        return self._offsets.shape[0]

    @property
    def n_experts(self) -> int:
        """Experts of one layer."""
        return self._offsets.shape[1]

    @property
    def paths(self) -> tuple[str, ...]:
        """Every file that ranges can name."""
        return self._paths

    @property
    def expert_bytes(self) -> int:
        """Bytes read for one expert."""
        return sum(n_bytes for n_bytes, _ in self.reads)

    @property
    def total_bytes(self) -> int:
        """Bytes of all experts in the files."""
        return self.expert_bytes * self.n_layers * self.n_experts

    def part(self, role: str) -> Part:
        """The part with this role. Raises KeyError."""
        for part in self.parts:
            if part.role == role:
                return part
        raise KeyError(role)

    def ranges(self, layer: int, expert: int) -> tuple[ReadRange, ...]:
        """The reads that fill one slot; neighbours in both the file and the slot are one. IndexError out of range."""
        self._check(layer, expert)
        files, offsets = self._files[layer, expert].tolist(), self._offsets[layer, expert].tolist()
        pieces = [(files[i], offsets[i], n_bytes, at) for i, (n_bytes, at) in enumerate(self.reads)]
        return _merged(pieces, self._paths)

    def layer_image(self, layer: int) -> LayerImage:
        """How a whole layer is read and where it lies then. IndexError out of range."""
        self._check(layer, 0)
        files, offsets = self._files[layer].reshape(-1), self._offsets[layer].reshape(-1)
        sizes = np.tile([n_bytes for n_bytes, _ in self.reads], self.n_experts)
        order = np.lexsort((offsets, files))
        files, offsets, sizes = files[order], offsets[order], sizes[order]
        item = max(ITEM_BYTES[part.dtype] for part in self.parts)
        begins = np.ones(len(order), bool)
        begins[1:] = (
            (files[1:] != files[:-1])
            | (offsets[1:] != offsets[:-1] + sizes[:-1])
            | (offsets[1:] % item != offsets[:-1] % item)
        )
        first = np.flatnonzero(begins)
        ranges: list[ReadRange] = []
        end = 0
        for i, n_bytes in zip(first.tolist(), np.add.reduceat(sizes, first).tolist()):
            offset = int(offsets[i])
            # Where a file has items at places that they cannot have in memory, the bytes move.
            at = -(-end // _PAGE) * _PAGE + offset % _PAGE // item * item
            ranges.append(ReadRange(self._paths[files[i]], offset, n_bytes, at))
            end = at + n_bytes
        stretch = np.cumsum(begins) - 1
        starts = np.empty(len(order), np.int64)
        starts[order] = np.array([r.slot_offset for r in ranges])[stretch] + offsets - offsets[first][stretch]
        return LayerImage(tuple(ranges), starts.reshape(self.n_experts, -1), end)

    @property
    def part_starts(self) -> list[tuple[int, int]]:
        """Where each part of an expert begins: (number of the read that brings it, bytes behind that read's begin)."""
        whole = len(self.reads) == 1
        return [(0, p.slot_offset) if whole else (i, 0) for i, p in enumerate(self.parts)]

    @property
    def layer_bytes(self) -> int:
        """Room for any layer as a whole."""
        if not self._layer_bytes:
            self._layer_bytes = max(self.layer_image(layer).n_bytes for layer in range(self.n_layers))
        return self._layer_bytes

    def _check(self, layer: int, expert: int) -> None:
        if not (0 <= layer < self.n_layers and 0 <= expert < self.n_experts):
            raise IndexError(f"no expert ({layer}, {expert}) in {self.n_layers} x {self.n_experts}")


def _merged(pieces: list[tuple[int, int, int, int]], paths: tuple[str, ...]) -> tuple[ReadRange, ...]:
    """Pieces (file, offset, n_bytes, slot_offset) as ranges; one that continues its predecessor in both joins it."""
    ranges: list[ReadRange] = []
    file, offset, n_bytes, slot_offset = pieces[0]
    for next_file, next_offset, next_bytes, next_slot in pieces[1:]:
        if next_file == file and next_offset == offset + n_bytes and next_slot == slot_offset + n_bytes:
            n_bytes += next_bytes
            continue
        ranges.append(ReadRange(paths[file], offset, n_bytes, slot_offset))
        file, offset, n_bytes, slot_offset = next_file, next_offset, next_bytes, next_slot
    ranges.append(ReadRange(paths[file], offset, n_bytes, slot_offset))
    return tuple(ranges)


def expert_layout(
    entries: Mapping[str, TensorEntry], prefixes: Sequence[str], n_experts: int, quantization: Quantization
) -> ExpertLayout:
    """The layout of one pool from canonical `entries`.

    `prefixes` names its layers in order ("model.language_model.layers.0", ... or "mtp.layers.0" alone). Experts are fused
    (`mlp.experts.gate_up_proj` [E, 2I, H] and `down_proj` [E, H, I]) or single (`mlp.experts.E.gate_proj.weight` ...).
    Raises CheckpointError when one is missing or differs in shape or dtype from expert 0 of the first layer.
    """
    if not prefixes or n_experts < 1:
        raise CheckpointError("A model without layers or routed experts is not supported.", "Check config.json.")
    stem = f"{prefixes[0]}.mlp.experts"
    fused = f"{stem}.gate_up_proj" in entries
    names = (
        {role: f"{stem}.{tail}" for role, tail in _FUSED.items()}
        if fused
        else {role: f"{stem}.0.{tail}" for role, tail in _SINGLE.items()}
    )
    stored = {role: stored_as(entries, name, quantization) for role, name in names.items()}
    for role, form in stored.items():
        if form.kind == "fp8_scalar":
            raise _fault(entries[names[role]], f"has one scale ({form.scale}); experts need scales per block")
    roles = sorted(names, key=lambda role: (entries[names[role]].path, entries[names[role]].offset))
    parts = _parts(entries, {role: names[role] for role in roles}, fused, n_experts)

    paths: dict[str, int] = {}
    files = np.empty((len(prefixes), n_experts, len(parts)), np.int32)
    offsets = np.empty((len(prefixes), n_experts, len(parts)), np.int64)
    for layer, prefix in enumerate(prefixes):
        for i, part in enumerate(parts):
            if fused:
                name = f"{prefix}.mlp.experts.{_FUSED[part.role]}"
                entry = _checked(entries, name, part.dtype, (n_experts, *part.shape))
                files[layer, :, i] = paths.setdefault(entry.path, len(paths))
                offsets[layer, :, i] = entry.offset + np.arange(n_experts, dtype=np.int64) * part.n_bytes
                continue
            for expert in range(n_experts):
                name = f"{prefix}.mlp.experts.{expert}.{_SINGLE[part.role]}"
                entry = _checked(entries, name, part.dtype, part.shape)
                files[layer, expert, i] = paths.setdefault(entry.path, len(paths))
                offsets[layer, expert, i] = entry.offset
    return ExpertLayout(
        prefixes=tuple(prefixes), parts=parts, stored=stored, paths=tuple(paths), files=files, offsets=offsets
    )


def packed_layout(folder: Path, packed: PackedExperts, prefixes: Sequence[str], n_experts: int) -> ExpertLayout:
    """The layout of one pool of a packed folder. Raises CheckpointError when the manifest lacks a layer or experts."""
    absent = next((prefix for prefix in prefixes if prefix not in packed.layers), None)
    if absent is not None or packed.count != n_experts or not prefixes:
        what = f"no experts of {absent}" if absent else f"{packed.count} experts a layer, the model has {n_experts}"
        raise CheckpointError(
            f"{folder} has {what}.", "Pack the model again, from the complete folder.", path=str(folder)
        )
    parts = tuple(Part(p.role, p.dtype, p.shape, p.offset, p.n_bytes) for p in packed.parts)
    form = form_of(packed.form, packed.group)
    stored = {
        part.role: Stored("plain" if form is None else "packed", part.dtype, part.shape, form=form)
        for part in parts
        if "." not in part.role
    }
    shape = (len(prefixes), n_experts, 1)
    return ExpertLayout(
        prefixes=tuple(prefixes),
        parts=parts,
        stored=stored,
        paths=tuple(str(folder / packed.layers[prefix]) for prefix in prefixes),
        files=np.broadcast_to(np.arange(shape[0], dtype=np.int32)[:, None, None], shape),
        offsets=np.broadcast_to(np.arange(n_experts, dtype=np.int64)[:, None] * packed.blob_bytes, shape),
        blob_bytes=packed.blob_bytes,
    )


def _parts(
    entries: Mapping[str, TensorEntry], names: Mapping[str, str], fused: bool, n_experts: int
) -> tuple[Part, ...]:
    """The parts in the order of `names`, each at an offset that its dtype's items can have."""
    parts: list[Part] = []
    end = 0
    for role, name in names.items():
        entry = entries[name]
        if len(entry.shape) != (3 if fused else 2) or (fused and entry.shape[0] != n_experts):
            want = f"[{n_experts}, rows, columns]" if fused else "[rows, columns]"
            raise _fault(entry, f"has the shape {list(entry.shape)}, expected {want}")
        item = ITEM_BYTES[entry.dtype]
        n_bytes = entry.n_bytes // n_experts if fused else entry.n_bytes
        offset = -(-end // item) * item
        parts.append(Part(role, entry.dtype, entry.shape[1:] if fused else entry.shape, offset, n_bytes))
        end = offset + n_bytes
    return tuple(parts)


def _checked(entries: Mapping[str, TensorEntry], name: str, dtype: str, shape: tuple[int, ...]) -> TensorEntry:
    entry = entries.get(name)
    if entry is None:
        raise CheckpointError(f"Tensor {shown(name)} is missing.", did_you_mean(name, entries), tensor=name)
    if entry.dtype != dtype or entry.shape != shape:
        raise _fault(entry, f"is {entry.dtype} {list(entry.shape)}, expected {dtype} {list(shape)}")
    return entry


def expert_scales(
    entries: Mapping[str, TensorEntry], layout: ExpertLayout, layer: int, quantization: Quantization
) -> dict[str, np.ndarray]:
    """The block scales of one layer's experts by role: BF16 bits, uint16 [E, r, c]; {} for experts that have none.

    Read from disk, all of them checked. Raises CheckpointError for a scale that is missing, misshapen or not positive.
    """
    scales: dict[str, list[TensorEntry]] = {}
    for part in layout.parts:
        if part.role in layout.stored and layout.stored[part.role].kind == "fp8_block":
            scales[part.role] = [
                _block_scale(
                    entries, f"{layout.prefixes[layer]}.mlp.experts.{expert}.{_SINGLE[part.role]}", quantization
                )
                for expert in range(layout.n_experts)
            ]
    found = {role: np.empty((layout.n_experts, *places[0].shape), np.uint16) for role, places in scales.items()}
    target = {entry.name: found[role][expert] for role in scales for expert, entry in enumerate(scales[role])}
    # All roles in one pass: their scales are neighbours in the file, so a layer is one read.
    for entry, values in read_tensors(entry for places in scales.values() for entry in places):
        target[entry.name][...] = values
    for role, values in found.items():
        position = bad_scale(values)
        if position is not None:
            check_scales(values[position[0]], scales[role][position[0]])
    return found


def _block_scale(entries: Mapping[str, TensorEntry], name: str, quantization: Quantization) -> TensorEntry:
    """The scale tensor of one expert's matrix."""
    stored = stored_as(entries, name, quantization)
    if stored.kind != "fp8_block" or stored.scale is None:
        raise _fault(entries[name], "has no scales per block, unlike expert 0 of the first layer")
    return entries[stored.scale]


def _fault(entry: TensorEntry, why: str) -> CheckpointError:
    return CheckpointError(f"{entry.path}: tensor {shown(entry.name)} {why}.", path=entry.path, tensor=entry.name)
