"""Per-layer n-gram embeddings (PLE): hashed bigrams and trigrams, gated per stream and passed through a convolution."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .basics import RMSNorm, causal_conv, joint_linear, linear

_MASK = (1 << 64) - 1


def _split_mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return (value ^ (value >> 31)) & _MASK


def hash_multipliers(vocab_size: int, ngram_size: int, seed: int) -> torch.Tensor:
    """The odd multipliers of the first (and only) PLE layer, as the published model derives them."""
    bound = max(1, ((1 << 63) - 1) // max(vocab_size, 1) // 2)
    steps = [(seed + 0x9E3779B97F4A7C15 * (i + 1)) & _MASK for i in range(ngram_size)]
    return torch.tensor([2 * (_split_mix(s) % bound) + 1 for s in steps])


def primes_from(start: int, count: int) -> list[int]:
    found, candidate = [], start
    while len(found) < count:
        candidate += 1
        if candidate > 1 and all(candidate % d for d in range(2, math.isqrt(candidate) + 1)):
            found.append(candidate)
    return found


class NGramEmbedding(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        sizes = primes_from(config.ngram_vocab_base - 1, config.ngram_heads)
        self.register_buffer(
            "layer_multipliers", hash_multipliers(config.vocab_size, config.ngram_size, config.ngram_seed)
        )
        self.register_buffer("ngram_heads_vocab_sizes", torch.tensor(sizes))
        self.register_buffer("ngram_heads_offsets", torch.tensor([sum(sizes[:i]) for i in range(len(sizes))]))
        multiple = config.ngram_vocab_multiple
        rows = math.ceil(sum(sizes) / multiple) * multiple
        self.ngram_embedding = nn.Embedding(rows, config.ple_size // config.ngram_heads)
        nn.init.normal_(self.ngram_embedding.weight, std=0.02)

    @torch.no_grad()
    def row_ids(self, ids):
        """ids [B,T] -> [B,T,heads]. A position before the cut token, or before the text, counts as the cut token."""
        c = self.config
        batch, length = ids.shape
        history = torch.cat([ids.new_full((batch, c.ngram_size - 1), c.cut_token), ids], 1)
        position = torch.arange(history.shape[1])
        last_cut = torch.where(history == c.cut_token, position, -1).cummax(1).values
        since = position - (torch.cat([last_cut.new_full((batch, 1), -1), last_cut[:, :-1]], 1) + 1)
        shifted = [history]
        for back in range(1, c.ngram_size):
            earlier = history.gather(1, (position - back).clamp_min(0).expand(batch, -1))
            shifted.append(torch.where((since >= back) & (position >= back), earlier, c.cut_token))
        rows, mixed = [], shifted[0] * self.layer_multipliers[0]
        for order in range(2, c.ngram_size + 1):
            mixed = mixed ^ (shifted[order - 1] * self.layer_multipliers[order - 1])
            heads = slice((order - 2) * c.heads_per_ngram, (order - 1) * c.heads_per_ngram)
            rows.append(
                torch.remainder(mixed[..., None], self.ngram_heads_vocab_sizes[heads]) + self.ngram_heads_offsets[heads]
            )
        return torch.cat(rows, -1)[:, -length:]

    def forward(self, ids):
        return F.embedding(self.row_ids(ids), self.ngram_embedding.weight).flatten(-2)


class PerLayerEmbedding(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.streams, self.size, self.dilation = config.streams, config.hidden_size, config.ngram_size
        wide = self.streams * self.size
        self.ple_embedding = NGramEmbedding(config)
        self.key_proj, self.value_proj = linear(config.ple_size, wide), linear(config.ple_size, self.size)
        self.norm_key = RMSNorm(wide, config.eps, group=self.size)
        self.norm_query = RMSNorm(wide, config.eps, group=self.size)
        self.norm_conv = RMSNorm(wide, config.eps, group=self.size)
        self.conv1d = nn.Conv1d(wide, wide, config.ple_conv, groups=wide, bias=False)
        nn.init.zeros_(self.conv1d.weight)

    def gated(self, wide, rows):
        """Per stream, how well the n-gram fits what the stream holds decides how much of it is added."""
        key, value = joint_linear(rows, self.key_proj.weight, self.value_proj.weight)
        key = self.norm_key(key).unflatten(-1, (self.streams, self.size))
        query = self.norm_query(wide).unflatten(-1, (self.streams, self.size))
        fit = (key * query).sum(-1, keepdim=True) / math.sqrt(self.size)
        fit = fit.abs().clamp_min(1e-6).sqrt() * fit.sign()
        return (torch.sigmoid(fit) * value.unsqueeze(-2)).flatten(-2)

    def forward(self, wide, rows):
        added = self.gated(wide, rows)
        return wide + added + causal_conv(self.norm_conv(added), self.conv1d.weight, self.dilation)

    def step(self, wide, rows, cache: dict):
        added = self.gated(wide, rows)
        normed = self.norm_conv(added)
        reach = (self.conv1d.weight.shape[-1] - 1) * self.dilation
        if not cache:
            cache["inputs"] = normed.new_zeros(normed.shape[0], reach, normed.shape[-1])
        window = torch.cat([cache["inputs"], normed[:, None]], 1)
        cache["inputs"] = window[:, 1:]
        taps = window[:, :: self.dilation]
        return wide + added + F.silu(torch.einsum("btc,ct->bc", taps, self.conv1d.weight[:, 0]))
