"""How fast the disk is, raw and through the reader, with the reads that experts make. Returns values, prints nothing."""

from __future__ import annotations

import itertools
import mmap
import os
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from ..errors import UsageError
from ..offload.files import DataFile, open_data_file
from ..offload.layout import ReadRange
from ..offload.reader import Reader

__all__ = ["ARMS", "DiskReport", "measure_disk"]

ARMS = ("raw", "aligned", "unaligned", "whole layers")
"""A plain loop of equal direct reads in as many threads; the reader with aligned experts, with experts that begin
anywhere, and with ranges of many experts in one go."""

_PAGE = mmap.PAGESIZE
_UNALIGNED = 1320
_EXPERTS_A_LAYER = 16


@dataclass(frozen=True, slots=True)
class DiskReport:
    """Bytes a second of each arm, one value a pass; pass i of every arm ran within the same round."""

    rates: dict[str, tuple[float, ...]]
    read_bytes: int
    """Of one expert."""
    workers: int
    direct: bool
    """Whether the reads went past the page cache; if not, the rates say little about the disk."""
    alone_s: float
    """Median time of one raw expert read with nothing else in flight."""

    def ratio(self, arm: str) -> float:
        """Median over the rounds of this arm's rate over the raw rate."""
        return median(a / b for a, b in zip(self.rates[arm], self.rates["raw"]))


def measure_disk(
    path: str, *, read_bytes: int = 2_654_208, total_bytes: int = 256 << 20, workers: int = 16, rounds: int = 3,
    direct: bool = True,
) -> DiskReport:  # fmt: skip
    """Read random experts of `read_bytes` from a file, `total_bytes` a pass, arms interleaved forwards and backwards.

    `direct` asks for reads past the page cache, where the file system allows them.
    Raises UsageError when the file is missing or holds fewer than two experts more than one layer of them.
    """
    expert = -(-read_bytes // _PAGE) * _PAGE
    try:
        places = os.path.getsize(path) // expert - 1
        file = open_data_file(path, direct=direct)
    except OSError as e:
        raise UsageError(f"{path} cannot be read: {e.strerror}.", "Name a large file on the disk to measure.") from None
    try:
        if places < _EXPERTS_A_LAYER:
            raise UsageError(
                f"{path} is too small to measure with: {expert * (_EXPERTS_A_LAYER + 1)} bytes are needed."
            )
        return _measure(file, expert, places, max(1, total_bytes // expert), workers, rounds)
    finally:
        file.close()


def _measure(file: DataFile, expert: int, places: int, reads: int, workers: int, rounds: int) -> DiskReport:
    draw = random.Random(42)
    rates: dict[str, list[float]] = {arm: [] for arm in ARMS}
    buffers = [memoryview(mmap.mmap(-1, expert)) for _ in range(2 * workers)]
    layer = memoryview(mmap.mmap(-1, expert * _EXPERTS_A_LAYER))
    alone = []
    for _ in range(8):
        began = perf_counter()
        file.read(buffers[0], draw.randrange(places) * expert, expert)
        alone.append(perf_counter() - began)
    with Reader(workers, "on" if file.direct else "off") as reader:
        passes: dict[str, Callable[[Sequence[int]], None]] = {
            "raw": lambda at: _raw(file, [p * expert for p in at], buffers[:workers]),
            "aligned": lambda at: _through(reader, file.path, [p * expert for p in at], expert, buffers),
            "unaligned": lambda at: _through(reader, file.path, [p * expert + _UNALIGNED for p in at], expert, buffers),
            "whole layers": lambda at: _layers(reader, file.path, at, expert, places, layer),
        }
        for _ in range(rounds):
            at = [draw.randrange(places) for _ in range(-(-reads // _EXPERTS_A_LAYER) * _EXPERTS_A_LAYER)]
            for arm in (*ARMS, *reversed(ARMS)):
                began = perf_counter()
                passes[arm](at)
                rates[arm].append(len(at) * expert / (perf_counter() - began))
    return DiskReport({k: tuple(v) for k, v in rates.items()}, expert, workers, file.direct, median(alone))


def _raw(file: DataFile, offsets: Sequence[int], buffers: Sequence[memoryview]) -> None:
    """The loop that nothing can beat: every thread reads the next expert into its own buffer."""
    turn = itertools.count()

    def loop(buffer: memoryview) -> None:
        while (i := next(turn)) < len(offsets):
            file.read(buffer, offsets[i], len(buffer))

    threads = [threading.Thread(target=loop, args=(b,)) for b in buffers]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def _through(reader: Reader, path: str, offsets: Sequence[int], expert: int, buffers: Sequence[memoryview]) -> None:
    """One ticket an expert, as many in flight as there are buffers."""
    tickets = []
    for i, offset in enumerate(offsets):
        if i >= len(buffers):
            tickets[i - len(buffers)].wait()
        tickets.append(reader.submit([ReadRange(path, offset, expert, 0)], buffers[i % len(buffers)]))
    for ticket in tickets:
        ticket.wait()


def _layers(reader: Reader, path: str, at: Sequence[int], expert: int, places: int, layer: memoryview) -> None:
    """Consecutive experts in one range, one ticket after the other."""
    for p in at[::_EXPERTS_A_LAYER]:
        start = min(p, places - _EXPERTS_A_LAYER) * expert
        reader.submit([ReadRange(path, start, len(layer), 0)], layer).wait()
