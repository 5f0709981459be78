"""Do misses of a layer overlap? `python benchmarks/throttled.py --model FOLDER`.

Decodes behind a prompt with a share of the experts in slots, every read of an expert taking 0.5 ms and 200 MB/s that all
reads share (after the device, which is slower than that), as the engine does it and in a mode in which a layer's misses
are read one after another, the next one only after the one before has been waited for. With m misses of a layer, l
seconds and b seconds of transfer an expert, no order can be faster than sum of (l + m b) where the serial mode takes
sum of m (l + b): the ratio of both is what the engine's own misses allow. Both modes decode the same text by turns.

`--sweep` shows instead how much of the time of reading is waited for where more rows go through a layer at once (a check of
drafts, a chunk of a prompt) and where the disk is faster. What a layer's experts need to compute, measured with all of
them in memory, is all that could hide its reads: the rest of them is the bound.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import Any

import mlx.core as mx
from measuring import Target, console, verdict
from rich.table import Table

from qwen_chat_mlx.engine.bench.workloads import load_workload, prompt_for
from qwen_chat_mlx.engine.cache.base import arrays_of
from qwen_chat_mlx.engine.checkpoint.folder import find_model
from qwen_chat_mlx.engine.checkpoint.index import open_checkpoint
from qwen_chat_mlx.engine.config import EngineConfig
from qwen_chat_mlx.engine.loader import load
from qwen_chat_mlx.engine.offload.files import os_pread
from qwen_chat_mlx.engine.offload.reader import Reader
from qwen_chat_mlx.engine.session import Session
from qwen_chat_mlx.engine.stats import ExpertStats
from qwen_chat_mlx.engine.tokenizer import Tokenizer

MOST_EXPOSED = 0.35
SWEEP = (
    (1, 0.5, 200.0), (4, 0.5, 200.0), (16, 0.5, 200.0), (64, 0.5, 200.0), (256, 0.5, 200.0),
    (4, 0.1, 1000.0), (16, 0.1, 1000.0), (64, 0.1, 1000.0), (256, 0.1, 1000.0),
)  # fmt: skip
"""Rows of a forward, milliseconds of a read, MB/s."""


class Throttle:
    """A positional read of a device with a latency a read and a bandwidth that all reads share."""

    def __init__(self, latency_s: float, bytes_a_s: float) -> None:
        self.latency_s, self.bytes_a_s = latency_s, bytes_a_s
        self.on = False
        self._lock, self._free_at = threading.Lock(), 0.0

    def pread(self, fd: int, view: memoryview, offset: int) -> int:
        begun = time.perf_counter()
        n = os_pread(fd, view, offset)
        if self.on:
            with self._lock:
                # The transfer starts after the latency and after every transfer that began before it.
                self._free_at = max(self._free_at, begun + self.latency_s) + n / self.bytes_a_s
                until = self._free_at
            time.sleep(max(0.0, until - time.perf_counter()))
        return n


class OneAtATime(Reader):
    """A reader that returns from `submit` only when the read is done."""

    def submit(self, *args: Any, **keywords: Any) -> Any:
        ticket = super().submit(*args, **keywords)
        ticket.wait()
        return ticket


@contextmanager
def noting(session: Session, misses: list[int]) -> Iterator[None]:
    """Inside, the misses of every layer's forward are added to the list."""
    table = session.loaded.store.table
    lookup: Callable[..., Any] = table.lookup

    def noted(*args: Any, **keywords: Any) -> Any:
        found = lookup(*args, **keywords)
        misses.append(len(found.misses))
        return found

    table.lookup = noted
    try:
        yield
    finally:
        table.lookup = lookup


@contextmanager
def timing(session: Session, seconds: list[float]) -> Iterator[None]:
    """Inside, the seconds of every layer's experts by themselves are added to the list."""
    store = session.loaded.store
    run: Callable[..., Any] = store.run

    def timed(layer: int, hidden: Any, *args: Any, **keywords: Any) -> Any:
        mx.eval(hidden)
        begun = time.perf_counter()
        outputs = run(layer, hidden, *args, **keywords)
        mx.eval(outputs)
        seconds.append(time.perf_counter() - begun)
        return outputs

    store.run = timed
    try:
        yield
    finally:
        store.run = run


