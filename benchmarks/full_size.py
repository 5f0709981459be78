"""The published releases at their real size, as sparse files: opened, planned, and two tokens generated.

Says nothing about text, everything about names, shapes, memory and file handling at the real scale: routers and the rows
of embedding and head in use are random, every expert begins with a marker of its own, all other weights are zero. Then
each token's residual is its embedding, so that the routes can be computed a second time in numpy.

    python benchmarks/full_size.py                     both releases, in a temporary folder
    python benchmarks/full_size.py DIR --format fp8    one of them, in DIR
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
import zlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from checkpoint_files import PUBLISHED, TRUNK, Place, Sizes, expert_stems, write_files
from measuring import (
    Target,
    arguments,
    bf16_bits,
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

MULTIPLIERS = (23703573157769, 20109073645365, 8052911324071)
HEAD_ROWS = tuple(20_000_000 + n for n in (3, 23, 33, 47, 59, 63, 69, 77, 81, 93, 107, 147, 153, 159, 161, 171))
"""The published n-gram constants: factors of the hash, and the rows of each of its heads (a prime each)."""
ROWS_IN_USE = 64
SCALE = 0x3C00  # 2^-7
EXPECTED = {"bf16": (1_658, 359_999_963_128), "fp8": (152_089, 185_502_232_570)}
"""Tensors and bytes of the published releases."""
TINY = replace(
    PUBLISHED, layers=4, hidden=256, vocab=2048, experts=128, expert_width=128, heads=2, kv_heads=1, head_dim=64,
    key_heads=2, value_heads=4, linear_dim=32, low_rank=16, index_dim=32, index_budget=64, ngram_rows=2304,
    ngram_base=100, ngram_parts=4, max_context=4096, cut_token=2000, vision=False,
)  # fmt: skip
"""For the test of this script."""


# ---- writing


class Filler:
    """Writes into the holes of a checkpoint."""

    def __init__(self, places: Mapping[str, Place]) -> None:
        self.places = places
        self._files: dict[Path, Any] = {}

    def write(self, name: str, offset: int, data: bytes) -> None:
        """`data` at byte `offset` of a tensor."""
        place = self.places[name]
        assert offset + len(data) <= place.n_bytes, name
        self.write_at(place.path, place.offset + offset, data)

    def write_at(self, path: Path, offset: int, data: bytes) -> None:
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = path.open("r+b", buffering=0)
        file.seek(offset)
        file.write(data)

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def ids_in_use(s: Sizes, seed: int) -> np.ndarray:
    """The token ids whose rows of embedding and head are not zero; never 0, and never a stop id."""
    allowed = np.setdiff1d(np.arange(1, s.vocab), [s.cut_token, s.cut_token + 2])
    return np.sort(np.random.default_rng((seed, 1)).choice(allowed, ROWS_IN_USE, replace=False))


def rows(s: Sizes, seed: int, which: int) -> np.ndarray:
    """BF16 bits of the rows in use, of the embedding (which = 2) or the head (3)."""
    return bf16_bits(np.random.default_rng((seed, which)).standard_normal((ROWS_IN_USE, s.hidden), np.float32))


def router(s: Sizes, seed: int, layer: int) -> np.ndarray:
    """BF16 bits of a layer's router; the draft layer counts as the one behind the last."""
    return bf16_bits(np.random.default_rng((seed, 4, layer)).standard_normal((s.experts, s.hidden), np.float32))


