"""What a rewind costs: the engine's, from the states that a check captured, beside two others.

Generates with drafts; at every partly rejected round three ways back to the same states are timed in turn, from copies of
the states before the round: the engine's own (`commit`), the one that runs table embedding, input mix and mixer of
the recurrent layers again on captured block inputs, and a replay of the kept tokens through the whole trunk.

    python benchmarks/rewind.py --model PATH
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import mlx.core as mx
from measuring import Target, console, verdict
from rich.table import Table

PROMPT = "def mean(values):\n    total = 0\n    for v in values:\n        total += v\n    return total / len(values)\n\n\ndef median(values):\n"


class Watch:
    """Stands around a session's rounds: captures what a check saw, times the ways back."""

    def __init__(self, session: Any) -> None:
        self.session, self.rounds = session, session._rounds
        self.kept: list[int] = []
        self.own_s: list[float] = []
        self.mixers_s: list[float] = []
        self.replay_s: list[float] = []
        self.evaluations = self.bytes = 0
        self.extra_s = 0.0
        """Wall seconds of what only the measuring does."""
        self._seen: list[list[tuple[Any, Any]]] = []
        self._before: list[Any] = []
        self._keep, self._save = self.rounds._keep, self.rounds._save
        self.rounds._keep, self.rounds._save = self.keep, self.save
        for number, layer in enumerate(session.model.layers):
            self._capture(number, layer)

    def _capture(self, number: int, layer: Any) -> None:
        mix = layer.mix

        def watched(x: Any, cache: Any, rows: Any, *, apart: bool = False) -> Any:
            if self.session.meter.phase_name == "verify":
                self._seen[number].append((x, rows))
            return mix(x, cache, rows, apart=apart)

        layer.mix = watched

    def save(self) -> Any:
        saved = self._save()
        self._before = saved[0]
        self._seen = [[] for _ in self.session.model.layers]
        return saved

    def keep(self, kept: int, ids: Sequence[int], wide: Any) -> float:
        session, store = self.session, self.session.loaded.store
        seen = [(mx.concatenate([x for x, _ in s]), _joined([r for _, r in s])) for s in self._seen]
        mx.eval([a for pair in seen for a in pair if a is not None])
        tokens, before = list(session.tokens[-16:]), self._before
        before_it = store.stats()
        begun = clock()
        told_s = self._keep(kept, ids, wide)
        own_s = clock() - begun
        after_it = store.stats()
        self.evaluations += after_it.hits + after_it.misses - before_it.hits - before_it.misses
        self.bytes += after_it.read_bytes - before_it.read_bytes
        if kept == len(ids):
            return told_s
        extra = time.perf_counter()
        self.kept.append(kept)
        self.own_s.append(own_s)
        self.mixers_s.append(self._timed(before, lambda caches: self._mixers(caches, seen, kept), all_layers=False))
        self.replay_s.append(
            self._timed(before, lambda caches: self._replay(caches, tokens, ids[:kept]), all_layers=True)
        )
        self.extra_s += time.perf_counter() - extra
        return told_s

    def _timed(self, before: list[Any], work: Callable[[list[Any]], Any], *, all_layers: bool) -> float:
        """Seconds of `work` on caches with the states before the round, until their states are evaluated.

        Attention rows can be cut but not put back, so those layers go back only where `work` appends the rows again.
        """
        own, now = self.session.caches, [c.save() for c in self.session.caches]
        for layer, cache, state in zip(self.session.model.layers, own, before):
            if all_layers or not layer._sparse:
                cache.restore(state)
        start = clock()
        work(own)
        mx.eval([a for c in own for a in c.arrays()])
        took = clock() - start
        for cache, state in zip(own, now):
            cache.restore(state)
        return took

    def _mixers(self, caches: list[Any], seen: list[Any], kept: int) -> None:
        for layer, cache, (x, rows) in zip(self.session.model.layers, caches, seen):
            if layer._sparse:
                continue
            residual, mixer = x[:kept], cache
            if layer._ple is not None:
                residual = residual + layer._ple(residual, rows[:kept], cache["ple"])
                mixer = cache["mixer"]
            mx.eval(layer._mixer(layer._attn_mix(residual)[0], mixer))

    def _replay(self, caches: list[Any], before: list[int], ids: Sequence[int]) -> None:
        for i, token in enumerate(ids):
            mx.eval(self.session.forward.token_major(caches, [*before, *ids[:i]][-16:], [token]))


def clock() -> float:
    """CPU seconds of all threads where the CPU computes, as other programs take none of those; else wall seconds."""
    return time.perf_counter() if mx.default_device() == mx.Device(mx.gpu) else time.process_time()


def _joined(rows: list[Any]) -> Any:
    return None if rows[0] is None else mx.concatenate(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="folder of a model with an MTP layer (default: the demo model)")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--max-draft", type=int, default=2)
    parser.add_argument("--expert-cache", default="auto")
    a = parser.parse_args()
    from qwen_chat_mlx.engine.config import EngineConfig
    from qwen_chat_mlx.engine.session import Session
    from qwen_chat_mlx.engine.tokenizer import Tokenizer

    session = Session.open(EngineConfig(
        model=a.model, mtp="fixed", max_draft=a.max_draft, expert_cache=a.expert_cache, zero_acceptance_limit=32,
    ))  # fmt: skip
    index = session.loaded.survey.index
    prompt = Tokenizer.load(index.folder, index.config, index.generation_config).raw(PROMPT).ids
    watch = Watch(session)
    steps = session.generate(prompt, a.tokens, ignore_eos=True)
    next(steps)
    before, begun = session.stats(), time.perf_counter()
    for _ in steps:
        pass
    wall_s, after = time.perf_counter() - begun, session.stats()
    drafts = after.drafts
    rewind_s = after.timing.rewind_s - before.timing.rewind_s
    share = rewind_s / (wall_s - watch.extra_s)
    table = Table(
        title=f"{len(watch.kept)} partly rejected rounds of {drafts.rounds}; acceptance {drafts.acceptance or 0:.0%}"
    )
    for column in ("way back", "median ms", "total ms", "× the engine's"):
        table.add_column(column, justify="right")
    ways = {"captured states": watch.own_s, "mixers run again": watch.mixers_s, "replay": watch.replay_s}
    times = {}
    for name, seconds in ways.items():
        times[name] = median(s / o for s, o in zip(seconds, watch.own_s))
        table.add_row(name, f"{median(seconds) * 1e3:.2f}", f"{sum(seconds) * 1e3:.1f}", f"{times[name]:.1f}")
    console.print(table)
    session.close()
    return verdict([
        Target("routed experts evaluated in rewinds", str(watch.evaluations), "0", watch.evaluations == 0),
        Target("expert bytes read in rewinds", str(watch.bytes), "0", watch.bytes == 0),
        Target("share of decode time", f"{share:.2%}", "≤ 2 %", share <= 0.02),
        Target("replay / rewind, median", f"{times['replay']:.1f}", "≥ 20", times["replay"] >= 20),
    ])  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