def forwards(session: Session, text: list[int], rows: int, throttle: Throttle) -> dict[str, Any]:
    """The first half of the text with nothing in the slots, then the rest throttled, `rows` tokens a forward."""
    session.loaded.store.clear()
    caches, half = [layer.new_cache() for layer in session.model.layers], len(text) // 2
    for start in range(0, half, 64):
        x = session.forward.token_major(caches, text[max(0, start - 16) : start], text[start : min(half, start + 64)])
        mx.eval(x, arrays_of(caches))
    throttle.on, misses = True, []
    before, begun = session.stats(), time.perf_counter()
    with noting(session, misses):
        for start in range(half, len(text), rows):
            x = session.forward.token_major(caches, text[start - 16 : start], text[start : start + rows])
            mx.eval(session.model.head(x[-1:]), arrays_of(caches))
    seconds, after = time.perf_counter() - begun, session.stats()
    throttle.on = False
    return {
        "seconds": seconds, "misses": misses, "read_s": after.ssd.busy_s - before.ssd.busy_s,
        "wait_s": after.timing.ssd_wait_s - before.timing.ssd_wait_s,
    }  # fmt: skip


def judge(found: dict[str, list[dict[str, Any]]], latency_s: float, transfer_s: float) -> list[Target]:
    """Ratios of the medians over the repeats; the misses of both modes are the same."""
    misses = found["engine"][-1]["misses"]
    same = all(a["misses"] == b["misses"] for a, b in zip(found["engine"], found["serial"]))
    apart, at_once = (
        sum(m * (latency_s + transfer_s) for m in misses), sum(latency_s + m * transfer_s for m in misses if m)
    )  # fmt: skip
    serial, engine = (
        {k: median(r[k] for r in found[mode]) for k in ("seconds", "read_s", "wait_s")} for mode in ("serial", "engine")
    )
    bound, reads = apart / at_once, serial["read_s"] / engine["read_s"]
    best = serial["seconds"] / (serial["seconds"] - (apart - at_once))
    whole = serial["seconds"] / engine["seconds"]
    per_layer = sum(misses) / max(1, sum(m > 0 for m in misses))
    exposed = engine["wait_s"] / engine["read_s"]
    console.print(
        f"{sum(misses):,} misses, {per_layer:.2f} a layer that misses; reading {engine['read_s']:.2f} s of "
        f"{engine['seconds']:.2f} s, one after another {serial['read_s']:.2f} s of {serial['seconds']:.2f} s"
    )
    return [
        Target("time of reading, serial / engine", f"{reads:.2f} = {reads / bound:.2f} x the bound {bound:.2f}", ">= 0.85 x",
               reads >= 0.85 * bound),
        Target("speed, engine / serial", f"{whole:.2f} = {whole / best:.2f} x the bound {best:.2f} with this computing",
               ">= 0.85 x", whole >= 0.85 * best),
        Target("exposed wait / time of reading", f"{exposed:.0%} at {per_layer:.1f} misses a layer", "<= 35 %",
               exposed <= 0.35),
        Target("the same misses in both modes", str(same), "True", same),
    ]  # fmt: skip


def show_prefetch(found: dict[str, list[dict[str, Any]]], stats: ExpertStats) -> None:
    """The last repeat with reading ahead beside the one without: it has been tried and chosen, or not, by then."""
    ahead, without = found["prefetch"][-1], found["engine"][-1]
    console.print(
        f"prefetch: {stats.prefetch}; {stats.guessed_right:,} of {stats.guessed:,} guesses right; "
        f"{without['seconds'] / ahead['seconds']:.2f} x the speed without; exposed wait {ahead['wait_s']:.2f} s "
        f"({ahead['wait_s'] / ahead['read_s']:.0%} of reading), without {without['wait_s']:.2f} s"
    )


