"""Experts on the SSD with little memory: 8 GiB of random experts, a 512 MiB budget.

Writes a Qwen4-Exp checkpoint in the published FP8 layout (random bytes; scales that keep values near one; no draft
layer), then measures in fresh processes: the peak resident set against the memory plan while 64 tokens are generated
behind a layer-major prompt, and layer-major prefill against reading alone and computing alone.

The machine may be busy with other work, so times are compared only inside a repeat, in which reading alone, computing
alone, both, and a plain loop of direct reads follow one another; the medians of these ratios are judged.

    python benchmarks/offload_synthetic.py                  in a temporary folder
    python benchmarks/offload_synthetic.py DIR --keep       in DIR, left there for the next run
    … DIR --keep --only prefill --prompts 8                 a part of it, with the files of a run before
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from checkpoint_files import Sizes, tensors_of
from measuring import (
    Target,
    arguments,
    console,
    memory_status,
    need_space,
    plan_table,
    run_child,
    scratch_folder,
    send_result,
    size,
    verdict,
)
from rich.table import Table
from synthetic_checkpoint import SIZES, TINY, write_checkpoint

MIB = 1 << 20


# ---- the checkpoint


def prepare(folder: Path, s: Sizes, a: argparse.Namespace) -> None:
    """Write the checkpoint unless the folder already holds this very one."""
    stamp, wanted = folder / "written.json", {"sizes": asdict(s), "shards": a.shards, "seed": a.seed}
    if stamp.exists() and json.loads(stamp.read_text()) == wanted:
        console.print(f"{folder} already holds the checkpoint.")
        return
    need_space(folder, sum(_bytes_of(kind) for kind in tensors_of(s, "fp8").values()))
    begun = time.perf_counter()
    write_checkpoint(folder, s, a.shards, a.seed)
    stamp.write_text(json.dumps(wanted))
    console.print(f"{folder}: checkpoint written in {time.perf_counter() - begun:.1f} s")


def _bytes_of(kind: tuple[str, tuple[int, ...]]) -> int:
    n = {"BF16": 2, "F8_E4M3": 1, "I64": 8}[kind[0]]
    for d in kind[1]:
        n *= d
    return n


# ---- measuring, in fresh processes


def _open(task: dict[str, Any]) -> Any:
    from qwen_chat_mlx.engine.config import EngineConfig
    from qwen_chat_mlx.engine.session import Session

    return Session.open(EngineConfig(
        model=task["folder"], expert_cache=task["expert_cache"], context=task["context"], prefill_step=task["step"],
        layer_major_threshold=1, direct_io="on", dtype=task["dtype"], mtp="off",
    ))  # fmt: skip


def _prompt(s: Sizes, n: int, seed: int) -> list[int]:
    return np.random.default_rng((seed, n)).integers(1, s.cut_token, n).tolist()


def _noting(routed: set[tuple[int, int]]) -> Callable[[int, list[np.ndarray]], None]:
    """A listener to routes that adds every (layer, expert) to `routed`."""

    def note(layer: int, parts: list[np.ndarray]) -> None:
        routed.update((layer, int(e)) for part in parts for e in np.unique(part))

    return note


def memory_child(task: dict[str, Any]) -> None:
    """A layer-major prompt, then decoding from the slots; the peak of this process."""
    s = Sizes(**task["sizes"])
    session = _open(task)
    opened, plan = memory_status(), session.loaded.survey.plan
    routed: set[tuple[int, int]] = set()
    session.forward.on_routes = _noting(routed)
    prompt, begun = _prompt(s, task["prompt"], task["seed"]), time.perf_counter()
    steps = session.generate(prompt, task["tokens"], ignore_eos=True)
    tokens = list(next(steps).tokens)
    prefill_s, begun = time.perf_counter() - begun, time.perf_counter()
    prefill_bytes, union_bytes = session.stats().ssd.read_bytes, len(routed) * session.loaded.store.layout.expert_bytes
    session.forward.on_routes = None
    tokens += [t for step in steps for t in step.tokens]
    decode_s, memory = time.perf_counter() - begun, memory_status()
    stats = session.stats()
    session.close()
    send_result(task, {
        "terms": plan.terms, "plan_bytes": plan.total_bytes, "layer_buffers": plan.layer_buffers, "opened": opened,
        "memory": memory, "tokens": tokens, "prefill_s": prefill_s, "decode_s": decode_s,
        "prefill_bytes": prefill_bytes, "union_bytes": union_bytes, "experts": asdict(stats.experts),
    })  # fmt: skip


def prefill_child(task: dict[str, Any]) -> None:
    """Reading alone, computing alone, both, and a plain loop, one after another, several times."""
    s = Sizes(**task["sizes"])
    session = _open(task)
    bench = _Prefill(session, _prompt(s, task["prompt"], task["seed"]), task["step"])
    union = bench.warm_up()
    repeats = []
    for i in range(task["repeats"]):
        repeats.append({
            "reading": bench.reading(), "computing": bench.computing(), "both": bench.both(),
            "plain": plain_loop(session.loaded.store.layout, task["plain_bytes"], i),
        })  # fmt: skip
        console.print(f"repeat {i + 1}: " + ", ".join(f"{k} {v['wall_s']:.2f} s" for k, v in repeats[-1].items()))
    layout = session.loaded.store.layout
    send_result(task, {
        "repeats": repeats, "union": union, "experts": layout.n_layers * layout.n_experts,
        "expert_bytes": layout.expert_bytes, "buffers": len(bench.buffers),
        "direct_io": session.stats().ssd.direct_io,
    })  # fmt: skip
    session.close()


class _Prefill:
    """One prompt through an open session's layers, whole or in part."""

    def __init__(self, session: Any, ids: list[int], step: int) -> None:
        from qwen_chat_mlx.engine.prefill import PromptOrder

        self._session, self._ids, self._order = session, ids, PromptOrder(step, 1)
        self.buffers = session.forward.buffers

    def _timed(self, work: Callable[[], None]) -> dict[str, float]:
        """Wall and CPU seconds of `work`, with what was read and for how long reads were in flight."""
        self._session.loaded.store.clear()
        before, begun, cpu = self._session.stats().ssd, time.perf_counter(), time.process_time()
        work()
        wall_s, cpu_s, after = time.perf_counter() - begun, time.process_time() - cpu, self._session.stats().ssd
        return {
            "wall_s": wall_s, "cpu_s": cpu_s, "bytes": after.read_bytes - before.read_bytes,
            "busy_s": after.busy_s - before.busy_s,
        }  # fmt: skip

    def both(self) -> dict[str, float]:
        return self._timed(self._run)

    def _run(self) -> None:
        from qwen_chat_mlx.engine.prefill import run_prompt

        caches = [layer.new_cache() for layer in self._session.model.layers]
        run_prompt(self._session.forward, caches, [], self._ids, self._order)

    def warm_up(self) -> int:
        """One whole pass; the number of experts that were routed to, over all layers."""
        routed: set[tuple[int, int]] = set()
        self._session.forward.on_routes = _noting(routed)
        self._run()
        self._session.forward.on_routes = None
        return len(routed)

    def computing(self) -> dict[str, float]:
        """The same from buffers that hold one layer's bytes for all of them and are never read again."""
        for b in self.buffers:
            b.load(0)
            b.wait()
        with _never_read(self.buffers):
            return self._timed(self._run)

    def reading(self) -> dict[str, float]:
        """Every layer into the buffers, the next one ahead where there are two, as a prompt does it."""

        def work() -> None:
            buffers, layers = self.buffers, self._session.loaded.store.layout.n_layers
            buffers[0].load(0)
            for layer in range(layers):
                if len(buffers) > 1 and layer + 1 < layers:
                    buffers[(layer + 1) % 2].load(layer + 1)
                buffers[layer % len(buffers)].wait()
                if len(buffers) == 1 and layer + 1 < layers:
                    buffers[0].load(layer + 1)

        return self._timed(work)


