"""How well a cache of part of the experts would serve: hit rates of an LRU per layer while replies are written."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import torch
from batches import DOMAINS
from generate import generate

from evaluation.drafts import padded, prompts

SHARES = (0.25, 0.37, 0.5)


class Cache:
    """Least recently used experts of one layer."""

    def __init__(self, size: int):
        self.size, self.held = size, OrderedDict()

    def touch(self, expert: int) -> bool:
        hit = expert in self.held
        self.held[expert] = None
        self.held.move_to_end(expert)
        if len(self.held) > self.size:
            self.held.popitem(last=False)
        return hit


@torch.no_grad()
def hit_rates(model, data: Path, count: int, new_tokens: int) -> dict[str, dict]:
    """Prompts warm the caches, replies are counted; the caches live on from one conversation to the next."""
    experts, layers = model.config.num_experts, model.config.num_layers
    result = {}
    for domain in DOMAINS:
        starts = prompts(data, domain, count)
        texts = [p + out for p, out in zip(starts, generate(model, starts, new_tokens), strict=True)]
        caches = {share: [Cache(round(experts * share)) for _ in range(layers)] for share in SHARES}
        hits, asked, used = dict.fromkeys(SHARES, 0), 0, []
        for start, text in zip(starts, texts, strict=True):
            *_, routes = model.trunk(padded(text))
            for layer, chosen in enumerate(routes):
                tokens = chosen[: len(text)].tolist()
                used.append(len({e for token in tokens[len(start) :] for e in token}))
                for position, token in enumerate(tokens):
                    counted = position >= len(start)
                    asked += len(token) if counted else 0
                    for share in SHARES:
                        for expert in token:
                            hits[share] += caches[share][layer].touch(expert) and counted
        result[domain] = {
            "hit_rate": {f"{share:.0%}": round(hits[share] / asked, 3) for share in SHARES},
            "experts_per_layer_and_reply": round(sum(used) / len(used), 1),
        }
    return result
