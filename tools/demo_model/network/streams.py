"""Hyper-connections: the residual is four streams; a block reads a gated mix of them and is injected back into each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .basics import RMSNorm, joint_linear, linear
from .fused import RANK, SIZE, STREAMS, connection_read


class HyperConnection(nn.Module):
    def __init__(self, config, inject: bool = True):
        super().__init__()
        self.streams, self.size = config.streams, config.hidden_size
        self.fits = (self.streams, self.size, config.stream_rank) == (STREAMS, SIZE, RANK)
        wide = self.streams * self.size
        self.hc_norm = RMSNorm(wide, config.eps, group=self.size)
        self.input_mix_weight_down = linear(wide, config.stream_rank)
        self.input_mix_weight_up = linear(config.stream_rank, wide)
        self.block_inject_weight = linear(wide, self.streams) if inject else None

    def forward(self, wide):
        """wide [..., streams*H] -> the block's input [..., H] and, if injecting, the gate of each stream."""
        if self.fits and torch.is_grad_enabled():
            return self._fused(wide)
        normed = self.hc_norm(wide)
        if self.block_inject_weight is None:
            return self._read(normed, self.input_mix_weight_down(normed))
        low, gates = joint_linear(normed, self.input_mix_weight_down.weight, self.block_inject_weight.weight)
        return self._read(normed, low), 2 * torch.sigmoid(gates / self.streams)

    def _fused(self, wide):
        """The same as `forward` writes out, in one pass; while training."""
        down, inject = self.input_mix_weight_down.weight, self.block_inject_weight
        joint = down if inject is None else torch.cat([down, inject.weight])
        read, low, _ = connection_read(
            wide.flatten(0, -2), self.hc_norm.weight, joint, self.input_mix_weight_up.weight, self.hc_norm.eps
        )
        read = read.view(*wide.shape[:-1], self.size)
        if inject is None:
            return read
        gates = low[:, down.shape[0] : joint.shape[0]].reshape(*wide.shape[:-1], self.streams)
        return read, 2 * torch.sigmoid(gates / self.streams)

    def _read(self, normed, low):
        mix = torch.sigmoid(self.input_mix_weight_up(F.silu(low / self.streams)))
        return (mix * normed).unflatten(-1, (self.streams, self.size)).mean(-2)


def inject(wide, output, gates):
    return wide + (output.unsqueeze(-2) * gates.unsqueeze(-1)).flatten(-2)
