"""Cross entropy against a large output matrix: only targets with weight are computed, gradients come with the loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F

ROWS = 512


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, targets, weights):
        """The gradient of a sum of cross entropies is softmax - onehot, so it is built beside the loss, in row chunks."""
        hidden_grad, weight_grad = torch.empty_like(hidden), torch.zeros_like(weight)
        total = hidden.new_zeros(())
        for start in range(0, hidden.shape[0], ROWS):
            part = slice(start, start + ROWS)
            logits = hidden[part] @ weight.t()
            scale = torch.logsumexp(logits, -1, keepdim=True)
            total += ((scale[:, 0] - logits.gather(-1, targets[part, None])[:, 0]) * weights[part]).sum()
            chance = logits.sub_(scale).exp_().mul_(weights[part, None])
            chance.scatter_add_(-1, targets[part, None], -weights[part, None])
            torch.mm(chance, weight, out=hidden_grad[part])
            weight_grad.addmm_(chance.t(), hidden[part])
        ctx.save_for_backward(hidden_grad, weight_grad)
        return total

    @staticmethod
    def backward(ctx, grad):
        hidden_grad, weight_grad = ctx.saved_tensors
        return hidden_grad * grad, weight_grad * grad, None, None


def weighted_cross_entropy(hidden, weight, targets, weights):
    """hidden [B,T,H], weight [V,H], targets and weights [B,T] -> weighted sum of the losses."""
    flat, counted = targets.reshape(-1), weights.reshape(-1)
    rows = hidden.reshape(-1, hidden.shape[-1])
    if torch.is_grad_enabled():
        kept = counted.nonzero()[:, 0]
        return _HeadLoss.apply(rows[kept], weight, flat[kept], counted[kept])
    losses = [
        F.cross_entropy(rows[i : i + ROWS] @ weight.t(), flat[i : i + ROWS], reduction="none")
        for i in range(0, rows.shape[0], ROWS)
    ]
    return (torch.cat(losses) * counted).sum()
