"""Checking drafts: one trunk forward over the anchor and its drafts, in place, and which of them stand.

Strict: every row runs with the shapes of a one-token step, layer by layer, so that its bits are those of plain decoding,
while experts are fetched once for all rows. Batched: rows share products; near-ties may come out the other way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from ..cache.base import LayerCache, arrays_of
from ..forward import Forward
from ..models.contract import Model
from ..sampling import Sampler
from .draft import Draft

__all__ = ["Verdict", "accept", "verify"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the trunk said of a round's drafts."""

    accepted: int
    token: int
    """The trunk's own token behind the accepted drafts: a correction, or a bonus when all stand."""


def verify(
    forward: Forward, model: Model, caches: Sequence[LayerCache], before: Sequence[int], ids: Sequence[int],
    *, strict: bool,
) -> tuple[mx.array, list[mx.array]]:  # fmt: skip
    """ids (anchor, drafts) behind the caches -> (residual [T, W], logits [V] of every row), being computed.

    The caller has opened a span on every cache.
    """
    wide = forward.token_major(caches, before, ids, apart=strict, together=not strict)
    if strict and len(ids) not in forward.exact_rows:
        logits = [model.head(wide[i : i + 1])[0] for i in range(len(ids))]
    else:
        together = model.head(wide)
        logits = [together[i] for i in range(len(ids))]
    # Index keys that no row has looked at yet are this pass's work: left pending, they would be done in the rewind.
    mx.async_eval(logits, arrays_of(caches))
    return wide, logits


def accept(
    sampler: Sampler, logits: Sequence[mx.array], drafts: Sequence[Draft], position: int, *, rejection: bool
) -> Verdict:
    """Which drafts stand. `position` is that of the first draft; row j's penalties see the drafts before it.

    Coupled: the trunk's token at a position is a function of its logits, the seed and the position; a draft stands iff
    it is that token, so the text is the one of plain decoding. Rejection: Leviathan et al., 2023, algorithm 1.
    """
    tokens = [d.token for d in drafts]
    weights = [sampler.filter(row, tokens[:j]) for j, row in enumerate(logits)]
    if rejection and not sampler.sampling.greedy:
        return _reject(sampler, weights, drafts, position)
    picked = mx.stack([sampler.pick(w, position + j) for j, w in enumerate(weights)])
    mx.eval(picked)
    own = [int(t) for t in picked.tolist()]  # pyright: ignore[reportGeneralTypeIssues]
    accepted = next((j for j, t in enumerate(tokens) if own[j] != t), len(tokens))
    return Verdict(accepted, sampler.checked(own[accepted]))


def _reject(sampler: Sampler, weights: Sequence[mx.array], drafts: Sequence[Draft], position: int) -> Verdict:
    for j, draft in enumerate(drafts):
        p, q = sampler.probabilities(weights[j]), sampler.probabilities(draft.weights)
        token = int(sampler.accept_rejection(p, q, draft.token, position + j))
        if token != draft.token:
            return Verdict(j, sampler.checked(token))
    last = len(drafts)
    return Verdict(last, sampler.checked(int(sampler.pick(weights[last], position + last))))
