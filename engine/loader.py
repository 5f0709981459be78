"""From a folder to a model that runs: files checked, memory planned, weights read, stores opened."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from .checkpoint.folder import DEMO, find_model
from .checkpoint.header import DAMAGED, TensorEntry
from .checkpoint.index import CheckpointIndex, open_checkpoint, read_tensor
from .checkpoint.names import MIXED, canonical_entries, check_census, did_you_mean
from .checkpoint.pack import packed_expert_bytes
from .checkpoint.pack_manifest import REPACK, read_manifest
from .checkpoint.quant import Quantization, check_scales, read_quantization
from .config import EngineConfig
from .errors import CheckpointError, MemoryPlanError, UnavailableError
from .forward import Forward
from .layers.device import cap_allocator_cache, on_gpu, recommended_memory_bytes
from .layers.expert import APART_BYTES, ExpertMath
from .layers.linear import Quantised
from .machine import machine
from .meter import Meter
from .models.contract import Model, ModelConfig, RowTable, architecture_of
from .offload.experts import ExpertStore
from .offload.layer_buffer import LayerBuffer
from .offload.layout import ExpertLayout, ReadRange, expert_layout, expert_scales, packed_layout
from .offload.memory import PAGE, Pool
from .offload.reader import BOUNCE_BYTES, Reader
from .offload.rows import RowStore
from .plan import MemoryPlan, Needs, PoolNeeds, make_plan, size_text

__all__ = ["Loaded", "Survey", "load", "survey"]

_UNUSED = ("model.visual.",)
_DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16}
_STORED = {"BF16": mx.bfloat16, "F16": mx.float16, "F32": mx.float32, "U32": mx.uint32}
_LOAD_WORKERS = 4
_ROW_WORKERS = 8

Progress = Callable[[str, int, int, str], None]
"""(phase, done, total, unit)"""


@dataclass(frozen=True, slots=True)
class Survey:
    """A checkpoint that was checked and planned for; no weight has been read."""

    index: CheckpointIndex
    entries: Mapping[str, TensorEntry]
    quantization: Quantization
    shape: ModelConfig
    layout: ExpertLayout
    draft_layout: ExpertLayout | None
    tables: tuple[RowTable, ...]
    dtype: mx.Dtype
    needs: Needs
    plan: MemoryPlan
    notes: tuple[str, ...]

    @property
    def table_width(self) -> int:
        """Width of a token's table rows together; 1 for a model without tables."""
        return max((t.heads * t.shards[0].shape[1] for t in self.tables), default=1)


@dataclass(slots=True)
class Loaded:
    """A model with everything around it that outlives a request."""

    survey: Survey
    model: Model
    forward: Forward
    store: ExpertStore
    draft_store: ExpertStore | None
    reader: Reader
    rows_reader: Reader
    meter: Meter
    load_s: float

    def close(self) -> None:
        """End the reading threads. Harmless when called again."""
        self.reader.close()
        self.rows_reader.close()


def survey(config: EngineConfig) -> Survey:
    """Open and check a checkpoint and plan its memory. Raises CheckpointError, MemoryPlanError or UnavailableError."""
    folder = find_model(config.model)
    try:
        return _survey(config, folder)
    except CheckpointError as error:
        if error.hint in (DAMAGED, MIXED) and read_manifest(folder) is not None:
            error.hint = REPACK  # what was packed here cannot be downloaded
        raise


def _survey(config: EngineConfig, folder: Path) -> Survey:
    index = open_checkpoint(folder)
    where = str(index.folder / "config.json")
    architecture = architecture_of(index.config, where)
    shape: ModelConfig = architecture.read_config(index.config, where)
    entries = canonical_entries(index.entries)
    quantization = read_quantization(index.config, where)
    expected = shape.expected(entries)
    if index.packed is not None:
        expected = index.packed.adjusted(expected)
    report = check_census(entries, expected, _UNUSED, str(index.folder))
    shape.check_constants(entries)
    draft = shape.has_draft(entries)
    if not draft and config.mtp == "fixed":
        raise UnavailableError(
            f'{index.folder} has no MTP layer, so mtp.mode = "fixed" is not possible.',
            'Use mtp.mode = "auto" or "off", or a release that brings its mtp.* tensors.',
        )

    def pool(prefixes: Sequence[str]) -> ExpertLayout:
        if index.packed is not None:
            return packed_layout(index.folder, index.packed.experts, prefixes, shape.experts)
        return expert_layout(entries, prefixes, shape.experts, quantization)

    layout = pool(shape.expert_prefixes())
    draft_layout = pool(shape.draft_expert_prefixes()) if draft else None
    notes = [] if config.model == DEMO else _packing_notes(layout)
    if report.skipped_count:
        notes.append(
            f"{report.skipped_count} tensors of the image encoder are not used ({size_text(report.skipped_bytes)})."
        )
    dtype, needs, plan = _planned(config, shape, entries, layout, draft_layout, notes)
    if config.context != "auto" and int(config.context) > plan.context:
        notes.append(f"The context is {plan.context:,} tokens, this model's most, not {int(config.context):,}.")
    return Survey(
        index, entries, quantization, shape, layout, draft_layout, shape.row_tables(entries), dtype, needs, plan,
        tuple(notes),
    )  # fmt: skip


