"""What an architecture has to offer, so that it is one file in this folder named after its model_type.

A model is layers that run one after another; each mixes tokens (with a cache), asks for experts and takes their outputs
back. Fetching experts, loops, caches' lifetimes and sampling are not its business. A new architecture defines
MODEL_TYPES, `read_config(raw) -> ModelConfig` and a `ModelConfig` whose `build` returns a Model.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

from ..cache.base import LayerCache
from ..checkpoint.header import TensorEntry
from ..checkpoint.names import Expected
from ..errors import CheckpointError, nearest
from ..layers.linear import Take

__all__ = ["DraftModel", "ExpertInput", "Layer", "Model", "ModelConfig", "RowTable", "architecture_of"]


@dataclass(frozen=True, slots=True)
class ExpertInput:
    """What a layer asks of the experts for T rows, and what it keeps to take their outputs back."""

    hidden: mx.array
    """[T, H], the experts' input."""
    ids: mx.array
    """[T, k] int32 in rank order."""
    weights: mx.array
    """[T, k]."""
    shared: mx.array
    """[T, H], what is added to the experts' weighted sum."""
    inject: mx.array
    """[T, ...], whatever the layer needs to put the sum into its residual."""


@dataclass(frozen=True, slots=True)
class RowTable:
    """A table on disk from which rows are fetched by number, computed from token ids on the host."""

    layer: int
    """The layer that uses the rows."""
    shards: tuple[TensorEntry, ...]
    """The table's parts in order; equal row sizes."""
    scale: TensorEntry | None
    """One factor for all values, or None."""
    hash: Any
    """Has `rows(before, ids) -> [T, heads] int64` and `context` (tokens looked back on)."""
    heads: int
    """Rows of one token."""


class Layer(Protocol):
    """One layer of a trunk or a draft layer."""

    def new_cache(self) -> LayerCache: ...

    def mix(
        self, x: mx.array, cache: Any, rows: mx.array | None, *, apart: bool = False
    ) -> tuple[mx.array, ExpertInput]:
        """Residual x [T, W] behind the cache -> (residual after token mixing, the experts' input).

        `apart`: mixing over the sequence goes row by row, as in T single steps; products may see all rows at once.
        `rows` [T, E] are this layer's table rows, None for layers without a table.
        """
        ...

    def guess(self, hidden: mx.array, count: int) -> mx.array:
        """The experts' input [T, H] of the layer below -> [T, count] int32: whom this layer will probably ask for."""
        ...

    def merge(self, x: mx.array, asked: ExpertInput, outputs: mx.array) -> mx.array:
        """Residual [T, W] and expert outputs [T, k, H] in rank order -> residual after the layer [T, W]."""
        ...


class DraftLayer(Layer, Protocol):
    """A layer whose cache needs of its rows nothing that is computed in it."""

    def append(self, x: mx.array, cache: Any) -> None:
        """Residual x [T, W] into the cache and no further: what later rows need of these."""
        ...


class DraftModel(Protocol):
    """A native MTP layer that predicts the token after next."""

    layer: DraftLayer

    def join(self, wide: mx.array, tokens: mx.array) -> mx.array:
        """Pairs (wide [T, W] of position i, token i + 1 [T] int32) -> the layer's residual [T, W]."""
        ...

    def head(self, x: mx.array) -> mx.array:
        """Residual [T, W] -> logits [T, V]."""
        ...


class Model(Protocol):
    """A loaded model."""

    layers: Sequence[Layer]
    draft: DraftModel | None

    def embed(self, ids: mx.array) -> mx.array:
        """Token ids [T] int32 -> residual [T, W]."""
        ...

    def head(self, x: mx.array) -> mx.array:
        """Residual [T, W] after the last layer -> logits [T, V] float32."""
        ...


class ModelConfig(Protocol):
    """The architecture's numbers, from config.json alone; no weights and no arrays."""

    model_type: str
    layers: int
    experts: int
    top_k: int
    hidden: int
    wide: int
    """Width W of the residual that is carried between layers and kept for drafting."""
    vocab: int
    heads: int
    """Attention heads of queries."""
    max_context: int

    def has_draft(self, entries: Mapping[str, TensorEntry]) -> bool:
        """Whether the checkpoint brings a draft layer."""
        ...

    def expected(self, entries: Mapping[str, TensorEntry]) -> dict[str, Expected]:
        """Every tensor that a checkpoint with this config has, given the storage that `entries` shows."""
        ...

    def expert_prefixes(self) -> tuple[str, ...]:
        """Canonical layer prefixes whose experts form the trunk's pool, in layer order."""
        ...

    def draft_expert_prefixes(self) -> tuple[str, ...]:
        """The same of the draft layer's pool."""
        ...

    def check_constants(self, entries: Mapping[str, TensorEntry]) -> None:
        """Refuse a checkpoint whose stored constants differ from the ones rebuilt here (CheckpointError)."""
        ...

    def row_tables(self, entries: Mapping[str, TensorEntry]) -> tuple[RowTable, ...]:
        """The tables that stay on disk."""
        ...

    def is_resident(self, name: str) -> bool:
        """Whether the tensor is loaded at start (not an expert, not a table's shard, not a constant)."""
        ...

    def kv_bytes(self, tokens: int, item_bytes: int) -> int:
        """Keys, values and index keys of the trunk and the draft layer for `tokens` tokens."""
        ...

    def state_bytes(self, item_bytes: int) -> int:
        """States that do not grow with the context, of all layers."""
        ...

    def build(self, take: Take, *, draft: bool) -> Model:
        """The model over the weights that `take` gives, with its draft layer if `draft`."""
        ...


def architecture_of(raw: Mapping[str, Any], where: str) -> ModuleType:
    """The module of this folder that knows `raw["model_type"]`. Raises CheckpointError naming the known ones."""
    from . import __name__ as package
    from . import __path__ as path

    wanted = raw.get("model_type")
    known: dict[str, ModuleType] = {}
    for info in pkgutil.iter_modules(path):
        module = importlib.import_module(f"{package}.{info.name}")
        known.update(dict.fromkeys(getattr(module, "MODEL_TYPES", ()), module))
    if isinstance(wanted, str) and wanted in known:
        return known[wanted]
    near = nearest(str(wanted), known)
    raise CheckpointError(
        f"{where}: model_type {wanted!r} is not supported; supported are {', '.join(sorted(known))}.",
        f"Did you mean {near[0]!r}?" if near else "Choose another model folder.",
        path=where,
    )


def as_ids(ids: Sequence[int] | np.ndarray) -> mx.array:
    """Token ids as the int32 array that `embed` takes."""
    return mx.array(np.asarray(ids, dtype=np.int32))
