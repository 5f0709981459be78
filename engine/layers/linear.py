"""How a layer gets its weights, and the product with one.

`Take` is what a layer's constructor is handed: it returns a tensor by its name below the layer's own prefix, converted
to the computing dtype (or the one asked for). Layers keep the checkpoint's names and shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import mlx.core as mx

from .device import product_layout

__all__ = ["Linear", "Take", "linear", "under"]

Linear = Callable[[mx.array], mx.array]


class Take(Protocol):
    """Weights by name. Raises CheckpointError for a name that the checkpoint does not have."""

    def __call__(self, name: str, dtype: mx.Dtype | None = None) -> mx.array: ...


def under(take: Take, prefix: str) -> Take:
    """The same weights, seen from below `prefix`."""

    def below(name: str, dtype: mx.Dtype | None = None) -> mx.array:
        return take(prefix + name, dtype)

    return below


def linear(weight: mx.array) -> Linear:
    """x [..., in] -> x @ weight.T [..., out], for weight [out, in]."""
    transposed = product_layout(weight)

    def product(x: mx.array) -> mx.array:
        return x @ transposed

    return product
