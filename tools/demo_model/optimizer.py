"""Muon for the matrices, Adam for the rest. Rates are fixed here; the schedule only scales them."""

from __future__ import annotations

import torch
from network.kernels import c_function

MATRIX_RATE = 0.015
NEVER_MUON = ("embed", "lm_head", "conv1d", "mlp.gate.weight", "shared_expert_gate", "block_inject")
ADAM_RATES = (
    ("ngram_embedding", 1e-2), ("embed_tokens", 1.5e-2), ("lm_head", 3e-3), ("gate.weight", 2e-3), ("block_inject", 2e-3),
)  # fmt: skip
OTHER_RATE = 4e-3
MOMENTUM = 0.95
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
SMALL_SIDE = 64
"""Batches of matrices with this many rows or columns are stepped in C: `orthogonal` in one pass over memory."""
_muon_step = c_function("muon.c", "muon_step", 4, 3, 3)


def orthogonal(gradient: torch.Tensor) -> torch.Tensor:
    """Five Newton-Schulz steps in Gram space: every step is a polynomial of G = X X^T, so X is multiplied only once.

    With A = Q G Q^T the step X <- (a + b A + c A^2) X becomes Q <- P Q on the small side of the matrix.
    """
    tall = gradient.shape[-2] > gradient.shape[-1]
    x = gradient.transpose(-1, -2) if tall else gradient
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = NEWTON_SCHULZ
    gram = x @ x.transpose(-1, -2)
    identity = torch.eye(x.shape[-2])
    product = identity
    for step in range(5):
        polynomial = a * identity + b * gram + c * (gram @ gram)
        product = polynomial if step == 0 else polynomial @ product
        if step < 4:
            gram = polynomial @ gram @ polynomial
    x = product @ x
    return x.transpose(-1, -2) if tall else x


def adam_rate(name: str) -> float:
    return next((rate for part, rate in ADAM_RATES if part in name), OTHER_RATE)


class Optimizer:
    """Steps all trained parameters of a model and clears their gradients. The indexer is trained elsewhere."""

    def __init__(self, model):
        self.parameters = {n: p for n, p in model.named_parameters() if "indexer" not in n}
        self.matrices = [n for n, p in self.parameters.items() if p.ndim >= 2 and not any(x in n for x in NEVER_MUON)]
        self.others = [n for n in self.parameters if n not in set(self.matrices)]
        self.steps = 0
        self.first = {n: torch.zeros_like(p) for n, p in self.parameters.items()}
        self.second = {n: torch.zeros_like(self.parameters[n]) for n in self.others}

    def state_dict(self) -> dict:
        return {"steps": self.steps, "first": self.first, "second": self.second}

    def load_state_dict(self, state: dict) -> None:
        self.steps = state["steps"]
        for mine, loaded in ((self.first, state["first"]), (self.second, state["second"])):
            for name, value in mine.items():
                value.copy_(loaded[name])

    @torch.no_grad()
    def step(self, scale: float) -> None:
        self.steps += 1
        for name in self.matrices:
            if self.parameters[name].grad is not None:
                self._muon(name, self.parameters[name], scale)
        for name in self.others:
            if self.parameters[name].grad is not None:
                self._adam(name, self.parameters[name], scale)

    def _muon(self, name: str, p: torch.Tensor, scale: float) -> None:
        first, rate, keep = self.first[name], MATRIX_RATE * scale, 1 - 0.002 * scale
        if "gate_up_proj" in name:
            # Gate and up are two matrices stored as one.
            shape = (p.shape[0] * 2, p.shape[1] // 2, p.shape[2])
        else:
            shape = p.shape
            rate *= max(1.0, p.shape[-2] / p.shape[-1]) ** 0.5
        if len(shape) == 3 and SMALL_SIDE in shape[1:] and max(shape[1:]) <= 1024:
            tall = shape[1] > shape[2]
            coefficients = torch.tensor(NEWTON_SCHULZ)
            _muon_step(
                first, p.grad.contiguous(), p, coefficients, shape[0], max(shape[1:]), int(tall), MOMENTUM, keep, rate
            )
        else:
            update = p.grad.add_(first.mul_(MOMENTUM).add_(p.grad), alpha=MOMENTUM)
            p.mul_(keep).add_(orthogonal(update.view(shape)).reshape(p.shape), alpha=-rate)
        p.grad = None

    def _adam(self, name: str, p: torch.Tensor, scale: float) -> None:
        first, second = self.first[name], self.second[name]
        first.lerp_(p.grad, 0.1)
        second.mul_(0.97).addcmul_(p.grad, p.grad, value=0.03)
        corrected = (second / (1 - 0.97**self.steps)).sqrt_().add_(1e-8)
        p.addcdiv_(first / (1 - 0.9**self.steps), corrected, value=-adam_rate(name) * scale)
        p.grad = None
