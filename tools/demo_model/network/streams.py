"""Hyper-connections: the residual is four streams; a block reads a gated mix of them and is injected back into each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .basics import RMSNorm, linear


class HyperConnection(nn.Module):
    def __init__(self, config, inject: bool = True):
        super().__init__()
        self.streams, self.size = config.streams, config.hidden_size
        wide = self.streams * self.size
        self.hc_norm = RMSNorm(wide, config.eps, group=self.size)
        self.input_mix_weight_down = linear(wide, config.stream_rank)
        self.input_mix_weight_up = linear(config.stream_rank, wide)
        self.block_inject_weight = linear(wide, self.streams) if inject else None

    def forward(self, wide):
        """wide [..., streams*H] -> the block's input [..., H] and, if injecting, the gate of each stream."""
        normed = self.hc_norm(wide)
        low = F.silu(self.input_mix_weight_down(normed) / self.streams)
        mix = torch.sigmoid(self.input_mix_weight_up(low))
        read = (mix * normed).unflatten(-1, (self.streams, self.size)).mean(-2)
        if self.block_inject_weight is None:
            return read
        return read, 2 * torch.sigmoid(self.block_inject_weight(normed) / self.streams)


def inject(wide, output, gates):
    return wide + (output.unsqueeze(-2) * gates.unsqueeze(-1)).flatten(-2)
