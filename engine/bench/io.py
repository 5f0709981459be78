"""The disk at growing queue depths, with a model's own expert files: raw reads and the reader, side by side."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from ..config import EngineConfig
from ..loader import survey
from .disk import ARMS, DiskReport, measure_disk

__all__ = ["ARMS", "DEPTHS", "IoReport", "measure_io"]

DEPTHS = (1, 2, 4, 8, 16, 32)
"""Reads in flight."""
_PASS_BYTES, _PASS_READS = 64 << 20, 512
"""Most of one pass over one arm."""
_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class IoReport:
    """One DiskReport a queue depth, on the largest file that holds experts."""

    path: str
    expert_bytes: int
    depths: tuple[DiskReport, ...]
    """In the order of DEPTHS; `workers` is the depth."""


def measure_io(config: EngineConfig, tell: Callable[[int], None] = lambda _: None) -> IoReport:
    """Measure every depth; `tell` hears each one as it begins.

    Raises the errors of opening a model, UsageError when its files are too small to measure with.
    """
    layout = survey(config).layout
    path = max(layout.paths, key=os.path.getsize)
    reports = []
    for depth in DEPTHS:
        tell(depth)
        reports.append(
            measure_disk(
                path, read_bytes=layout.expert_bytes, total_bytes=min(_PASS_BYTES, _PASS_READS * layout.expert_bytes),
                workers=depth, rounds=_ROUNDS, direct=config.direct_io != "off",
            )
        )  # fmt: skip
    return IoReport(path, layout.expert_bytes, tuple(reports))
