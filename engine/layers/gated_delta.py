"""Gated DeltaNet: a causal convolution, a matrix state that every token decays and corrects, a gated norm.

Two forms of the same recurrence (Yang et al., "Gated Delta Networks", 2024, eq. 10), equal up to rounding: one token at
a time for few rows, and blocks of 64 with the UT transform for many. On a GPU both are mlx-lm's kernel, whose loop over
tokens makes T rows equal T single ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ..cache.recurrent import DeltaCache, DeltaRows, History
from .device import gated_delta_kernel
from .linear import Take, linear
from .norm import rms_norm

__all__ = ["GatedDelta", "advance", "chunked", "recurrent"]

RECURRENT_ROWS = 8
"""Up to this many rows go one token at a time; more go in chunks."""
CHUNK = 64


def recurrent(q: mx.array, rows: DeltaRows, state: mx.array) -> tuple[mx.array, mx.array]:
    """q [T, heads, key_dim] over `rows` -> (outputs [T, heads, value_dim], state [heads, value_dim, key_dim])."""
    if not q.shape[0]:
        return mx.zeros_like(rows.values), state
    kernel = gated_delta_kernel()
    if kernel is not None:
        out, after = kernel(
            q[None],
            rows.keys[None],
            rows.values[None],
            rows.decay[None],
            rows.beta[None],
            state[None],
            None,
        )
        return out[0], after[0]
    outputs = []
    for t in range(q.shape[0]):
        state = _update(state, rows.keys[t], rows.values[t], rows.decay[t], rows.beta[t])
        outputs.append((state * q[t][:, None, :]).sum(axis=-1))
    return mx.stack(outputs), state


def _update(state: mx.array, k: mx.array, v: mx.array, decay: mx.array, beta: mx.array) -> mx.array:
    """One token: S <- S * decay; S <- S + (beta * (v - S k)) k^T."""
    state = state * decay[:, None, None]
    k = k[:, None, :]
    correction = (v - (state * k).sum(axis=-1)) * beta[:, None]
    return state + correction[:, :, None] * k


def advance(states: Sequence[mx.array], rows: Sequence[DeltaRows], count: int) -> list[mx.array]:
    """States of several layers of equal shapes after the first `count` rows of each, by the operations of `recurrent`.

    The layers are copied together: what costs is the number of operations, not their size.
    """
    kernel = gated_delta_kernel()
    if kernel is not None:
        k, v, g, b = (mx.stack([a[:count] for a in arrays]) for arrays in _columns(rows))
        return list(kernel(k, k, v, g, b, mx.stack(list(states)), None)[1])
    state = mx.concatenate(list(states))
    k, v, decay, beta = (mx.concatenate(arrays, axis=1) for arrays in _columns(rows))
    for t in range(count):
        state = _update(state, k[t], v[t], decay[t], beta[t])
    return list(mx.split(state, len(states)))


def _columns(rows: Sequence[DeltaRows]) -> tuple[list[mx.array], ...]:
    """Keys, values, decays and betas of all layers."""
    return [r.keys for r in rows], [r.values for r in rows], [r.decay for r in rows], [r.beta for r in rows]


def chunked(q: mx.array, rows: DeltaRows, state: mx.array, size: int = CHUNK) -> tuple[mx.array, mx.array]:
    """The same as `recurrent`, in blocks of `size` rows."""
    t = q.shape[0]
    if not t:
        return mx.zeros_like(rows.values), state
    pad = -t % size

    def blocks(x: mx.array) -> mx.array:
        """[T, heads, ...] -> [heads, blocks, size, ...]; padding rows neither decay nor write."""
        x = mx.pad(x, [(0, pad)] + [(0, 0)] * (x.ndim - 1))
        x = x.reshape(-1, size, *x.shape[1:])
        return x.transpose(2, 0, 1, *range(3, x.ndim))

    q, k, v, beta = blocks(q), blocks(rows.keys), blocks(rows.values), blocks(rows.beta)
    total = mx.cumsum(blocks(rows.log_decay), axis=-1)
    lower = mx.tril(mx.ones((size, size), dtype=mx.bool_))
    between = mx.where(lower, total[..., :, None] - total[..., None, :], -mx.inf)
    between = mx.exp(between)
    k_beta, v_beta = k * beta[..., None], v * beta[..., None]
    kt = k.swapaxes(-1, -2)
    system = mx.tril((k_beta @ kt) * between, -1) + mx.eye(size)
    inverse = mx.linalg.tri_inv(system, stream=mx.cpu)
    values = inverse @ v_beta
    reads = inverse @ (k_beta * mx.exp(total)[..., None])
    inside = (q @ kt) * between
    q = q * mx.exp(total)[..., None]
    k = k * mx.exp(total[..., -1:] - total)[..., None]
    fade = mx.exp(total[..., -1])[..., None, None]
    state = state.swapaxes(-1, -2)
    outputs = []
    for i in range(q.shape[1]):
        new = values[:, i] - reads[:, i] @ state
        outputs.append(q[:, i] @ state + inside[:, i] @ new)
        state = state * fade[:, i] + k[:, i].swapaxes(-1, -2) @ new
    out = mx.stack(outputs, axis=1)
    out = out.transpose(1, 2, 0, 3).reshape(-1, out.shape[0], out.shape[-1])
    return out[:t], mx.contiguous(state.swapaxes(-1, -2))


def _unit(x: mx.array) -> mx.array:
    """x / sqrt(sum x^2 + 1e-6) over the last axis, float32."""
    x = x.astype(mx.float32)
    return x * mx.rsqrt((x * x).sum(axis=-1, keepdims=True) + 1e-6)


class GatedDelta:
    """One Gated DeltaNet mixer: [T, H] -> [T, H]."""

    def __init__(
        self, take: Take, *, key_heads: int, value_heads: int, key_dim: int, value_dim: int, kernel: int, gate: str,
        eps: float,
    ) -> None:  # fmt: skip
        self._in_qkv, self._in_z = linear(take("in_proj_qkv.weight")), linear(take("in_proj_z.weight"))
        self._in_a, self._in_b = linear(take("in_proj_a.weight")), linear(take("in_proj_b.weight"))
        self._out = linear(take("out_proj.weight"))
        conv = take("conv1d.weight")
        self._conv = [conv[:, 0, i] for i in range(kernel)]
        self._rate = -mx.exp(take("A_log", mx.float32))
        self._dt_bias = take("dt_bias", mx.float32)
        self._norm = take("norm.weight", mx.float32)
        self._dtype = conv.dtype
        self._key_heads, self._value_heads, self._key_dim, self._value_dim = key_heads, value_heads, key_dim, value_dim
        self._silu_gate, self._eps = gate == "silu", eps

    def new_cache(self) -> DeltaCache:
        """The state before the first token."""
        width = 2 * self._key_heads * self._key_dim + self._value_heads * self._value_dim
        state = mx.zeros((self._value_heads, self._value_dim, self._key_dim), dtype=mx.float32)
        return DeltaCache(History(len(self._conv) - 1, width, self._dtype), state, advance)

    def __call__(self, h: mx.array, cache: DeltaCache) -> mx.array:
        """h [T, H] -> [T, H]; the cache moves on by T rows."""
        t = h.shape[0]
        joined = cache.history.extend(self._in_qkv(h))
        mixed = joined[:t] * self._conv[0]
        for i in range(1, len(self._conv)):
            mixed = mixed + joined[i : i + t] * self._conv[i]
        mixed = mixed * mx.sigmoid(mixed)
        width, heads = 2 * self._key_heads * self._key_dim, self._value_heads
        qk = _unit(mixed[:, :width].reshape(t, -1, self._key_dim))
        qk = mx.repeat(qk, heads // self._key_heads, axis=1)
        q, k = qk[:, :heads], qk[:, heads:]
        v = mixed[:, width:].reshape(t, -1, self._value_dim).astype(mx.float32)
        a = self._in_a(h).astype(mx.float32) + self._dt_bias
        log_decay = self._rate * mx.logaddexp(a, mx.zeros_like(a))
        rows = DeltaRows(k, v, log_decay, mx.sigmoid(self._in_b(h).astype(mx.float32)), mx.exp(log_decay))
        form = recurrent if t <= RECURRENT_ROWS or gated_delta_kernel() is not None else chunked
        out, state = form(q * self._key_dim**-0.5, rows, cache.state)
        cache.append(state, rows)
        return self._out(self._gated(out.astype(h.dtype), self._in_z(h)))

    def _gated(self, out: mx.array, z: mx.array) -> mx.array:
        """Norm of each head [T, heads, value_dim] times the gate, as [T, heads * value_dim]."""
        normed = rms_norm(out, self._norm, self._eps).astype(mx.float32)
        z = z.reshape(out.shape).astype(mx.float32)
        gate = z * mx.sigmoid(z) if self._silu_gate else mx.sigmoid(z)
        return (normed * gate).astype(out.dtype).reshape(out.shape[0], -1)
