"""What the offload machinery costs when every expert is in memory: `python benchmarks/all_resident.py --model FOLDER`.

Decode tokens a second of a session whose slots hold all experts, over those of the obvious forward without slots,
tables, readers or counters: per layer one array of all experts in the computing dtype, indexed by the router's choice.
Both decode the same prompt greedily in one process by turns, token by token (A B B A), so that whatever else runs on
the machine meets both; the texts have to be equal. `--stored` keeps the obvious forward's experts in the checkpoint's
dtype, converted when used, as the slots do.
"""

from __future__ import annotations

import argparse
import sys
import time
from statistics import median
from typing import Any

import mlx.core as mx
import numpy as np
from measuring import Target, console, verdict

from qwen_chat_mlx.engine.bench.workloads import load_workload, prompt_for
from qwen_chat_mlx.engine.cache.base import arrays_of
from qwen_chat_mlx.engine.checkpoint.index import read_tensor
from qwen_chat_mlx.engine.config import EngineConfig
from qwen_chat_mlx.engine.layers.moe import silu
from qwen_chat_mlx.engine.models.contract import as_ids
from qwen_chat_mlx.engine.session import Session
from qwen_chat_mlx.engine.tokenizer import Tokenizer

Product = Any


class Obvious:
    """The trunk over plain arrays of experts; shares the session's resident weights and its tables on disk."""

    def __init__(self, session: Session, *, stored: bool) -> None:
        self._session, survey = session, session.loaded.survey
        self._dtype = survey.dtype
        self.caches = [layer.new_cache() for layer in session.model.layers]
        self.tokens: list[int] = []
        self._experts: list[tuple[mx.array, mx.array]] = []
        for prefix in survey.shape.expert_prefixes():
            pair = []
            for name in ("gate_up_proj", "down_proj"):
                weight = mx.array(read_tensor(survey.entries[f"{prefix}.mlp.experts.{name}"])).view(mx.bfloat16)
                # As the engine lays out every other matrix of a CPU: products with few rows are twice as fast so.
                pair.append(weight if stored else mx.contiguous(weight.astype(self._dtype).swapaxes(1, 2)))
            mx.eval(pair)
            self._experts.append((pair[0], pair[1]))
        self._stored = stored

    def _product(self, x: mx.array, weights: mx.array, ids: mx.array) -> mx.array:
        chosen = mx.take(weights, ids, axis=0)
        return x @ (chosen.astype(self._dtype).swapaxes(1, 2) if self._stored else chosen)

    def step(self, token: int) -> mx.array:
        """Logits [V] behind one more token, not evaluated."""
        session = self._session
        rows = session.forward.ask_rows(self.tokens[-16:], [token])
        x = session.model.embed(as_ids([token]))
        for number, layer in enumerate(session.model.layers):
            pending = rows.pop(number, None)
            table = None if pending is None else mx.array(pending.get(session.meter)).astype(self._dtype)
            x, asked = layer.mix(x, self.caches[number], table)
            ids, (gate_up, down) = asked.ids[0], self._experts[number]
            both = self._product(mx.broadcast_to(asked.hidden[None], (len(ids), *asked.hidden.shape)), gate_up, ids)
            half = both.shape[-1] // 2
            made = self._product(silu(both[..., :half]) * both[..., half:], down, ids)
            x = layer.merge(x, asked, made.swapaxes(0, 1))
        self.tokens.append(token)
        return session.model.head(x)[0]


def timed(model: Session | Obvious, token: int) -> tuple[int, float]:
    """(greedy token behind `token`, seconds of the step)."""
    begun = time.perf_counter()
    logits = model.step(token)
    mx.async_eval(logits, arrays_of(model.caches))
    return int(np.array(mx.argmax(logits))), time.perf_counter() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--stored", action="store_true")
    args = parser.parse_args()
    session = Session.open(EngineConfig(model=args.model, expert_cache="100 %", mtp="off", context=4096))
    index = session.loaded.survey.index
    tokenizer = Tokenizer.load(index.folder, index.config, index.generation_config)
    prompt = tokenizer.encode(prompt_for(load_workload("code"), args.model, args.prompt_tokens))[: args.prompt_tokens]
    ways: dict[str, Session | Obvious] = {"engine": session, "obvious": Obvious(session, stored=args.stored)}
    last: dict[str, int] = {}
    for way, model in ways.items():
        for token in prompt:
            last[way], _ = timed(model, token)
    before = session.stats().experts
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    texts: dict[str, list[int]] = {way: [] for way in ways}
    for turn in range(args.tokens):
        for way in ways if turn % 2 == 0 else reversed(ways):
            last[way], took = timed(ways[way], last[way])
            seconds[way].append(took)
            texts[way].append(last[way])
    syncs = session.stats().experts.syncs - before.syncs
    session.close()
    ratios = sorted(b / a for a, b in zip(seconds["engine"], seconds["obvious"]))
    for way, times in seconds.items():
        console.print(f"{way}: {median(times) * 1e3:.2f} ms a token (median of {len(times)})")
    low, high = ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]
    return verdict([
        Target(
            "tokens a second, engine / obvious forward", f"{median(ratios):.3f} (80 % within {low:.3f} - {high:.3f})",
            ">= 0.95", median(ratios) >= 0.95,
        ),
        Target("router read-backs", str(syncs), "0", syncs == 0),
        Target("equal texts", str(texts["engine"] == texts["obvious"]), "True", texts["engine"] == texts["obvious"]),
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
