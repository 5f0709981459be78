"""Mixture of experts without the experts: the router, the shared expert, the sum. Where experts come from is unknown here.

The output of (row, rank) lands in its own place and the places are summed once in rank order, so the result depends
neither on the order in which experts were computed nor on where they were.
"""

from __future__ import annotations

import mlx.core as mx

from .linear import Linear, Take, linear, under

__all__ = ["Router", "SharedExpert", "mlp", "weighted_sum"]


def silu(x: mx.array) -> mx.array:
    return x * mx.sigmoid(x)


def mlp(x: mx.array, gate: Linear, up: Linear, down: Linear) -> mx.array:
    """x [T, H] -> down(silu(gate x) * up x) [T, H]."""
    return down(silu(gate(x)) * up(x))


class Router:
    """Softmax over all experts, the top k, renormalised."""

    def __init__(self, take: Take, top_k: int, *, normalise: bool) -> None:
        self._gate = linear(take("gate.weight"))
        self._top_k, self._normalise = top_k, normalise

    def __call__(self, h: mx.array) -> tuple[mx.array, mx.array]:
        """h [T, H] -> (expert ids [T, k] int32 in rank order, weights [T, k]); the lower id first at equal weights."""
        logits = self._gate(h)
        p = mx.softmax(logits.astype(mx.float32), axis=-1)
        ids = mx.argsort(-p, axis=-1)[:, : self._top_k]
        weights = mx.take_along_axis(p, ids, axis=-1)
        if self._normalise:
            weights = weights / weights.sum(axis=-1, keepdims=True)
        return ids.astype(mx.int32), weights.astype(logits.dtype)

    def likeliest(self, h: mx.array, count: int) -> mx.array:
        """h [T, H] -> the `count` experts with the highest logits, int32 [T, count], the highest first."""
        return mx.argsort(-self._gate(h), axis=-1)[:, :count].astype(mx.int32)


class SharedExpert:
    """The expert that every token goes through, behind a sigmoid gate."""

    def __init__(self, take: Take) -> None:
        part = under(take, "shared_expert.")
        self._gate, self._up = linear(part("gate_proj.weight")), linear(part("up_proj.weight"))
        self._down = linear(part("down_proj.weight"))
        self._weight = linear(take("shared_expert_gate.weight"))

    def __call__(self, h: mx.array) -> mx.array:
        """h [T, H] -> [T, H]."""
        return mx.sigmoid(self._weight(h)) * mlp(h, self._gate, self._up, self._down)


def weighted_sum(outputs: mx.array, weights: mx.array, shared: mx.array) -> mx.array:
    """Expert outputs [T, k, H] in rank order, weights [T, k], shared [T, H] -> [T, H], added one rank after another."""
    # One addition after another on pieces of one product: the order is fixed on every device, with few operations.
    total, *others = mx.split(outputs * weights[..., None], outputs.shape[1], axis=1)
    for weighted in others:
        total = total + weighted
    return total.squeeze(1) + shared
