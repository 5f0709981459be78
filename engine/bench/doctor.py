"""What a model needs on this machine, what the disk gives, and the speed to expect, as values. Prints nothing.

The memory terms and budgets are those of the engine's own plan for the same settings; no weight is loaded.
"""

from __future__ import annotations

import itertools
import os
import platform
import random
import time
from dataclasses import asdict, dataclass

from ..checkpoint.folder import DEMO, find_model
from ..config import EngineConfig
from ..errors import CheckpointError
from ..layers.device import on_gpu, recommended_memory_bytes
from ..loader import Survey, survey
from ..machine import machine
from ..offload.layout import ExpertLayout
from ..offload.reader import Reader
from ..plan import MemoryPlan

__all__ = [
    "Diagnosis",
    "DiskSpeed",
    "Expectation",
    "Here",
    "diagnose",
    "expected_hit_rate",
    "has_demo",
    "look_around",
    "measure_disk",
]

_READS_ALONE, _READS_TOGETHER = 32, 128
_MOST_SECONDS = 2.0
_HITS = ((0.0, 0.0), (0.75, 0.31), (1.5, 0.50), (2.0, 0.58), (3.0, 0.69), (5.0, 0.83), (8.0, 0.93), (16.0, 0.99))
"""(slots in token cycles, share of decode lookups that hit): decayed frequency per layer on a public trace of
Qwen3-30B-A3B (Helldez/BigMoeOnEdge, bench-data 2026-07-15). A token cycle is layers x top-k experts."""


@dataclass(frozen=True, slots=True)
class DiskSpeed:
    """Reads of real experts, past the page cache where the file system allows it."""

    reads: int
    alone_s: float
    """Median of one expert read by itself."""
    together_bytes_a_s: float
    """Throughput with as many reads in flight as the settings allow."""
    direct_io: bool


@dataclass(frozen=True, slots=True)
class Expectation:
    """Decode speed by the disk alone: an upper bound, computing not counted."""

    cycles: float
    """Slots in token cycles."""
    hit_rate: float
    misses_a_token: float
    disk_s_a_token: float
    tokens_a_s: float | None
    """None when nothing has to be read."""


@dataclass(frozen=True, slots=True)
class Here:
    """This machine."""

    system: str
    cores: int
    memory_bytes: int
    limit_bytes: int
    """What this program may use without swapping, or what the settings allow it."""
    gpu: bool


@dataclass(frozen=True, slots=True)
class Diagnosis(Here):
    """Everything `doctor` shows."""

    model: str
    dtype: str
    layers: int
    experts_a_layer: int
    top_k: int
    expert_bytes: int
    expert_total_bytes: int
    has_mtp: bool
    plan: MemoryPlan
    notes: tuple[str, ...]
    disk: DiskSpeed | None
    expected: Expectation | None


def look_around() -> Here:
    """The machine alone, for when there is no model."""
    where = machine(gpu=on_gpu(), recommended_bytes=recommended_memory_bytes())
    return Here(
        system=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        cores=os.cpu_count() or 1,
        memory_bytes=where.total_bytes,
        limit_bytes=where.limit_bytes,
        gpu=where.gpu,
    )


def diagnose(config: EngineConfig, *, disk: bool = True) -> Diagnosis:
    """Survey, plan and measure. Raises the errors of opening a model; a plan that does not fit is a MemoryPlanError."""
    s = survey(config)
    here = look_around()
    speed = measure_disk(s.layout, config) if disk else None
    return Diagnosis(
        **{**asdict(here), "limit_bytes": s.plan.limit_bytes},
        model=str(s.index.folder),
        dtype=str(s.dtype).rsplit(".", 1)[-1],
        layers=s.shape.layers,
        experts_a_layer=s.shape.experts,
        top_k=s.shape.top_k,
        expert_bytes=s.layout.expert_bytes,
        expert_total_bytes=s.layout.total_bytes,
        has_mtp=s.draft_layout is not None,
        plan=s.plan,
        notes=s.notes,
        disk=speed,
        expected=None if speed is None else _expect(s, speed),
    )


def has_demo() -> bool:
    """Whether this installation has the built-in model."""
    try:
        find_model(DEMO)
    except CheckpointError:
        return False
    return True


def measure_disk(layout: ExpertLayout, config: EngineConfig, seed: int = 0) -> DiskSpeed:
    """Read random experts one after another, then many at once; at most a few seconds."""
    draw = random.Random(seed)
    keys = [(draw.randrange(layout.n_layers), draw.randrange(layout.n_experts)) for _ in range(_READS_TOGETHER)]
    buffers = [bytearray(layout.slot_bytes) for _ in range(min(config.read_workers * 2, _READS_TOGETHER))]
    with Reader(config.read_workers, "off" if config.direct_io == "off" else "on") as reader:
        alone = []
        begin = time.perf_counter()
        for layer, expert in keys[:_READS_ALONE]:
            start = time.perf_counter()
            reader.submit(layout.ranges(layer, expert), memoryview(buffers[0])).wait()
            alone.append(time.perf_counter() - start)
            if time.perf_counter() - begin > _MOST_SECONDS:
                break
        begin, n_bytes, reads = time.perf_counter(), 0, 0
        for first in range(0, len(keys), len(buffers)):
            tickets = [
                reader.submit(layout.ranges(layer, expert), memoryview(buffer))
                for (layer, expert), buffer in zip(keys[first : first + len(buffers)], buffers)
            ]
            for ticket in tickets:
                ticket.wait()
                n_bytes += ticket.n_bytes
                reads += 1
            if time.perf_counter() - begin > _MOST_SECONDS:
                break
        took = time.perf_counter() - begin
        direct = reader.stats().direct_io
    return DiskSpeed(len(alone) + reads, sorted(alone)[len(alone) // 2], n_bytes / took, direct)


def expected_hit_rate(cycles: float) -> float:
    """Share of lookups that hit with so many token cycles of slots, read off the published replay."""
    for (x0, y0), (x1, y1) in itertools.pairwise(_HITS):
        if cycles <= x1:
            return y0 + (y1 - y0) * (cycles - x0) / (x1 - x0)
    return _HITS[-1][1]


def _expect(s: Survey, speed: DiskSpeed) -> Expectation:
    asked = s.shape.layers * s.shape.top_k
    whole = s.plan.slots >= s.shape.layers * s.shape.experts
    cycles = s.plan.slots / asked
    hits = 1.0 if whole else expected_hit_rate(cycles)
    misses = asked * (1 - hits)
    disk_s = misses * s.layout.expert_bytes / speed.together_bytes_a_s
    return Expectation(cycles, hits, misses, disk_s, 1 / disk_s if disk_s > 0 else None)
