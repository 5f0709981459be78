"""Small parts that every block uses: linear layers, the zero-centred RMS norm, rotary positions, causal convolution."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


def linear(inputs: int, outputs: int, std: float | None = None) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=std or 0.6 / math.sqrt(inputs))
    return layer


def joint_linear(x, *weights):
    """x times several matrices that read the same input, as one product: x is read once, narrow products cost nothing."""
    return F.linear(x, torch.cat(weights)).split([w.shape[0] for w in weights], -1)


class RMSNorm(nn.Module):
    """RMS norm with weight 1 + w, as published; with `group`, each run of `group` values is normalised on its own."""

    def __init__(self, size: int, eps: float, group: int | None = None):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.eps, self.group = eps, group

    def forward(self, x):
        grouped = x.unflatten(-1, (-1, self.group)) if self.group else x
        scaled = grouped * torch.rsqrt(grouped.pow(2).mean(-1, keepdim=True) + self.eps)
        return scaled.view(x.shape) * (1.0 + self.weight)


class GatedNorm(nn.Module):
    """The output norm of the delta rule: plain weight, sigmoid gate."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x, gate):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * torch.sigmoid(gate)


def causal_conv(x, weight, dilation: int = 1):
    """x [B,T,C], weight [C,1,K] -> silu of the causal depthwise convolution."""
    kernel, length = weight.shape[-1], x.shape[1]
    padded = F.pad(x, (0, 0, (kernel - 1) * dilation, 0))
    total = sum(padded[:, i * dilation : i * dilation + length] * weight[:, 0, i] for i in range(kernel))
    return F.silu(total)


def rotary_table(positions, config):
    """cos and sin [P, rotary_dim] of the given positions."""
    half = torch.arange(0, config.rotary_dim, 2).float() / config.rotary_dim
    angles = positions.float()[:, None] * (1.0 / config.rope_theta**half)
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def rotate(x, rope):
    """Rotary positions on the first rotary_dim values of x [B,T,heads,d]; rope = (cos, sin), each [T, rotary_dim]."""
    cos, sin = rope
    size = cos.shape[-1]
    turned, kept = x[..., :size], x[..., size:]
    cos, sin = cos[:, None], sin[:, None]
    crossed = torch.cat((-turned[..., size // 2 :], turned[..., : size // 2]), -1)
    return torch.cat((turned * cos + crossed * sin, kept), -1)
