"""A model folder as packing sees it: its experts one at a time, its other tensors, its small files. Knows no model.

Experts are found by name: `PREFIX.mlp.experts.gate_up_proj` and `down_proj` for all experts of a layer, or
`PREFIX.mlp.experts.E.{gate,up,down}_proj.weight` for each.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..errors import CheckpointError
from .codes import f32_to_bf16
from .header import TensorEntry, shown, unreadable
from .index import CheckpointIndex, open_checkpoint, read_tensor
from .names import SKIPPED, canonical_entries
from .quant import read_f32, read_quantization, stored_as, widen

__all__ = ["SMALL_FILES", "Source"]

SMALL_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
    "chat_template.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "LICENSE",
)  # fmt: skip
"""What is copied as it is, where the source has it."""

_KNOWN = "Models whose experts are stored as those of the BF16 or the FP8 release can be packed."
_EXPERT = re.compile(r"^(.+)\.mlp\.experts\.(.+)$")
_NUMBERS = re.compile(r"\d+")


class Source:
    """An opened model folder. Raises CheckpointError for one that cannot be packed."""

    def __init__(self, folder: Path) -> None:
        self.index: CheckpointIndex = open_checkpoint(folder)
        if self.index.packed is not None:
            raise CheckpointError(
                f"{folder} is already packed.", "Pack the folder that it was made from.", path=str(folder)
            )
        self.entries = canonical_entries(self.index.entries)
        self.quantization = read_quantization(self.index.config, str(folder / "config.json"))
        found: dict[str, set[str]] = {}
        for name in self.entries:
            match = _EXPERT.match(name)
            if match is not None:
                found.setdefault(match[1], set()).add(match[2])
        if not found:
            raise CheckpointError(f"{folder} holds no experts, there is nothing to pack.", _KNOWN, path=str(folder))
        self.prefixes = sorted(found, key=_layer_order)
        """Layers with experts, the trunk's in order, the draft layer last."""
        first = found[self.prefixes[0]]
        self.fused = "gate_up_proj" in first
        self.count, self.width, self.hidden = self._sizes(first)
        for prefix in self.prefixes:
            self._check_layer(prefix, found[prefix])
        self.small = [name for name in SMALL_FILES if (folder / name).is_file()]

    @property
    def folder(self) -> Path:
        return self.index.folder

    def _sizes(self, tails: set[str]) -> tuple[int, int, int]:
        """(experts, expert width, hidden width) of the first layer."""
        stem = f"{self.prefixes[0]}.mlp.experts"
        name = f"{stem}.gate_up_proj" if self.fused else f"{stem}.0.gate_proj.weight"
        entry = self.entries.get(name)
        if entry is None or len(entry.shape) != (3 if self.fused else 2) or 0 in entry.shape:
            raise CheckpointError(
                f"{self.folder}: the experts below {shown(stem)} are not understood.", _KNOWN, tensor=name
            )
        if self.fused:
            return entry.shape[0], entry.shape[1] // 2, entry.shape[2]
        numbers = {int(tail.split(".")[0]) for tail in tails if tail.split(".")[0].isdigit()}
        return max(numbers) + 1, entry.shape[0], entry.shape[1]

    def _names(self, prefix: str, expert: int) -> list[tuple[str, tuple[int, ...]]]:
        """The tensors of one expert with the shapes they must have."""
        stem, wide, narrow = f"{prefix}.mlp.experts", (self.width, self.hidden), (self.hidden, self.width)
        if self.fused:
            return [
                (f"{stem}.gate_up_proj", (self.count, 2 * self.width, self.hidden)),
                (f"{stem}.down_proj", (self.count, *narrow)),
            ]
        return [
            (f"{stem}.{expert}.{role}.weight", shape)
            for role, shape in (("gate_proj", wide), ("up_proj", wide), ("down_proj", narrow))
        ]

    def _check_layer(self, prefix: str, tails: set[str]) -> None:
        known = set()
        for expert in range(1 if self.fused else self.count):
            for name, shape in self._names(prefix, expert):
                stored = stored_as(self.entries, name, self.quantization)
                if stored.shape != shape:
                    raise CheckpointError(
                        f"{self.folder}: tensor {shown(name)} is {list(stored.shape)}, expected {list(shape)}.",
                        "Only models whose experts all have one size can be packed.",
                        tensor=name,
                    )
                known.update((name, stored.scale))
        for tail in tails:
            if f"{prefix}.mlp.experts.{tail}" not in known:
                name = f"{prefix}.mlp.experts.{tail}"
                raise CheckpointError(f"{self.folder}: tensor {shown(name)} is not understood.", _KNOWN, tensor=name)

    def expert_bytes(self) -> int:
        """Bytes that one expert takes in this folder, without its scales."""
        names = self._names(self.prefixes[0], 0)
        return sum(self.entries[name].n_bytes for name, _ in names) // (self.count if self.fused else 1)

    def others(self) -> tuple[list[TensorEntry], list[TensorEntry]]:
        """(resident tensors, tables on disk) under canonical names, in file order; unused groups are left out."""
        resident, tables = [], []
        for name, entry in self.entries.items():
            if _EXPERT.match(name) or name.startswith(SKIPPED):
                continue
            (tables if ".ngram_embedding." in name else resident).append(replace(entry, name=name))
        return resident, tables

    def expert_bf16(self, prefix: str, expert: int) -> list[np.ndarray]:
        """BF16 bits of gate_up [2I, H] (gate rows first) and down [H, I]: the stored ones where they are BF16."""
        if self.fused:
            slices = [self._slice(name, expert) for name, _ in self._names(prefix, expert)]
            return [
                read_tensor(entry)
                if entry.dtype == "BF16"
                else f32_to_bf16(self._finite(widen(read_tensor(entry), entry.dtype), entry.name))
                for entry in slices
            ]
        names = [name for name, _ in self._names(prefix, expert)]
        if all(self.entries[name].dtype == "BF16" for name in names):
            gate, up, down = (read_tensor(self.entries[name]) for name in names)
            return [np.concatenate([gate, up]), down]
        return [f32_to_bf16(matrix) for matrix in self.expert_f32(prefix, expert)]

    def expert_f32(self, prefix: str, expert: int) -> list[np.ndarray]:
        """gate_up [2I, H] (gate rows first) and down [H, I] in float32, checked to be finite."""
        names = [name for name, _ in self._names(prefix, expert)]
        if self.fused:
            slices = [self._slice(name, expert) for name in names]
            return [self._finite(widen(read_tensor(entry), entry.dtype), entry.name) for entry in slices]
        gate, up, down = (self._finite(read_f32(self.entries, name, self.quantization), name) for name in names)
        return [np.concatenate([gate, up]), down]

    def _slice(self, name: str, expert: int) -> TensorEntry:
        entry = self.entries[name]
        n_bytes = entry.n_bytes // self.count
        return replace(entry, shape=entry.shape[1:], offset=entry.offset + expert * n_bytes, n_bytes=n_bytes)

    def _finite(self, values: np.ndarray, name: str) -> np.ndarray:
        if not np.isfinite(values).all():
            raise CheckpointError(
                f"{self.folder}: tensor {shown(name)} holds a value that is not finite.",
                "The checkpoint is damaged; download it again.",
                tensor=name,
            )
        return values

    def stamps(self) -> dict[str, list[int]]:
        """Size and time of change (ns) of every file that packing reads: differs when the source was touched."""
        paths = {entry.path for entry in self.entries.values()} | {str(self.folder / name) for name in self.small}
        found = {}
        for path in sorted(paths):
            try:
                info = os.stat(path)
            except OSError as error:
                raise unreadable(path, error) from error
            found[os.path.basename(path)] = [info.st_size, info.st_mtime_ns]
        return found


def _layer_order(prefix: str) -> tuple[bool, list[int], str]:
    return prefix.startswith("mtp."), [int(n) for n in _NUMBERS.findall(prefix)], prefix
