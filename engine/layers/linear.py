"""How a layer gets its weights, and the product with one.

`Take` is what a layer's constructor is handed: it returns a tensor by its name below the layer's own prefix, converted
to the computing dtype (or the one asked for). Layers keep the checkpoint's names and shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx

from ..checkpoint.codes import Form
from .device import on_gpu, product_layout

__all__ = ["Linear", "Quantised", "Take", "gathered_product", "linear", "quantised_product", "under"]

Linear = Callable[[mx.array], mx.array]


class Take(Protocol):
    """Weights by name. Raises CheckpointError for a name that the checkpoint does not have.

    A matrix that a packed checkpoint stores rounded comes as Quantised; it goes straight into `linear`. Only large
    matrices that are used in products alone are stored so: everything else is an array.
    """

    def __call__(self, name: str, dtype: mx.Dtype | None = None) -> Any: ...


@dataclass(frozen=True, slots=True)
class Quantised:
    """A matrix [out, in] in one of MLX's storage forms."""

    weight: mx.array
    """uint32 [out, in * bits / 32]."""
    scales: mx.array
    biases: mx.array | None
    form: Form


def under(take: Take, prefix: str) -> Take:
    """The same weights, seen from below `prefix`."""

    def below(name: str, dtype: mx.Dtype | None = None) -> Any:
        return take(prefix + name, dtype)

    return below


def linear(weight: mx.array | Quantised) -> Linear:
    """x [..., in] -> x @ weight.T [..., out], for weight [out, in]."""
    if isinstance(weight, Quantised):
        w = weight
        return lambda x: quantised_product(x, w.weight, w.scales, w.biases, w.form)
    transposed = product_layout(weight)

    def product(x: mx.array) -> mx.array:
        return x @ transposed

    return product


def quantised_product(x: mx.array, weight: mx.array, scales: mx.array, biases: mx.array | None, form: Form) -> mx.array:
    """x [..., in] times the transpose of a matrix in a storage form -> [..., out], in x's dtype."""
    # CPU kernels accumulate in the activations' dtype: in BF16 that costs several percent.
    wide = x if on_gpu() else x.astype(mx.float32)
    if biases is not None:
        scales, biases = scales.astype(wide.dtype), biases.astype(wide.dtype)
    product = mx.quantized_matmul(
        wide, weight, scales, biases, transpose=True, group_size=form.group, bits=form.bits, mode=form.kind
    )
    return product.astype(x.dtype)


def gathered_product(
    x: mx.array, weights: mx.array, scales: mx.array, biases: mx.array | None, places: mx.array, form: Form
) -> mx.array:
    """x [n, 1, in] times the transposes of the matrices at `places` of stacks [count, out, ...] -> [n, 1, out]."""
    wide = x if on_gpu() else x.astype(mx.float32)
    if biases is not None and scales.dtype != wide.dtype:
        # Converting a whole stack would cost more than moving the few matrices that are asked for.
        weights, scales, biases = (mx.take(stack, places, axis=0) for stack in (weights, scales, biases))
        scales, biases = scales.astype(wide.dtype), biases.astype(wide.dtype)
        places = mx.arange(places.shape[0])
    product = mx.gather_qmm(
        wide, weights, scales, biases, rhs_indices=places, transpose=True, group_size=form.group, bits=form.bits,
        mode=form.kind,
    )  # fmt: skip
    return product.astype(x.dtype)
