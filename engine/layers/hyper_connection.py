"""Hyper-connections: the residual is a stack of streams; a block reads a gated mix and is injected into each stream."""

from __future__ import annotations

import mlx.core as mx

from .linear import Take, linear
from .norm import centred, group_rms_norm

__all__ = ["HyperConnection", "inject"]


class HyperConnection:
    """Mix of `streams` streams of width H into one block input, and the weights for putting the output back.

    A mixer without injection (the last one of the trunk and of the draft layer) has no `block_inject_weight`.
    """

    def __init__(self, take: Take, streams: int, eps: float, *, injects: bool = True) -> None:
        scale = centred(take("hc_norm.weight", mx.float32))
        self._scale = scale.reshape(streams, -1)
        self._down = linear(take("input_mix_weight_down.weight"))
        self._up = linear(take("input_mix_weight_up.weight"))
        self._inject = linear(take("block_inject_weight.weight")) if injects else None
        self._streams, self._eps = streams, eps

    def __call__(self, x: mx.array) -> tuple[mx.array, mx.array | None]:
        """x [T, streams * H] -> (mixed [T, H], injection weights [T, streams] or None)."""
        t, s = x.shape[0], self._streams
        normed = group_rms_norm(x.reshape(t, s, -1), self._scale, self._eps)
        flat = normed.reshape(t, -1)
        low = self._down(flat) / s
        gate = mx.sigmoid(self._up(low * mx.sigmoid(low))).reshape(normed.shape)
        mixed = (gate * normed).mean(axis=1)
        if self._inject is None:
            return mixed, None
        return mixed, 2 * mx.sigmoid(self._inject(flat) / s)


def inject(x: mx.array, block: mx.array, weights: mx.array) -> mx.array:
    """x [T, S * H] + block [T, H] put into each of the S streams with weights [T, S]."""
    return x + (block[:, None, :] * weights[:, :, None]).reshape(x.shape)
