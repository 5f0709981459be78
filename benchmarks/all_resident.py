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

from qwen_chat_mlx.engine.bench.bench import ratio_of
from qwen_chat_mlx.engine.bench.workloads import load_workload, prompt_for
from qwen_chat_mlx.engine.cache.base import arrays_of
from qwen_chat_mlx.engine.config import EngineConfig
from qwen_chat_mlx.engine.layers.moe import silu
from qwen_chat_mlx.engine.models.contract import as_ids
from qwen_chat_mlx.engine.session import Session
from qwen_chat_mlx.engine.tokenizer import Tokenizer


class Obvious:
    """The trunk over plain arrays of experts; shares the session's resident weights and its tables on disk."""

    def __init__(self, session: Session, *, stored: bool) -> None:
        self._session, self._dtype = session, session.loaded.survey.dtype
        self.caches = [layer.new_cache() for layer in session.model.layers]
        self.tokens: list[int] = []
        store = session.loaded.store
        assert store.whole(), "every expert has a slot"
        self._math: Any = store._shelf._computes
        self._stored = stored
        self._experts: list[dict[str, mx.array]] = []
        for number, (block, slots) in enumerate(store._slot_map or ()):
            held = {role: mx.take(stack, slots, axis=0) for role, stack in store._shelf._block(block).items()}
            if not stored:
                # As the engine lays out every other matrix of a CPU: products with few rows are twice as fast so.
                held = {
                    role: mx.contiguous(self._matrices(m, role, number, mx.arange(len(slots))))
                    for role, m in held.items()
                }
            mx.eval(list(held.values()))
            self._experts.append(held)

    def _matrices(self, codes: mx.array, role: str, layer: int, ids: mx.array) -> mx.array:
        """Stored codes [n, out, in] of the experts `ids` as [n, in, out] in the computing dtype."""
        return self._math._matrix(codes, role, layer, ids).swapaxes(1, 2)

    def _product(self, x: mx.array, role: str, layer: int, ids: mx.array) -> mx.array:
        chosen = mx.take(self._experts[layer][role], ids, axis=0)
        return x @ (self._matrices(chosen, role, layer, ids) if self._stored else chosen)

    def _expert_outputs(self, x: mx.array, layer: int, ids: mx.array) -> mx.array:
        """x [k, 1, H] -> [k, 1, H]: row i through the expert ids[i]."""
        if "gate_up" in self._experts[layer]:
            both = self._product(x, "gate_up", layer, ids)
            gate, up = mx.split(both, 2, axis=-1)
        else:
            gate, up = self._product(x, "gate", layer, ids), self._product(x, "up", layer, ids)
        return self._product(silu(gate) * up, "down", layer, ids)

    def step(self, token: int) -> mx.array:
        """Logits [V] behind one more token, not evaluated."""
        session = self._session
        rows = session.forward.ask_rows(self.tokens[-16:], [token])
        x = session.model.embed(as_ids([token]))
        for number, layer in enumerate(session.model.layers):
            pending = rows.pop(number, None)
            table = None if pending is None else mx.array(pending.get(session.meter)).astype(self._dtype)
            x, asked = layer.mix(x, self.caches[number], table)
            ids = asked.ids[0]
            made = self._expert_outputs(
                mx.broadcast_to(asked.hidden[None], (len(ids), *asked.hidden.shape)), number, ids
            )
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
    parser.add_argument("--tokens", type=int, default=400)
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
    ratios = [b / a for a, b in zip(seconds["engine"], seconds["obvious"])]
    for way, times in seconds.items():
        console.print(f"{way}: {median(times) * 1e3:.2f} ms a token (median of {len(times)})")
    found = ratio_of(ratios)
    return verdict([
        Target(
            "tokens a second, engine / obvious forward", f"{found.median:.3f} (95 % interval {found.low:.3f} - {found.high:.3f})",
            ">= 0.95", found.median >= 0.95,
        ),
        Target("router read-backs", str(syncs), "0", syncs == 0),
        Target("equal texts", str(texts["engine"] == texts["obvious"]), "True", texts["engine"] == texts["obvious"]),
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
