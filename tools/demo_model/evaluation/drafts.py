"""How often the draft layer agrees with the trunk: teacher-forced on held-out text, and in simulated greedy decoding."""

from __future__ import annotations

from pathlib import Path

import torch
from batches import DOMAINS, Documents
from bpe import IM_START
from generate import generate
from network.delta import CHUNK

DEPTHS = 3


def padded(ids: list[int]) -> torch.Tensor:
    """One row, lengthened to whole chunks; what comes after cannot change what is before."""
    return torch.tensor([ids + [0] * (-len(ids) % CHUNK)])


def _best(model, hidden):
    return (hidden @ model.lm_head.weight.t()).argmax(-1)


@torch.no_grad()
def teacher_forced(model, data: Path, rows: int, length: int) -> dict[str, list[float]]:
    """Share of learned positions where the draft at each depth, fed the true tokens, is the trunk's own choice."""
    result = {}
    for domain in DOMAINS:
        agreed, counted = [0.0] * DEPTHS, [0.0] * DEPTHS
        for ids, learned in Documents.load(data, domain, "held").rows(length, rows):
            row, counts = torch.from_numpy(ids)[None], torch.from_numpy(learned)
            hidden, wide, *_ = model.trunk(row)
            own_choice = _best(model, hidden)[0]
            before, pairs = None, length - DEPTHS - 1
            wide = wide[:, :pairs]
            for depth in range(DEPTHS):
                hidden, wide, _, before = model.draft(wide, row[:, depth + 1 : depth + 1 + pairs], depth, before)
                here = slice(depth + 1, depth + 1 + pairs)
                kept = counts[depth + 2 : depth + 2 + pairs]
                agreed[depth] += ((_best(model, hidden)[0] == own_choice[here]) & kept).sum().item()
                counted[depth] += kept.sum().item()
        result[domain] = [round(a / c, 3) for a, c in zip(agreed, counted, strict=True)]
    return result


@torch.no_grad()
def chains(model, ids: list[int]) -> list[list[int]]:
    """drafts[d][i]: the (d+1)-th token drafted after token i+1 is known, each chain fed with its own tokens."""
    row = padded(ids)
    _, wide, *_ = model.trunk(row)
    pairs = len(ids) - 1
    wide, following, before, found = wide[:, :pairs], row[:, 1 : len(ids)], None, []
    for depth in range(DEPTHS):
        hidden, wide, _, before = model.draft(wide, following, depth, before)
        following = _best(model, hidden)
        found.append(following[0].tolist())
    return found


def rounds(ids: list[int], start: int, drafts: list[list[int]], depth: int) -> tuple[int, list[list[int]]]:
    """Greedy speculative decoding of ids[start:]. -> number of rounds, [tried, accepted] of each depth."""
    newest, count, by_depth = start, 0, [[0, 0] for _ in range(depth)]
    while newest < len(ids) - 1:
        count, accepted = count + 1, 0
        for d in range(min(depth, len(ids) - 1 - newest)):
            by_depth[d][0] += 1
            if drafts[d][newest - 1] != ids[newest + 1 + d]:
                break
            by_depth[d][1] += 1
            accepted += 1
        newest += accepted + 1
    return count, by_depth


def prompts(data: Path, domain: str, count: int, length: int = 48) -> list[list[int]]:
    """Beginnings of held-out documents; a conversation is cut where its first reply begins."""
    documents = Documents.load(data, domain, "held")
    found = []
    for ids, learned in documents.rows(400, count):
        if domain == "chat":
            first = int(learned.argmax())
            found.append(ids[:first].tolist())
        else:
            found.append(ids[:length].tolist())
    return [p for p in found if p and (domain != "chat" or IM_START in p)]


@torch.no_grad()
def free_running(model, data: Path, count: int, new_tokens: int) -> dict[str, dict]:
    """Acceptance while the model writes: rounds of 1, 2 and 3 drafts over its own greedy text."""
    result = {}
    for domain in DOMAINS:
        starts = prompts(data, domain, count)
        texts = [p + out for p, out in zip(starts, generate(model, starts, new_tokens), strict=True)]
        drafted = [chains(model, text) for text in texts]
        result[domain] = {}
        for depth in range(1, DEPTHS + 1):
            total, tokens, by_depth = 0, 0, [[0, 0] for _ in range(depth)]
            for start, text, drafts in zip(starts, texts, drafted, strict=True):
                n, parts = rounds(text, len(start), drafts, depth)
                total, tokens = total + n, tokens + max(0, len(text) - len(start) - 1)
                for d, (tried, accepted) in enumerate(parts):
                    by_depth[d][0] += tried
                    by_depth[d][1] += accepted
            result[domain][f"{depth} drafts"] = {
                "tokens_per_round": round(tokens / max(1, total), 2),
                "accepted_by_depth": [round(a / max(1, t), 3) for t, a in by_depth],
            }
    return result