def _packing_notes(layout: ExpertLayout) -> list[str]:
    """What packing would save, for experts stored as FP8 codes with a scale a block."""
    if {stored.kind for stored in layout.stored.values()} != {"fp8_block"}:
        return []
    hidden, width = layout.part("down").shape
    packed = packed_expert_bytes(width, hidden, "mxfp4")
    if packed is None or packed >= layout.expert_bytes:
        return []
    share = 1 - packed / layout.expert_bytes
    return [f"`qwen-chat pack` would make each expert read {share:.0%} smaller ({size_text(packed)}, as mxfp4)."]


def _planned(
    config: EngineConfig, shape: ModelConfig, entries: Mapping[str, TensorEntry], layout: ExpertLayout,
    draft_layout: ExpertLayout | None, notes: list[str],
) -> tuple[mx.Dtype, Needs, MemoryPlan]:  # fmt: skip
    """The computing dtype and the plan for it; says in `notes` why the dtype is what it is."""
    where = machine(gpu=on_gpu(), recommended_bytes=recommended_memory_bytes())

    def plan_for(dtype: mx.Dtype) -> tuple[mx.Dtype, Needs, MemoryPlan]:
        needs = _needs(shape, entries, layout, draft_layout, dtype.size)
        return dtype, needs, make_plan(config, needs, where)

    if config.dtype != "auto":
        return plan_for(_DTYPES[config.dtype])
    if where.gpu:
        return plan_for(mx.bfloat16)
    try:
        found = plan_for(mx.float32)
        if found[1].resident_bytes <= found[2].limit_bytes // 2:
            notes.append("Computing in float32: this is a CPU, and the weights fit.")
            return found
    except MemoryPlanError:
        pass
    notes.append("Computing in bfloat16: the weights would not fit in float32.")
    return plan_for(mx.bfloat16)


