"""RMS norms. Qwen stores them zero-centred (apply 1 + w) except the one behind the gated delta rule (apply w)."""

from __future__ import annotations

import mlx.core as mx

__all__ = ["centred", "group_rms_norm", "rms_norm"]


def centred(weight: mx.array) -> mx.array:
    """The factor [d] float32 that a stored zero-centred norm weight stands for."""
    return weight.astype(mx.float32) + 1.0


def rms_norm(x: mx.array, scale: mx.array, eps: float) -> mx.array:
    """x [..., d] over its last axis, times scale [d] float32; computed in float32, returned in x's dtype."""
    return mx.fast.rms_norm(x.astype(mx.float32), scale, eps).astype(x.dtype)


def group_rms_norm(x: mx.array, scale: mx.array, eps: float) -> mx.array:
    """x [..., g, d] normalised over d alone, times scale [g, d] float32; returned in x's dtype and shape."""
    return (mx.fast.rms_norm(x.astype(mx.float32), None, eps) * scale).astype(x.dtype)