def sweep(config: EngineConfig, text: list[int], repeats: int) -> list[Target]:
    """A line for every setting of SWEEP; the target is of those where the bound allows it at four misses or more."""
    throttle = Throttle(0.0, 1.0)
    some, whole = (
        open_throttled(replace(config, expert_cache=share), throttle, serial=False)
        for share in (config.expert_cache, "100 %")
    )
    # Somebody who wants to know the routes: so that both take the way that reads them back.
    whole.loaded.store.on_lookup = lambda *_: None
    expert_bytes = some.loaded.store.layout.expert_bytes
    table = Table(title=f"experts in memory: {config.expert_cache}; medians of {repeats}", title_justify="left")
    heads = ("rows", "a read", "misses a layer", "reading", "its experts' computing", "bound", "waited for")
    for head in heads:
        table.add_column(head, justify="right")
    targets = []
    for rows, latency_ms, mb_s in SWEEP:
        throttle.latency_s, throttle.bytes_a_s = latency_ms / 1e3, mb_s * 1e6
        part, runs, computing = text[: 2 * max(48, min(512, 16 * rows))], [], []
        for _ in range(repeats):
            runs.append(forwards(some, part, rows, throttle))
            whole_s: list[float] = []
            with timing(whole, whole_s):
                forwards(whole, part, rows, throttle)
            computing.append(sum(whole_s[-len(runs[-1]["misses"]) :]))
        layers = sum(m > 0 for m in runs[-1]["misses"])
        per_layer, read_s = sum(runs[-1]["misses"]) / max(1, layers), median(r["read_s"] for r in runs)
        bound = max(0.0, 1 - median(computing) / read_s)
        waited = median(r["wait_s"] for r in runs) / read_s
        a_read = f"{latency_ms:g} ms + {expert_bytes / mb_s / 1e3:.2f} ms"
        table.add_row(
            str(rows), a_read, f"{per_layer:.1f}", f"{read_s / layers * 1e3:.1f} ms",
            f"{median(computing) / layers * 1e3:.1f} ms", f"{bound:.0%}", f"{waited:.0%}",
        )  # fmt: skip
        if per_layer >= 4 and bound <= MOST_EXPOSED:
            name = f"waited for, {rows} rows, {a_read} a read, {per_layer:.1f} misses a layer"
            targets.append(Target(name, f"{waited:.0%}", f"<= {MOST_EXPOSED:.0%}", waited <= MOST_EXPOSED))
    for session in (some, whole):
        session.close()
    console.print(table)
    return targets


def open_throttled(config: EngineConfig, throttle: Throttle, *, serial: bool) -> Session:
    """A session whose experts are read through the throttle."""
    kind = OneAtATime if serial else Reader
    return Session(load(config, reader=kind(config.read_workers, config.direct_io, pread=throttle.pread)), config)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--expert-cache", default="25 %")
    parser.add_argument("--tokens", type=int, default=192, help="of the text; the second half is measured")
    parser.add_argument("--rows", type=int, default=1, help="tokens a forward: more rows miss more experts a layer")
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--prefetch", action="store_true", help="show the same with experts read ahead")
    parser.add_argument("--latency-ms", type=float, default=0.5)
    parser.add_argument("--mb-s", type=float, default=200.0)
    parser.add_argument("--sweep", action="store_true", help="exposed reading by rows and disk instead")
    args = parser.parse_args()
    throttle = Throttle(args.latency_ms / 1e3, args.mb_s * 1e6)
    config = EngineConfig(model=args.model, expert_cache=args.expert_cache, mtp="off", context=4096)
    if args.sweep:
        index = open_checkpoint(find_model(args.model))
        codec = Tokenizer.load(index.folder, index.config, index.generation_config)
        return verdict(sweep(config, codec.encode(prompt_for(load_workload("code"), args.model, 1024)), args.pairs))
    # A session a mode: a policy learns, and both have to learn the same.
    sessions = {mode: open_throttled(config, throttle, serial=mode == "serial") for mode in ("serial", "engine")}
    if args.prefetch:
        sessions["prefetch"] = open_throttled(replace(config, prefetch=True), throttle, serial=False)
    index = sessions["engine"].loaded.survey.index
    tokenizer = Tokenizer.load(index.folder, index.config, index.generation_config)
    text = tokenizer.encode(prompt_for(load_workload("code"), args.model, args.tokens))
    found: dict[str, list[dict[str, Any]]] = {mode: [] for mode in sessions}
    for pair in range(args.pairs):
        for mode in sessions if pair % 2 == 0 else reversed(sessions):
            found[mode].append(forwards(sessions[mode], text, args.rows, throttle))
    if args.prefetch:
        show_prefetch(found, sessions["prefetch"].stats().experts)
    transfer_s = sessions["engine"].loaded.store.layout.expert_bytes / throttle.bytes_a_s
    for session in sessions.values():
        session.close()
    return verdict(judge(found, throttle.latency_s, transfer_s))


if __name__ == "__main__":
    sys.exit(main())
