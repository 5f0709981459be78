"""PLE: hashed n-gram rows, gated per stream and smoothed by a dilated causal convolution, added to the residual.

The hash runs on the host in int64 with wrap-around; its constants are rebuilt from the config and compared with the
checkpoint's own copies, because a wrong seed gives fluent, worse text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ..cache.recurrent import History
from .linear import Take, linear
from .norm import centred, group_rms_norm

__all__ = ["NgramEmbedding", "NgramHash"]

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_SEED_STEP = 10007


def _splitmix64(value: int) -> int:
    """One step of SplitMix64 (Steele, Lea and Flood, 2014)."""
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))


def _primes_from(base: int, skip: int, count: int) -> list[int]:
    """`count` primes from `base` on, the first `skip` left out."""
    found: list[int] = []
    n = base
    while len(found) < skip + count:
        if _is_prime(n):
            found.append(n)
        n += 1
    return found[skip:]


@dataclass(frozen=True, slots=True)
class NgramHash:
    """Constants of one PLE layer's hash, and the hash."""

    multipliers: tuple[int, ...]
    """One odd factor a token of the n-gram."""
    sizes: tuple[int, ...]
    """Rows of each head: consecutive primes."""
    offsets: tuple[int, ...]
    """First row of each head."""
    heads_per_ngram: int
    cut_token: int
    """The n-gram does not look past this token."""

    @classmethod
    def build(
        cls, *, vocab: int, ngram: int, heads: int, base: int, layer: int, seed: int, cut_token: int
    ) -> NgramHash:
        """The constants as the published model computes them; `layer` counts PLE layers from 0."""
        half = max(1, ((1 << 63) - 1) // max(vocab, 1) // 2)
        start = seed + _SEED_STEP * layer
        multipliers = tuple(2 * (_splitmix64((start + _GAMMA * (i + 1)) & _MASK) % half) + 1 for i in range(ngram))
        total = (ngram - 1) * heads
        sizes = _primes_from(base, layer * total, total)
        offsets = [sum(sizes[:i]) for i in range(total)]
        return cls(multipliers, tuple(sizes), tuple(offsets), heads, cut_token)

    @property
    def context(self) -> int:
        """Tokens before a token that its rows depend on."""
        return len(self.multipliers) - 1

    def rows(self, before: Sequence[int], ids: Sequence[int]) -> np.ndarray:
        """Row numbers [T, heads] int64 of `ids`, with `before` the tokens in front of them (the last few count)."""
        n = self.context
        pad = [self.cut_token] * max(0, n - len(before))
        history = np.array([*pad, *before[len(before) - min(n, len(before)) :], *ids], dtype=np.int64)
        t = len(ids)
        shifted = [history[n:]]
        blocked = np.zeros(t, dtype=bool)
        for back in range(1, n + 1):
            earlier = history[n - back : n - back + t]
            blocked = blocked | (earlier == self.cut_token)
            shifted.append(np.where(blocked, self.cut_token, earlier))
        columns = []
        with np.errstate(over="ignore"):
            mixed = shifted[0] * np.int64(self.multipliers[0])
            for back in range(1, n + 1):
                mixed = mixed ^ (shifted[back] * np.int64(self.multipliers[back]))
                first = (back - 1) * self.heads_per_ngram
                for head in range(first, first + self.heads_per_ngram):
                    columns.append(np.mod(mixed, self.sizes[head]) + self.offsets[head])
        return np.stack(columns, axis=1)


class NgramEmbedding:
    """What PLE does with the rows once they are there."""

    def __init__(self, take: Take, *, streams: int, hidden: int, kernel: int, dilation: int, eps: float) -> None:
        self._key, self._value = linear(take("key_proj.weight")), linear(take("value_proj.weight"))
        shape = (streams, hidden)
        self._norm_key = centred(take("norm_key.weight", mx.float32)).reshape(shape)
        self._norm_query = centred(take("norm_query.weight", mx.float32)).reshape(shape)
        self._norm_conv = centred(take("norm_conv.weight", mx.float32)).reshape(shape)
        conv = take("conv1d.weight")
        self._conv = [conv[:, 0, i] for i in range(kernel)]
        self._dtype = conv.dtype
        self._streams, self._hidden, self._dilation, self._eps = streams, hidden, dilation, eps

    def new_cache(self) -> History:
        return History((len(self._conv) - 1) * self._dilation, self._streams * self._hidden, self._dtype)

    def __call__(self, x: mx.array, rows: mx.array, cache: History) -> mx.array:
        """Residual x [T, S * H] and embeddings rows [T, E] -> what is added to x, [T, S * H]."""
        t = x.shape[0]
        key = group_rms_norm(self._key(rows).reshape(t, self._streams, -1), self._norm_key, self._eps)
        query = group_rms_norm(x.reshape(t, self._streams, -1), self._norm_query, self._eps)
        gate = (key * query).sum(axis=-1, keepdims=True) / math.sqrt(self._hidden)
        gate = mx.sqrt(mx.maximum(mx.abs(gate), 1e-6)) * mx.sign(gate)
        value = mx.sigmoid(gate) * self._value(rows)[:, None, :]
        joined = cache.extend(group_rms_norm(value, self._norm_conv, self._eps).reshape(t, -1))
        mixed = joined[:t] * self._conv[0]
        for i in range(1, len(self._conv)):
            mixed = mixed + joined[i * self._dilation : i * self._dilation + t] * self._conv[i]
        return value.reshape(t, -1) + mixed * mx.sigmoid(mixed)
