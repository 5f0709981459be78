"""Gated DeltaNet: a linear recurrence with a delta-rule update, in its chunked form and one token at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .basics import GatedNorm, causal_conv, joint_linear, linear
from .kernels import delta_scan, unit_lower_inverse

CHUNK = 64


def unit(x):
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6)


def chunked_delta_rule(query, key, value, decay, beta):
    """query, key [B,T,Hk,Dk], value [B,T,H,Dv], log decay and beta [B,T,H] -> [B,T,H,Dv]; T divides by CHUNK.

    Inside a chunk the rank-one updates are solved at once by a triangular inverse; between chunks a state is carried.
    """
    batch, length, key_heads, key_dim = query.shape
    heads, value_dim = value.shape[2:]
    repeat, chunks = heads // key_heads, length // CHUNK

    def split(x):
        return x.view(batch, chunks, CHUNK, -1, x.shape[-1]).permute(0, 3, 1, 2, 4)

    query, key, value = split(unit(query) * key_dim**-0.5), split(unit(key)), split(value)
    total = decay.view(batch, chunks, CHUNK, heads).permute(0, 3, 1, 2).cumsum(-1)
    beta = beta.view(batch, chunks, CHUNK, heads).permute(0, 3, 1, 2)
    index = torch.arange(CHUNK)
    below, upto = index[:, None] > index[None, :], index[:, None] >= index[None, :]
    within = torch.exp((total[..., :, None] - total[..., None, :]).masked_fill(~upto, -1e4))
    key_key = (key @ key.transpose(-1, -2)).repeat_interleave(repeat, 1)
    query_key = (query @ key.transpose(-1, -2)).repeat_interleave(repeat, 1)
    solve = unit_lower_inverse((key_key * within * beta[..., None]).masked_fill(~below, 0.0))
    key, query = key.repeat_interleave(repeat, 1), query.repeat_interleave(repeat, 1)
    grown = total.exp()
    update = solve @ (value * beta[..., None])
    erase = solve @ (key * (beta * grown)[..., None])
    attend = query_key * within
    query = query * grown[..., None]
    key = key * (total[..., -1:] - total).exp()[..., None]
    fresh, read, _ = delta_scan(update, erase, query, key, grown[..., -1])
    out = read + attend @ fresh
    return out.permute(0, 2, 3, 1, 4).reshape(batch, length, heads, value_dim)


class DeltaNet(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.key_size = config.delta_key_heads * config.delta_key_dim
        self.value_size = config.delta_value_heads * config.delta_value_dim
        hidden, mixed = config.hidden_size, 2 * self.key_size + self.value_size
        self.conv1d = nn.Conv1d(mixed, mixed, config.delta_conv, groups=mixed, bias=False)
        nn.init.normal_(self.conv1d.weight, std=0.3)
        self.dt_bias = nn.Parameter(torch.ones(config.delta_value_heads))
        self.A_log = nn.Parameter(torch.empty(config.delta_value_heads).uniform_(0.01, 2.0).log())
        self.norm = GatedNorm(config.delta_value_dim, config.eps)
        self.in_proj_qkv = linear(hidden, mixed)
        self.in_proj_z = linear(hidden, self.value_size)
        self.in_proj_b = linear(hidden, config.delta_value_heads)
        self.in_proj_a = linear(hidden, config.delta_value_heads)
        self.out_proj = linear(self.value_size, hidden, 0.3 / self.value_size**0.5)

    def _project(self, x):
        """-> the inputs of the convolution, the output gate, the log decay, the strength of the update."""
        mixed, gate, beta, decay = joint_linear(
            x, self.in_proj_qkv.weight, self.in_proj_z.weight, self.in_proj_b.weight, self.in_proj_a.weight
        )
        return mixed, gate, -self.A_log.exp() * F.softplus(decay + self.dt_bias), beta.sigmoid()

    def _heads(self, mixed):
        """The convolved projections [..., C] -> query, key [..., Hk, Dk] and value [..., H, Dv]."""
        c = self.config
        q, k, v = mixed.split([self.key_size, self.key_size, self.value_size], -1)
        return (
            q.unflatten(-1, (c.delta_key_heads, c.delta_key_dim)),
            k.unflatten(-1, (c.delta_key_heads, c.delta_key_dim)),
            v.unflatten(-1, (c.delta_value_heads, c.delta_value_dim)),
        )

    def _finish(self, out, gate):
        return self.out_proj(self.norm(out, gate.unflatten(-1, (-1, self.config.delta_value_dim))).flatten(-2))

    def forward(self, x):
        mixed, gate, decay, beta = self._project(x)
        q, k, v = self._heads(causal_conv(mixed, self.conv1d.weight))
        return self._finish(chunked_delta_rule(q, k, v, decay, beta), gate)

    def step(self, x, cache: dict):
        """One token: x [B,H]. The cache holds the last convolution inputs and the recurrent state."""
        c = self.config
        mixed, gate, decay, beta = self._project(x)
        if not cache:
            cache["inputs"] = mixed.new_zeros(x.shape[0], c.delta_conv - 1, mixed.shape[-1])
            cache["state"] = mixed.new_zeros(x.shape[0], c.delta_value_heads, c.delta_key_dim, c.delta_value_dim)
        window = torch.cat([cache["inputs"], mixed[:, None]], 1)
        cache["inputs"] = window[:, 1:]
        q, k, v = self._heads(F.silu(torch.einsum("btc,ct->bc", window, self.conv1d.weight[:, 0])))
        repeat = c.delta_value_heads // c.delta_key_heads
        q = (unit(q) * c.delta_key_dim**-0.5).repeat_interleave(repeat, 1)
        k = unit(k).repeat_interleave(repeat, 1)
        state = cache["state"] * decay.exp()[..., None, None]
        error = (v - torch.einsum("bhk,bhkv->bhv", k, state)) * beta[..., None]
        cache["state"] = state + torch.einsum("bhk,bhv->bhkv", k, error)
        return self._finish(torch.einsum("bhk,bhkv->bhv", q, cache["state"]), gate)
