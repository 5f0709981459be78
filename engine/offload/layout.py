"""Where each expert's bytes lie in the files and where they land in a slot. Reads only scales, knows no MLX and no policy.

A slot holds one expert: its matrices one after another, in the order the files have them, so that an expert stored in
one piece is one read. Places are kept as numbers in arrays; ranges are made when asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..checkpoint.header import ITEM_BYTES, TensorEntry, shown
from ..checkpoint.index import read_tensors
from ..checkpoint.names import did_you_mean
from ..checkpoint.quant import Quantization, Stored, check_scales, stored_as
from ..errors import CheckpointError

__all__ = ["ExpertLayout", "Part", "ReadRange", "expert_layout", "expert_scales"]

SLOT_ALIGNMENT = 64

_FUSED = {"gate_up": "gate_up_proj", "down": "down_proj"}
_SINGLE = {"gate": "gate_proj.weight", "up": "up_proj.weight", "down": "down_proj.weight"}


@dataclass(frozen=True, slots=True)
class Part:
    """One matrix of an expert inside a slot; the same for all experts of a pool."""

    role: str
    """"gate_up" (gate rows first) and "down", or "gate", "up" and "down"."""
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


class ExpertLayout:
    """The places of all experts of one pool: layers x experts, every expert with the same parts."""

    __slots__ = ("_files", "_offsets", "_paths", "parts", "prefixes", "slot_bytes", "stored")

    def __init__(
        self,
        prefixes: tuple[str, ...],
        parts: tuple[Part, ...],
        stored: dict[str, Stored],
        paths: tuple[str, ...],
        files: np.ndarray,
        offsets: np.ndarray,
    ) -> None:
        """`files` (int32, indices into `paths`) and `offsets` (int64) are [layers, experts, parts]."""
        self.prefixes = prefixes
        self.parts = parts
        self.stored = stored
        """How each role's matrix is stored; scales are those of expert 0 of the first layer."""
        end = max(part.slot_offset + part.n_bytes for part in parts)
        self.slot_bytes = -(-end // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
        self._paths, self._files, self._offsets = paths, files, offsets

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
        """Bytes read for one expert (slot_bytes without the padding)."""
        return sum(part.n_bytes for part in self.parts)

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
        if not (0 <= layer < self.n_layers and 0 <= expert < self.n_experts):
            raise IndexError(f"no expert ({layer}, {expert}) in {self.n_layers} x {self.n_experts}")
        files, offsets = self._files[layer, expert].tolist(), self._offsets[layer, expert].tolist()
        return _merged((files[i], offsets[i], part.n_bytes, part.slot_offset) for i, part in enumerate(self.parts))(
            self._paths
        )

    def layer_ranges(self, layer: int) -> tuple[ReadRange, ...]:
        """The reads that fill a whole-layer buffer (expert e at e * slot_bytes), in file order, merged where possible."""
        files, offsets = self._files[layer].tolist(), self._offsets[layer].tolist()
        pieces = [
            (files[e][i], offsets[e][i], part.n_bytes, e * self.slot_bytes + part.slot_offset)
            for e in range(self.n_experts)
            for i, part in enumerate(self.parts)
        ]
        pieces.sort()
        return _merged(pieces, self._paths)
