"""Train the draft layer alone on the frozen trunk, to foresee what the trunk will say instead of how the text goes on.

    python distil_draft.py DATA RUN OUT --minutes 60      writes OUT/checkpoint.pt, whose trunk is RUN's to the bit

The trunk trains mostly on chat, and one micro-batch in three or four reaches the draft layer, so it has seen little code
and prose. Here every step does, and the target is the trunk's whole distribution. Indexers are trained afterwards.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from batches import MICRO_TOKENS, Documents, shape
from network import DemoModel, NetworkConfig
from optimizer import Optimizer

MIX = {"own": 0.35, "code": 0.25, "prose": 0.2, "chat": 0.2}
"""Shares of the texts; `own` is what the trunk itself writes (own_text.py)."""
STEP_WEIGHTS = (1.0, 0.5)
"""Of the first draft and the self-fed second."""
WARM_UP_STEPS, BALANCE_WEIGHT, SEED = 20, 0.01, 0


class Texts:
    """Batch n depends on the seed and on n alone."""

    def __init__(self, data: Path):
        self.documents = {name: Documents.load(data, name, "train") for name in MIX}

    def _row(self, r: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
        documents = self.documents[str(r.choice(list(MIX), p=list(MIX.values())))]
        return documents.drawn(r, length)

    def batch(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """-> ids [B,T], and whether each token is one that the model is to say."""
        rows, length = shape(number)
        r = np.random.default_rng((SEED, number))
        ids, learned = zip(*(self._row(r, length) for _ in range(rows)), strict=True)
        return torch.from_numpy(np.stack(ids)), torch.from_numpy(np.stack(learned))


def losses(model: DemoModel, ids: torch.Tensor, learned: torch.Tensor):
    """-> cross entropy of each draft step against the trunk, agreement of the best tokens, balance loss.

    The pair of position i drafts token i + 2, which the trunk chooses at position i + 1; the next step one further.
    """
    hidden, wide, *_ = model.trunk(ids)
    wanted = F.linear(hidden, model.lm_head.weight)
    pairs = ids.shape[1] - len(STEP_WEIGHTS) - 1
    wide, before, found, agreed, balance = wide[:, :pairs], None, [], [], 0.0
    for step in range(len(STEP_WEIGHTS)):
        here = slice(step + 1, step + 1 + pairs)
        drafted, wide, part, before = model.draft(wide, ids[:, here], step, before)
        balance = balance + (part if step == 0 else 0.0)
        kept = learned[:, step + 2 : step + 2 + pairs]
        logits, target = F.linear(drafted[kept], model.lm_head.weight), wanted[:, here][kept]
        found.append(F.cross_entropy(logits, torch.softmax(target, -1)))
        agreed.append((logits.argmax(-1) == target.argmax(-1)).float().mean().item())
    return found, agreed, balance


def distil(model: DemoModel, texts: Texts, minutes: float, rate: float) -> dict[str, float]:
    """The rate falls to zero over so many minutes. -> tokens seen and the last figures."""
    model.requires_grad_(False)
    for name, p in model.mtp.named_parameters():
        p.requires_grad_("indexer" not in name)
    optimizer, number, began, smooth = Optimizer(model.mtp), 0, time.monotonic(), {}
    while (left := 1 - (time.monotonic() - began) / (60 * minutes)) > 0:
        found, agreed, balance = losses(model, *texts.batch(number))
        total = sum(weight * loss for weight, loss in zip(STEP_WEIGHTS, found, strict=True))
        (total + BALANCE_WEIGHT * balance).backward()
        optimizer.step(rate * left * min(1.0, (number + 1) / WARM_UP_STEPS))
        number += 1
        now = {"loss": found[0].item(), "agreed": agreed[0], "second": agreed[1], "balance": float(balance.detach())}
        smooth = {name: 0.95 * smooth.get(name, value) + 0.05 * value for name, value in now.items()}
        if number % 20 == 0:
            rounded = {name: round(value, 4) for name, value in smooth.items()}
            print(json.dumps({"batch": number, **rounded, "seconds": round(time.monotonic() - began)}), flush=True)
    return {"draft_tokens": number * MICRO_TOKENS, **smooth}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=0.4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    state = torch.load(args.run / "checkpoint.pt", weights_only=True)
    model = DemoModel(NetworkConfig(**state["config"]))
    model.load_state_dict(state["model"])
    model.compile_blocks()
    args.out.mkdir(parents=True, exist_ok=True)
    shutil.copy(args.run / "log.jsonl", args.out)
    found = distil(model, Texts(args.data), args.minutes, args.rate)
    torch.save({"config": state["config"], "model": model.state_dict()}, args.out / "checkpoint.pt")
    with open(args.out / "log.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"tokens": state["progress"]["tokens"], **found}) + "\n")


if __name__ == "__main__":
    main()