def _needs(
    shape: ModelConfig, entries: Mapping[str, TensorEntry], layout: ExpertLayout, draft_layout: ExpertLayout | None,
    item: int,
) -> Needs:  # fmt: skip
    resident = {name: e for name, e in entries.items() if shape.is_resident(name) and not name.startswith(_UNUSED)}
    sizes = [e.n_bytes if e.dtype == "U32" else e.n_bytes // _item_bytes(e) * item for e in resident.values()]
    scales = sum(e.n_bytes * 2 for name, e in entries.items() if name.endswith("_scale_inv"))

    def pool(of: ExpertLayout) -> PoolNeeds:
        slot = -(-of.slot_bytes // PAGE) * PAGE
        return PoolNeeds(of.n_layers * of.n_experts, slot, shape.top_k)

    matrix = sum(_numbers(p.shape) for p in layout.parts)
    return Needs(
        item_bytes=item,
        resident_bytes=sum(sizes) + scales,
        largest_bytes=max((e.n_bytes for e in resident.values()), default=0),
        kv_bytes_a_token=shape.kv_bytes(1024, item) / 1024,
        state_bytes=shape.state_bytes(item),
        wide_bytes=shape.wide * item,
        logits_bytes=shape.vocab * 4,
        score_bytes=shape.heads * 4,
        expert_matrix_bytes=max(matrix * 4, APART_BYTES),
        read_buffer_bytes=BOUNCE_BYTES,
        max_context=shape.max_context,
        layer_bytes=Pool.bytes_for(1, layout.layer_bytes),
        experts=pool(layout),
        draft=pool(draft_layout) if draft_layout is not None else None,
    )


def _item_bytes(entry: TensorEntry) -> int:
    return max(1, entry.n_bytes // max(1, _numbers(entry.shape)))


def _numbers(shape: Sequence[int]) -> int:
    n = 1
    for d in shape:
        n *= d
    return n


def load(
    config: EngineConfig, progress: Progress = lambda *_: None, reader: Reader | None = None, s: Survey | None = None
) -> Loaded:
    """The model of a config, ready to run. `reader` replaces the experts' reader, for tests of faults; `s` is what
    `survey` found, when the caller already looked."""
    start = time.perf_counter()
    if s is None:
        progress("reading headers", 0, 0, "tensors")
        s = survey(config)
    cap_allocator_cache(s.plan.term("allocator cache"))
    resident = sum(s.shape.is_resident(n) and not n.startswith(_UNUSED) for n in s.entries)
    with Reader(_LOAD_WORKERS, "off") as loading:
        take = _Weights(s, loading, lambda done: progress("loading weights", done, resident, "tensors"))
        model: Model = s.shape.build(take, draft=s.draft_layout is not None)
        progress("reading scales", 0, 0, "tensors")
        meter = Meter()
        computes = ExpertMath(s.layout, s.dtype, _scales(s, s.layout))
        draft_computes = ExpertMath(s.draft_layout, s.dtype, _scales(s, s.draft_layout)) if s.draft_layout else None
    reader = reader or Reader(config.read_workers, _direct(config, s))
    rows_reader = Reader(_ROW_WORKERS, "off")
    try:
        store = ExpertStore(s.layout, reader, computes, s.plan.slots, config.policy, meter)
        draft_store = (
            ExpertStore(s.draft_layout, reader, draft_computes, s.plan.draft_slots, config.policy, meter)
            if s.draft_layout is not None and draft_computes is not None
            else None
        )
        if config.prefetch:
            store.read_ahead()
        store.fill(lambda done, total: progress("filling the cache", done, total, "experts"))
        if draft_store is not None and config.mtp != "off":
            draft_store.fill()
        tables = [(t, RowStore(t.shards, _table_scale(t), rows_reader)) for t in s.tables]
        buffers = [LayerBuffer(s.layout, reader, computes, meter) for _ in range(s.plan.layer_buffers)]
    except BaseException:
        reader.close()
        rows_reader.close()
        raise
    forward = Forward(model, store, tables, buffers, s.dtype, meter)
    return Loaded(s, model, forward, store, draft_store, reader, rows_reader, meter, time.perf_counter() - start)


def _direct(config: EngineConfig, s: Survey) -> str:
    """Past the page cache unless told otherwise, or unless all experts fit the slots and are read once anyway."""
    if config.direct_io != "auto":
        return config.direct_io
    return "off" if s.plan.slots >= s.layout.n_layers * s.layout.n_experts else "auto"


def _scales(s: Survey, layout: ExpertLayout) -> list[Mapping[str, Any]]:
    return [expert_scales(s.entries, layout, layer, s.quantization) for layer in range(layout.n_layers)]


def _table_scale(table: RowTable) -> Any:
    if table.scale is None:
        return None
    scale = read_tensor(table.scale)
    check_scales(scale, table.scale)
    return scale


class _Weights:
    """`Take` over a checkpoint: reads each tensor when the model asks for it, into the memory it will stay in."""

    def __init__(self, s: Survey, reader: Reader, progress: Callable[[int], None]) -> None:
        self._entries, self._dtype, self._reader = s.entries, s.dtype, reader
        self._packed = s.index.packed
        self._progress, self._done = progress, 0

    def __call__(self, name: str, dtype: mx.Dtype | None = None) -> mx.array | Quantised:
        if self._packed is None or name not in self._packed.quantised:
            return self._array(name, dtype or self._dtype)
        stem = name.removesuffix(".weight")
        scales, biases = (self._array(f"{stem}.{part}", self._dtype) for part in ("scales", "biases"))
        return Quantised(self._array(name, mx.uint32), scales, biases, self._packed.resident_form)

    def _array(self, name: str, dtype: mx.Dtype) -> mx.array:
        entry = self._entries.get(name)
        if entry is None:
            raise CheckpointError(f"Tensor {name!r} is missing.", did_you_mean(name, self._entries), tensor=name)
        raw = mx.zeros((max(1, entry.n_bytes),), dtype=mx.uint8)
        mx.eval(raw)
        ranges = [ReadRange(entry.path, entry.offset, entry.n_bytes, 0)]
        self._reader.submit(ranges, memoryview(raw).cast("B")).wait()  # pyright: ignore[reportArgumentType]
        found = raw.view(_STORED[entry.dtype]).reshape(entry.shape).astype(dtype)
        mx.eval(found)
        self._done += 1
        if self._done % 16 == 0:
            self._progress(self._done)
        return found
