"""How much can experts that a prompt leaves in the slots save? `python benchmarks/handover.py --model FOLDER`.

Replays what passages of text route to: a prompt, then 32 tokens one by one. For every budget the misses of these 32 are
counted from empty slots, from what the engine hands over, and from the best set that somebody who knows the 32 tokens
could hand over; with the engine's own policy, and with Belady's rule, below which nothing goes. One slot that is filled
beforehand saves one miss at most. Counts only: nothing here depends on the machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np
from measuring import console
from rich.table import Table

from qwen_chat_mlx.engine.bench.workloads import Workload, cut, load_workload
from qwen_chat_mlx.engine.config import EngineConfig
from qwen_chat_mlx.engine.offload.hindsight import most_hits
from qwen_chat_mlx.engine.offload.policy import SlotTable
from qwen_chat_mlx.engine.session import Session
from qwen_chat_mlx.engine.tokenizer import Tokenizer

SHARES = (0.25, 0.375, 0.5, 0.625, 0.75)
WANTED = 0.6
HOT = 1024
"""Rows at a prompt's end that the engine's policy learns from."""


def forwards(routes: np.ndarray, experts: int) -> list[list[int]]:
    """routes [layers, T, k] -> layer * experts + expert asked for by each forward of a layer, in order."""
    layers, tokens, _ = routes.shape
    return [
        sorted({layer * experts + int(e) for e in routes[layer, t]}) for t in range(tokens) for layer in range(layers)
    ]


def best_set(asked: Sequence[Sequence[int]], slots: int) -> set[int]:
    """The residents from which Belady's rule misses least: who comes up soonest."""
    return set(list(dict.fromkeys(key for keys in asked for key in keys))[:slots])


def table_behind(prompt: np.ndarray, experts: int, slots: int, policy: str) -> SlotTable:
    """An empty table whose policy has seen the prompt."""
    table = SlotTable(slots, prompt.shape[0], experts, policy)
    for layer, rows in enumerate(prompt):
        table.prime(layer, rows)
    return table


def misses(table: SlotTable, asked: Sequence[Sequence[int]]) -> int:
    """Of the policy, from what the table holds."""
    found = 0
    for keys in asked:
        layer, wanted = keys[0] // table.experts, [k % table.experts for k in keys]
        absent = table.lookup(layer, wanted).misses
        found += len(absent)
        table.claim_all(layer, absent, wanted)
    return found


def starts(prompt: np.ndarray, asked: list[list[int]], experts: int, slots: int, policy: str) -> dict[str, int]:
    """Misses by name of where they start from."""
    layers, lookups = prompt.shape[0], sum(map(len, asked))
    handed = SlotTable(slots, layers, experts, policy)
    for layer, rows in enumerate(prompt):
        handed.prime(layer, rows)
        handed.hand_over(layer, -(-slots // layers))
    known = table_behind(prompt, experts, slots, policy)
    best = best_set(asked, slots)
    for layer in range(layers):
        known.claim_all(layer, [k % experts for k in sorted(best) if k // experts == layer])
    residents = handed.keys()
    return {
        "empty": misses(table_behind(prompt, experts, slots, policy), asked), "handed": misses(handed, asked),
        "best": misses(known, asked), "belady_empty": lookups - most_hits(asked, (), slots),
        "belady_handed": lookups - most_hits(asked, residents, slots),
        "belady_best": lookups - most_hits(asked, best, slots),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--policy", default="decay")
    parser.add_argument("--passages", type=int, default=3, help="of code, and as many of the novel")
    parser.add_argument("--prompt-tokens", type=int, default=1500)
    parser.add_argument("--tokens", type=int, default=32)
    args = parser.parse_args()
    session = Session.open(
        EngineConfig(model=args.model, expert_cache="100 %", mtp="off", context=args.prompt_tokens + 64)
    )
    index, experts = session.loaded.survey.index, session.loaded.survey.shape.experts
    codec = Tokenizer.load(index.folder, index.config, index.generation_config)
    found: dict[float, list[dict[str, int]]] = {share: [] for share in SHARES}
    for name in ("code", "novel"):
        text = load_workload(name).text
        for n in range(args.passages):
            part = Workload(name, text[len(text) * n // args.passages :])
            routes = session.routes(codec.encode(cut(codec, part, args.prompt_tokens + args.tokens)))
            prompt, asked = routes[:, -args.tokens - HOT : -args.tokens], forwards(routes[:, -args.tokens :], experts)
            for share in SHARES:
                slots = int(share * routes.shape[0] * experts)
                found[share].append(starts(prompt, asked, experts, slots, args.policy))
    session.close()
    table = Table(title=f"misses of {args.tokens} tokens, sum of {2 * args.passages} passages, policy {args.policy}")
    heads = ("slots", "empty", "handed over", "best set", "Belady, empty", "Belady, handed over", "Belady, best set",
             "handed over / empty", "best set / empty", "Belady, best set / empty")  # fmt: skip
    for head in heads:
        table.add_column(head, justify="right")
    for share, rows in found.items():
        total = {k: sum(r[k] for r in rows) for k in rows[0]}
        ratios = [total[k] / total["empty"] for k in ("handed", "best", "belady_best")]
        table.add_row(f"{share:.1%}", *(f"{n:,}" for n in total.values()), *(f"{r:.2f}" for r in ratios))
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
