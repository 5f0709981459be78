"""Train the QSA indexer on the frozen model: its block scores learn to follow the dense attention they will replace.

    python indexer.py DATA RUN --steps 150      writes RUN/indexer.pt

The trunk never sees the indexer while it trains (attention is dense), so this is the last step before an export.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from batches import DOMAINS, Documents
from checkpoints import load_checkpoint
from network.attention import Attention

LENGTH, RATE, SEED = 1024, 3e-3, 0


def complete_blocks(length: int, ratio: int) -> torch.Tensor:
    """[T]: how many blocks have ended at or before each query."""
    return (torch.arange(length) + 1) // ratio


class SparseMasks:
    """Attention masks of a QSA budget: the best complete blocks (of equal scores the earlier) plus the open tail."""

    def __init__(self, budget: int):
        self.budget = budget

    def __call__(self, attention: Attention, x, rope):
        ratio, length = attention.config.index_ratio, x.shape[1]
        done = complete_blocks(length, ratio)
        scores = attention.indexer.scores(x, rope)
        future = torch.arange(scores.shape[-1])[None] >= done[:, None]
        order = scores.masked_fill(future, -1.0).sort(dim=-1, descending=True, stable=True).indices
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order[..., : self.budget // ratio], True)
        chosen = chosen.repeat_interleave(ratio, -1)
        chosen = torch.nn.functional.pad(chosen, (0, length - chosen.shape[-1]))
        positions = torch.arange(length)
        causal = positions[:, None] >= positions[None]
        tail = positions[None] >= (done * ratio)[:, None]
        return (causal & (chosen | tail))[:, None]


class Collector:
    """Takes each attention layer's input and how much of its dense attention falls on every complete block."""

    def __init__(self) -> None:
        self.seen: list[tuple[Attention, torch.Tensor, tuple, torch.Tensor]] = []

    def __call__(self, attention: Attention, x, rope):
        ratio, length = attention.config.index_ratio, x.shape[1]
        query, key, _, _ = attention.project(x, rope)
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        logits = (query @ key.transpose(-1, -2) / attention.config.head_dim**0.5).masked_fill(~causal, -torch.inf)
        chance = torch.softmax(logits, -1).mean(1)
        blocks = chance[..., : length // ratio * ratio].unflatten(-1, (-1, ratio)).sum(-1)
        ended = torch.arange(blocks.shape[-1])[None] < complete_blocks(length, ratio)[:, None]
        self.seen.append((attention, x, rope, blocks * ended))


def divergence(attention: Attention, x, rope, wanted) -> torch.Tensor:
    """KL divergence of the indexer's softmax from the attention's shares, over queries that have a choice."""
    done = complete_blocks(x.shape[1], attention.config.index_ratio)
    scores = attention.indexer.scores(x, rope)
    scores = scores.masked_fill(torch.arange(scores.shape[-1])[None] >= done[:, None], -1e9)
    choice = done > 1
    wanted = wanted[:, choice]
    wanted = wanted / wanted.sum(-1, keepdim=True).clamp_min(1e-6)
    wanted_log = wanted.clamp_min(1e-9).log()
    return (wanted * (wanted_log - torch.log_softmax(scores[:, choice], -1))).sum(-1).mean()


def distil(model, data: Path, steps: int) -> None:
    model.requires_grad_(False)
    parameters = [p for name, p in model.named_parameters() if "indexer" in name]
    for p in parameters:
        p.requires_grad_(True)
    optimizer = torch.optim.Adam(parameters, lr=RATE)
    documents = {domain: Documents.load(data, domain, "train") for domain in DOMAINS}
    r, began, smooth = np.random.default_rng(SEED), time.monotonic(), None
    for step in range(steps):
        source = documents[DOMAINS[r.integers(len(DOMAINS))]]
        ids, _ = source.window(int(r.integers(len(source.ids) - LENGTH)), LENGTH)
        row, collector = torch.from_numpy(ids)[None], Collector()
        with torch.no_grad():
            _, wide, *_ = model.trunk(row, collector)
            model.draft(wide[:, :-1], row[:, 1:], masks=collector)
        loss = sum(divergence(*seen) for seen in collector.seen) / len(collector.seen)
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = RATE * max(0.05, 1 - step / steps)
        optimizer.step()
        smooth = loss.item() if smooth is None else 0.9 * smooth + 0.1 * loss.item()
        if step % 10 == 0:
            spent = time.monotonic() - began
            print(json.dumps({"step": step, "divergence": round(smooth, 4), "seconds": round(spent)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = load_checkpoint(args.run)
    distil(model, args.data, args.steps)
    torch.save({n: p.detach() for n, p in model.named_parameters() if "indexer" in n}, args.run / "indexer.pt")


if __name__ == "__main__":
    main()
