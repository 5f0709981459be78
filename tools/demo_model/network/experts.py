"""Mixture of experts: a router picks a few small networks per token, and one shared network always runs."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .basics import joint_linear, linear
from .kernels import combine, grouped_linear, sort_by_expert, spread


class Router(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(config.num_experts, config.hidden_size) * 0.02)


class Experts(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, size, count = config.hidden_size, config.expert_size, config.num_experts
        self.gate_up_proj = nn.Parameter(torch.randn(count, 2 * size, hidden) * 0.6 / math.sqrt(hidden))
        self.down_proj = nn.Parameter(torch.randn(count, hidden, size) * 0.3 / math.sqrt(size))


class SharedExpert(nn.Module):
    def __init__(self, hidden: int, size: int):
        super().__init__()
        self.gate_proj, self.up_proj = linear(hidden, size), linear(hidden, size)
        self.down_proj = linear(size, hidden, 0.3 / math.sqrt(size))


class MoE(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.gate = Router(config)
        self.experts = Experts(config)
        self.shared_expert = SharedExpert(config.hidden_size, config.shared_expert_size)
        self.shared_expert_gate = linear(config.hidden_size, 1)

    def forward(self, x):
        """x [..., H] -> output, load-balance loss, chosen experts [N,k]."""
        c, rows = self.config, x.reshape(-1, x.shape[-1])
        shared = self.shared_expert
        logits, shared_gate, shared_up, opening = joint_linear(
            rows, self.gate.weight, shared.gate_proj.weight, shared.up_proj.weight, self.shared_expert_gate.weight
        )
        chance = F.softmax(logits, -1)
        weight, chosen = chance.topk(c.experts_per_token, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        order, inverse, counts = sort_by_expert(chosen, c.num_experts)
        gate, up = grouped_linear(
            spread(rows, order, inverse, c.experts_per_token), self.experts.gate_up_proj, counts
        ).chunk(2, -1)
        out = combine(grouped_linear(F.silu(gate) * up, self.experts.down_proj, counts), weight, inverse)
        out = out + torch.sigmoid(opening) * shared.down_proj(F.silu(shared_gate) * shared_up)
        share = (counts.float() / chosen.numel()).detach()
        return out.view(x.shape), c.num_experts * (chance.mean(0) * share).sum(), chosen
