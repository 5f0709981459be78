"""Held-out loss per learned token of each domain, dense or with a sparse attention budget."""

from __future__ import annotations

from pathlib import Path

import torch
from batches import DOMAINS, Documents
from network.head import weighted_cross_entropy


@torch.no_grad()
def losses(model, data: Path, rows: int, length: int, masks=None) -> dict[str, float]:
    result = {}
    for domain in DOMAINS:
        total = count = 0.0
        for ids, learned in Documents.load(data, domain, "held").rows(length + 1, rows):
            row = torch.from_numpy(ids)[None]
            weights = torch.from_numpy(learned).float()[None, 1:]
            hidden, *_ = model.trunk(row[:, :-1], masks)
            total += weighted_cross_entropy(hidden, model.lm_head.weight, row[:, 1:], weights).item()
            count += weights.sum().item()
        result[domain] = round(total / count, 4)
    return result
