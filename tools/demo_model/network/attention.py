"""Gated attention with rotary positions and the QSA indexer's parameters. Training is dense; a mask makes it sparse."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .basics import RMSNorm, joint_linear, linear, rotate


class Indexer(nn.Module):
    """Scores complete blocks of `index_ratio` tokens for a query; trained afterwards by distillation (`indexer.py`)."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.index_qk_proj = linear(config.hidden_size, (config.index_heads + 1) * config.index_dim)
        self.q_layernorm = RMSNorm(config.index_dim, config.eps)
        self.k_layernorm = RMSNorm(config.index_dim, config.eps)

    def queries(self, projected, rope):
        q = projected[..., : self.config.index_heads * self.config.index_dim]
        return rotate(self.q_layernorm(q.unflatten(-1, (-1, self.config.index_dim))), rope)

    def scores(self, x, rope):
        """x [B,T,H] -> [B,T,blocks]; blocks that end after the query are scored too and must be masked out."""
        ratio = self.config.index_ratio
        projected = self.index_qk_proj(x)
        blocks = x.shape[1] // ratio
        keys = projected[:, : blocks * ratio, self.config.index_heads * self.config.index_dim :]
        pooled = self.k_layernorm(keys.unflatten(1, (blocks, ratio)).mean(2))
        first = tuple(table[: blocks * ratio : ratio] for table in rope)
        pooled = rotate(pooled[:, :, None], first)[:, :, 0]
        dots = torch.einsum("bthd,bnd->bthn", self.queries(projected, rope), pooled)
        return torch.relu(dots).sum(2) / math.sqrt(self.config.index_dim)


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        hidden, size = config.hidden_size, config.head_dim
        self.q_proj = linear(hidden, config.num_heads * size * 2)
        self.k_proj = linear(hidden, config.num_kv_heads * size)
        self.v_proj = linear(hidden, config.num_kv_heads * size)
        self.o_proj = linear(config.num_heads * size, hidden, 0.3 / math.sqrt(config.num_heads * size))
        self.q_norm = RMSNorm(size, config.eps)
        self.k_norm = RMSNorm(size, config.eps)
        self.indexer = Indexer(config)

    def project(self, x, rope):
        """x [B,T,H] -> query [B,heads,T,d], key and value repeated to [B,heads,T,d], gate [B,T,heads*d]."""
        size = self.config.head_dim
        query, key, value = joint_linear(x, self.q_proj.weight, self.k_proj.weight, self.v_proj.weight)
        query, gate = query.unflatten(-1, (-1, 2 * size)).chunk(2, -1)
        query = rotate(self.q_norm(query), rope)
        key = rotate(self.k_norm(key.unflatten(-1, (-1, size))), rope)
        value = value.unflatten(-1, (-1, size))
        repeat = self.config.num_heads // self.config.num_kv_heads
        key, value = key.repeat_interleave(repeat, 2), value.repeat_interleave(repeat, 2)
        return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), gate.flatten(-2)

    def finish(self, mixed, gate):
        return self.o_proj(mixed.transpose(1, 2).flatten(-2) * torch.sigmoid(gate))

    def forward(self, x, rope, mask=None, before=None):
        """`mask` is boolean, True where attended (default causal). `before` = (key, value) of other rows put in front."""
        query, key, value, gate = self.project(x, rope)
        own = (key, value)
        if before is not None:
            key, value = torch.cat([before[0], key], 2), torch.cat([before[1], value], 2)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
        return self.finish(mixed, gate), own

    def step(self, x, rope, cache: dict):
        """One token, x [B,H], dense over everything before it."""
        query, key, value, gate = self.project(x[:, None], rope)
        if cache:
            key, value = torch.cat([cache["key"], key], 2), torch.cat([cache["value"], value], 2)
        cache["key"], cache["value"] = key, value
        return self.finish(F.scaled_dot_product_attention(query, key, value), gate)[:, 0]