@contextmanager
def _never_read(buffers: Sequence[Any]) -> Iterator[None]:
    """Inside, a layer buffer takes what it holds for any layer."""

    def load_nothing(buffer: Any) -> Callable[[int], int]:
        def load(layer: int) -> int:
            buffer.layer = layer
            return 0

        return load

    for b in buffers:
        b.load = load_nothing(b)
    try:
        yield
    finally:
        for b in buffers:
            del b.load


def plain_loop(layout: Any, n_bytes: int, start: int) -> dict[str, float]:
    """A single thread that reads the experts' bytes one after another past the page cache, in pieces of the reader's size."""
    from qwen_chat_mlx.engine.offload.reader import PIECE_BYTES as PIECE

    flag = getattr(os, "O_DIRECT", 0)
    done, begun = 0, time.perf_counter()
    with mmap.mmap(-1, PIECE) as buffer, memoryview(buffer) as view:
        for layer in range(start, start + layout.n_layers):
            for r in layout.layer_image(layer % layout.n_layers).ranges:
                fd = os.open(r.path, os.O_RDONLY | flag)
                first, last = -(-r.offset // 4096) * 4096, (r.offset + r.n_bytes) // 4096 * 4096
                for at in range(first, last, PIECE):
                    done += os.preadv(fd, (view[: min(PIECE, last - at)],), at)
                    if done >= n_bytes:
                        break
                os.close(fd)
                if done >= n_bytes:
                    return {"wall_s": time.perf_counter() - begun, "bytes": done}
    return {"wall_s": time.perf_counter() - begun, "bytes": done}


# ---- judging


def judge_memory(prompt: int, found: dict[str, Any], budget: int, allowance: int) -> list[Target]:
    terms, plan, peak = dict(found["terms"]), found["plan_bytes"], found["memory"]["peak"]
    parts = ("resident weights", "layer buffers", "keys and values", "states")
    bound = sum(terms[p] for p in parts) + budget + allowance
    once = found["prefill_bytes"] / found["union_bytes"]
    return [
        Target("peak resident set / plan", f"{peak / plan:.3f}", "≤ 1.03", peak <= 1.03 * plan),
        Target(
            "plan", size(plan),
            f"≤ non-expert weights + budget + layer buffers + KV and states + {size(allowance)} = {size(bound)}",
            plan <= bound,
        ),
        Target(
            f"prompt of {prompt}: bytes read / bytes of the union", f"{once:.3f}", "1.00", abs(once - 1) < 0.005
        ),
    ]  # fmt: skip


def judge_prefill(prompt: int, found: dict[str, Any], *, times: bool) -> list[Target]:
    """Ratios inside each repeat, then their medians; a tiny model's times mean nothing."""
    repeats = found["repeats"]
    walls = [r["both"]["wall_s"] / max(r["reading"]["wall_s"], r["computing"]["wall_s"]) for r in repeats]
    rates = [_rate(r["both"], "busy_s") / _rate(r["plain"], "wall_s") for r in repeats]
    whole = found["experts"] * found["expert_bytes"]
    read = [r["both"]["bytes"] / whole for r in repeats]
    union = found["union"] / found["experts"]
    label = f"prompt of {prompt}: "
    once = Target(
        f"{label}bytes read / bytes of all experts", f"{median(read):.2f} ({union:.1%} of them routed to)", "1.00",
        all(abs(r - 1) < 0.005 for r in read),
    )  # fmt: skip
    if not times:
        return [once]
    return [
        once,
        Target(f"{label}wall / max(reading alone, computing alone)", _spread(walls), "≤ 1.25", median(walls) <= 1.25),
        Target(f"{label}rate in flight / plain loop of direct reads", _spread(rates), "≥ 0.8", median(rates) >= 0.8),
    ]  # fmt: skip


def _rate(measured: dict[str, float], seconds: str) -> float:
    return measured["bytes"] / max(1e-9, measured[seconds])


def _spread(values: list[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} – {max(values):.2f}, {len(values)} repeats)"


def show_prefill(prompt: int, found: dict[str, Any]) -> None:
    title = f"layer-major prefill, prompt of {prompt}, {found['buffers']} buffers; seconds of wall (and of CPU)"
    table = Table(title=title, title_justify="left")
    for column in ("repeat", "reading alone", "computing alone", "both", "in flight", "rate in flight", "plain loop"):
        table.add_column(column, justify="right")
    for i, r in enumerate(found["repeats"], 1):
        table.add_row(
            str(i), *(f"{r[k]['wall_s']:.2f} s ({r[k]['cpu_s']:.1f})" for k in ("reading", "computing", "both")),
            f"{r['both']['busy_s']:.2f} s", f"{size(_rate(r['both'], 'busy_s'))}/s",
            f"{size(_rate(r['plain'], 'wall_s'))}/s",
        )  # fmt: skip
    console.print(table)


def show_memory(found: dict[str, Any]) -> None:
    console.print(plan_table("memory plan", found["terms"], found["plan_bytes"], found["memory"]["peak"]))
    e, n = found["experts"], len(found["tokens"])
    share = e["hits"] / max(1, e["hits"] + e["misses"])
    console.print(
        f"resident set after open {size(found['opened']['rss'])}; prefill {found['prefill_s']:.1f} s; {n} tokens, "
        f"{(n - 1) / found['decode_s']:.2f} tokens/s in decode; {e['slots']} slots, {share:.1%} hits, "
        f"{e['evictions']:,} evictions, {e['handed_over']:,} experts handed over by the prompt"
    )


def main() -> int:
    ap = arguments(__doc__, shards=9)
    ap.add_argument("--expert-cache", type=int, default=512, metavar="MIB", help="budget of the slots in MiB")
    ap.add_argument("--tokens", type=int, default=64, help="tokens to generate for the peak of memory")
    ap.add_argument("--prompts", type=int, nargs="+", default=[8, 64], help="lengths of the timed prompts")
    ap.add_argument("--long-prompt", type=int, default=256, help="length of the prompt before the generated tokens")
    ap.add_argument("--step", type=int, default=256, help="prefill_step")
    ap.add_argument("--repeats", type=int, default=3)
    ap.add_argument("--only", choices=("memory", "prefill"), help="measure only this part")
    ap.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    a = ap.parse_args()
    if a.child:
        task = json.loads(a.child)
        {"memory": memory_child, "prefill": prefill_child}[task["what"]](task)
        return 0
    s = TINY if a.tiny else SIZES
    prompts = (*a.prompts, a.long_prompt)
    if min(prompts) < 1 or max(prompts) + a.tokens > s.max_context or a.tokens < 2 or a.repeats < 1:
        ap.error(f"a prompt and --tokens (at least 2) together take at most {s.max_context}; --repeats at least 1")
    folder, ours = scratch_folder(a.folder)
    checkpoint = folder / "synthetic-fp8"
    checkpoint.mkdir(exist_ok=True)
    try:
        prepare(checkpoint, s, a)
        task = {
            "folder": str(checkpoint), "sizes": asdict(s), "seed": a.seed, "step": a.step, "dtype": a.dtype,
            "expert_cache": f"{a.expert_cache} MiB", "context": s.max_context, "tokens": a.tokens,
            "repeats": a.repeats, "plain_bytes": 2 << 30,
        }  # fmt: skip
        targets: list[Target] = []
        if a.only != "prefill":
            memory = run_child(__file__, task | {"what": "memory", "prompt": a.long_prompt})
            show_memory(memory)
            targets += judge_memory(a.long_prompt, memory, a.expert_cache * MIB, 350 * MIB)
        for prompt in a.prompts if a.only != "memory" else ():
            found = run_child(__file__, task | {"what": "prefill", "prompt": prompt})
            show_prefill(prompt, found)
            targets += judge_prefill(prompt, found, times=not a.tiny)
    finally:
        if not a.keep:
            shutil.rmtree(folder if ours else checkpoint)
    return verdict(targets)


if __name__ == "__main__":
    raise SystemExit(main())
