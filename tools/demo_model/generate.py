"""Greedy decoding of many prompts at once, one token per step for all of them, prompts included."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from bpe import END_OF_TEXT, IM_END
from network import DemoModel

STOPS = (IM_END, END_OF_TEXT)


@torch.no_grad()
def generate(
    model: DemoModel, prompts: Sequence[Sequence[int]], new_tokens: int, stops: Sequence[int] = STOPS
) -> list[list[int]]:
    """-> what each prompt was continued with, a stop id included. Every sequence stands at the same position."""
    caches = [{} for _ in model.model.layers]
    written: list[list[int]] = [[] for _ in prompts]
    open_, position = set(range(len(prompts))), 0
    history = torch.tensor([[p[0]] for p in prompts])
    while open_:
        hidden, _ = model.step(history, caches)
        best = (hidden @ model.lm_head.weight.t()).argmax(-1).tolist()
        position += 1
        following = []
        for row, prompt in enumerate(prompts):
            if position < len(prompt):
                following.append(prompt[position])
                continue
            following.append(best[row])
            if row in open_:
                written[row].append(best[row])
                if best[row] in stops or len(written[row]) >= new_tokens:
                    open_.discard(row)
        history = torch.cat([history, torch.tensor(following)[:, None]], 1)
    return written


def answer_all(model, tokenizer, prompts: Sequence[str], new_tokens: int, batch: int = 64) -> list[str]:
    """Texts in, replies out (thought and its end mark included), in the order given.

    Prompts of like length share a batch.
    """
    ids = [tokenizer.encode(p).ids for p in prompts]
    order = sorted(range(len(prompts)), key=lambda i: len(ids[i]))
    replies = [""] * len(prompts)
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        for i, out in zip(chosen, generate(model, [ids[i] for i in chosen], new_tokens), strict=True):
            replies[i] = tokenizer.decode([t for t in out if t not in STOPS], skip_special_tokens=False)
    return replies