def marker(layer: int, expert: int) -> bytes:
    """Eight bytes that name an expert; as FP8 or BF16 they are small finite numbers."""
    digits = (1, 2, layer // 32, layer % 32, expert // 32, expert % 32, 3, 4)
    return bytes(0x10 + d for d in digits)


def fill(places: Mapping[str, Place], s: Sizes, form: str, seed: int) -> None:
    """Everything that is not zero."""
    out = Filler(places)
    table = f"{TRUNK}layers.1.ple.ple_embedding."
    head_rows, factors = HEAD_ROWS, MULTIPLIERS
    if s.ngram_base != PUBLISHED.ngram_base:
        # Only the test of this script gets here: other sizes have no published constants to hold the engine against.
        from qwen_chat_mlx.engine.layers.ngram import NgramHash

        built = NgramHash.build(
            vocab=s.vocab, ngram=3, heads=8, base=s.ngram_base, layer=0, seed=1234, cut_token=s.cut_token
        )
        head_rows, factors = built.sizes, built.multipliers
    offsets = np.cumsum((0, *head_rows[:-1]))
    for name, values in (
        ("layer_multipliers", factors),
        ("ngram_heads_vocab_sizes", head_rows),
        ("ngram_heads_offsets", offsets),
    ):
        out.write(table + name, 0, np.asarray(values, "<i8").tobytes())
    for name, which in ((f"{TRUNK}embed_tokens.weight", 2), ("lm_head.weight", 3)):
        for token, row in zip(ids_in_use(s, seed).tolist(), rows(s, seed, which)):
            out.write(name, token * s.hidden * 2, row.tobytes())
    for layer, stem in enumerate(expert_stems(s)):
        out.write(stem.replace(".experts", ".gate.weight"), 0, router(s, seed, layer).tobytes())
        for e in range(s.experts):
            if form == "fp8":
                out.write(f"{stem}.{e}.down_proj.weight", 0, marker(layer, e))
            else:
                out.write(f"{stem}.down_proj", e * s.hidden * s.expert_width * 2, marker(layer, e))
    if form == "fp8":
        _fill_scales(out)
    out.close()


def _fill_scales(out: Filler) -> None:
    """All scales, one write for each run of neighbours: a writer puts a shard's BF16 tensors together."""
    scales = sorted(
        (p for name, p in out.places.items() if name.endswith(("_scale_inv", ".weight_scale"))),
        key=attrgetter("path", "offset"),
    )
    for path, group in groupby(scales, key=attrgetter("path")):
        start = stop = 0
        for place in group:
            if place.offset != stop:
                out.write_at(path, start, np.full((stop - start) // 2, SCALE, "<u2").tobytes())
                start = place.offset
            stop = place.offset + place.n_bytes
        out.write_at(path, start, np.full((stop - start) // 2, SCALE, "<u2").tobytes())


# ---- measuring, in a fresh process


class Watch:
    """Looks at the slots whenever a layer asks for experts: whose bytes are in them, and who was read again."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._mark_at = store.layout.part("down").slot_offset
        self._last: tuple[int, list[int]] | None = None
        self._sums: dict[tuple[int, int], int] = {}
        self._reads: dict[tuple[int, int], int] = {}
        self.checked = self.wrong = self.reread_equal = self.reread_different = 0
        store.on_lookup = self.asked

    def asked(self, layer: int, experts: list[int]) -> None:
        self.look()
        self._last = (layer, list(experts))
        for e in experts:
            if self._store.table.slot(layer, e) is None:
                self._reads[layer, e] = self._reads.get((layer, e), 0) + 1

    def look(self) -> None:
        """Check the experts of the last lookup that are still there (a union larger than the slots runs in waves)."""
        if self._last is None:
            return
        layer, experts = self._last
        for e in experts:
            slot = self._store.table.slot(layer, e)
            if slot is None:
                continue
            memory = self._store.memory(slot)
            self.checked += 1
            self.wrong += bytes(memory[self._mark_at : self._mark_at + 8]) != marker(layer, e)
            if layer % 16 == 0:
                self._compare((layer, e), zlib.crc32(memory))
        self._last = None

    def _compare(self, key: tuple[int, int], value: int) -> None:
        known = self._sums.setdefault(key, value)
        if self._reads[key] > 1:
            self.reread_equal += known == value
            self.reread_different += known != value

    @property
    def read_again(self) -> int:
        return sum(n > 1 for n in self._reads.values())


def route_agreement(s: Sizes, seed: int, prompt: list[int], routes: np.ndarray) -> float:
    """Share of the routed experts [layers, T, k] that numpy finds too (it rounds less, so near-ties differ)."""
    place = {t: i for i, t in enumerate(ids_in_use(s, seed).tolist())}
    embedded = (rows(s, seed, 2).astype(np.uint32) << 16).view(np.float32)[[place[t] for t in prompt]]
    hidden = embedded / np.sqrt((embedded**2).mean(-1, keepdims=True)) / 2
    same = 0
    for layer, found in enumerate(routes):
        gate = (router(s, seed, layer).astype(np.uint32) << 16).view(np.float32)
        best = np.argsort(-(hidden @ gate.T), axis=-1, kind="stable")[:, : s.top_k]
        same += sum(len(np.intersect1d(a, b)) for a, b in zip(found, best))
    return same / routes.size


def child(task: dict[str, Any]) -> None:
    """Open, generate after two prompts, look at everything."""
    from qwen_chat_mlx.engine.config import EngineConfig
    from qwen_chat_mlx.engine.session import Session

    s, seed = Sizes(**task["sizes"]), task["seed"]
    start = time.perf_counter()
    phases: dict[str, float] = {}

    def progress(phase: str, *_: object) -> None:
        phases.setdefault(phase, time.perf_counter() - start)

    config = EngineConfig(model=task["folder"], expert_cache=task["expert_cache"], dtype="bfloat16", mtp="off")
    session = Session.open(config, progress)
    open_s, open_cpu_s, opened = time.perf_counter() - start, time.process_time(), memory_status()
    plan = session.loaded.survey.plan
    console.print(f"opened in {open_s:.1f} s, resident set {size(opened['rss'])}, plan {size(plan.total_bytes)}")
    routes: list[list[np.ndarray]] = [[] for _ in range(s.layers)]
    session.forward.on_routes = lambda layer, parts: routes[layer].extend(np.asarray(p) for p in parts)
    watch = Watch(session.loaded.store)
    runs = []
    for prompt in task["prompts"]:
        begun, cpu = time.perf_counter(), time.process_time()
        tokens = [t for step in session.generate(prompt, task["tokens"], ignore_eos=True) for t in step.tokens]
        runs.append(
            {
                "prompt": prompt,
                "tokens": tokens,
                "wall_s": time.perf_counter() - begun,
                "cpu_s": time.process_time() - cpu,
            }
        )
        console.print(f"prompt of {len(prompt)}: tokens {tokens} in {runs[-1]['wall_s']:.1f} s")
    watch.look()
    asked = np.stack([np.concatenate(r)[: len(task["prompts"][0])] for r in routes])
    stats = session.stats()
    session.close()
    send_result(task, {
        "open_s": open_s,
        "open_cpu_s": open_cpu_s, "phases": phases, "opened": opened, "memory": memory_status(), "terms": plan.terms,
        "plan_bytes": plan.total_bytes, "limit_bytes": plan.limit_bytes, "context": plan.context, "slots": plan.slots,
        "layer_buffers": plan.layer_buffers, "runs": runs,
        "distinct": [len(np.unique(np.concatenate(r))) for r in routes],
        "agreement": route_agreement(s, seed, task["prompts"][0], asked),
        "markers": [watch.checked, watch.wrong], "read_again": watch.read_again,
        "reread": [watch.reread_equal, watch.reread_different], "experts": asdict(stats.experts),
        "ssd": {"read_bytes": stats.ssd.read_bytes, "busy_s": stats.ssd.busy_s, "direct_io": stats.ssd.direct_io},
        "tensors": len(session.loaded.survey.index.entries), "bytes": session.loaded.survey.index.total_bytes,
    })  # fmt: skip


# ---- one release


def release(folder: Path, form: str, s: Sizes, a: argparse.Namespace) -> list[Target]:
    """Write, measure, show and remove one release."""
    folder.mkdir()
    try:
        begun = time.perf_counter()
        places = write_files(folder, s, form, a.shards)
        fill(places, s, form, a.seed)
        apparent = sum(p.stat().st_size for p in folder.iterdir())
        used = sum(p.stat().st_blocks * 512 for p in folder.iterdir())
        console.print(
            f"\n[bold]{form.upper()} release[/]: {len(places):,} tensors, {apparent / 1e9:.1f} GB apparent, "
            f"{size(used)} on disk, written in {time.perf_counter() - begun:.1f} s"
        )
        del places
        ids = np.random.default_rng((a.seed, 5)).permutation(ids_in_use(s, a.seed)).tolist()
        n = a.prompt_tokens
        # The second prompt begins like the first one ends, so that experts come back.
        prompts = [ids[:n], ids[n - 1 : 2 * n - 1]]
        found = run_child(__file__, {
            "folder": str(folder), "sizes": asdict(s), "seed": a.seed, "expert_cache": a.expert_cache,
            "prompts": prompts, "tokens": a.tokens,
        })  # fmt: skip
    finally:
        if not a.keep:
            shutil.rmtree(folder)
    show(form, found)
    return judge(form, s, a, found)


def show(form: str, found: dict[str, Any]) -> None:
    console.print(plan_table(
        f"{form}: memory plan (limit {size(found['limit_bytes'])}, context {found['context']:,})", found["terms"],
        found["plan_bytes"], found["memory"]["peak"],
    ))  # fmt: skip
    table = Table(title=f"{form}: the run", title_justify="left", show_header=False)
    e, ssd = found["experts"], found["ssd"]
    for phase, at in found["phases"].items():
        table.add_row(f"{phase}, begun after", f"{at:.2f} s")
    table.add_row("open", f"{found['open_s']:.2f} s ({found['open_cpu_s']:.1f} s of CPU)")
    table.add_row("resident set after open", size(found["opened"]["rss"]))
    table.add_row("peak up to there", size(found["opened"]["peak"]))
    for run in found["runs"]:
        table.add_row(
            f"prompt of {len(run['prompt'])} → {len(run['tokens'])} tokens",
            f"{run['wall_s']:.1f} s ({run['cpu_s']:.1f} s of CPU)",
        )
    table.add_row("experts: slots, hits, misses, evictions, waves",
                  f"{e['slots']}, {e['hits']:,}, {e['misses']:,}, {e['evictions']:,}, {e['waves']:,}")  # fmt: skip
    rate = ssd["read_bytes"] / ssd["busy_s"] if ssd["busy_s"] else 0
    table.add_row("expert bytes read", f"{size(ssd['read_bytes'])} at {size(rate)}/s (holes, not a disk's rate)")
    table.add_row("direct I/O", "yes" if ssd["direct_io"] else "no")
    console.print(table)


def judge(form: str, s: Sizes, a: argparse.Namespace, found: dict[str, Any]) -> list[Target]:
    peak, plan, e = found["memory"]["peak"], found["plan_bytes"], found["experts"]
    in_use = set(ids_in_use(s, a.seed).tolist())
    made = [t for run in found["runs"] for t in run["tokens"]]
    checked, wrong = found["markers"]
    equal, different = found["reread"]
    targets = [
        Target(f"{form}: peak resident set", size(peak), f"≤ the plan, {size(plan)}", peak <= plan),
        Target(f"{form}: tokens", f"{made}, all of rows in use: {set(made) <= in_use}",
               f"{a.tokens} after each prompt", len(made) == a.tokens * len(found["runs"]) and set(made) <= in_use),
        Target(f"{form}: distinct experts routed to, fewest in a layer", str(min(found["distinct"])),
               f"≥ {a.distinct}", min(found["distinct"]) >= a.distinct),
        Target(f"{form}: routes that numpy finds too", f"{found['agreement']:.1%}", "≥ 90 %", found["agreement"] >= 0.9),
        Target(f"{form}: experts with the right marker in their slot", f"{checked - wrong:,} of {checked:,}", "all",
               checked > 0 and not wrong),
        Target(f"{form}: evictions", f"{e['evictions']:,}", "> 0", e["evictions"] > 0),
        Target(f"{form}: read again, and compared whole", f"{found['read_again']:,}; {equal:,} equal, {different:,} not",
               "≥ 1 equal, none not", equal > 0 and not different),
    ]  # fmt: skip
    if s == PUBLISHED:
        tensors, n_bytes = EXPECTED[form]
        targets.append(Target(f"{form}: tensors and bytes", f"{found['tensors']:,}; {found['bytes']:,}",
                              f"{tensors:,}; {n_bytes:,}", (found["tensors"], found["bytes"]) == (tensors, n_bytes)))  # fmt: skip
    return targets


def main() -> int:
    ap = arguments(__doc__, shards=131)
    ap.add_argument("--format", choices=("fp8", "bf16", "both"), default="both")
    ap.add_argument("--expert-cache", default="512 MiB", help="budget of the expert slots")
    ap.add_argument("--prompt-tokens", type=int, default=8, help="tokens of each of the two prompts (2 to 32)")
    ap.add_argument("--tokens", type=int, default=2, help="tokens generated after each prompt")
    ap.add_argument("--distinct", type=int, default=100, help="experts that every layer must have routed to")
    a = ap.parse_args()
    if a.child:
        child(json.loads(a.child))
        return 0
    if not 2 <= a.prompt_tokens <= ROWS_IN_USE // 2 or a.tokens < 1:
        ap.error(f"--prompt-tokens takes 2 to {ROWS_IN_USE // 2}, --tokens at least 1")
    folder, ours = scratch_folder(a.folder)
    need_space(folder, 1 << 30)
    targets = []
    try:
        for form in ("fp8", "bf16") if a.format == "both" else (a.format,):
            targets += release(folder / form, form, TINY if a.tiny else PUBLISHED, a)
    finally:
        if ours and not a.keep:
            shutil.rmtree(folder)
    return verdict(targets)


if __name__ == "__main__":
    raise SystemExit(main())
