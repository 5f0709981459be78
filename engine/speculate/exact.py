"""Whether rows computed at once have the bits of rows computed alone: asked of the device, not assumed.

Strict checking must give the bits of one-token steps. Where a matrix product's bits do not depend on how many rows it
has (true of the CPU's BLAS, not promised by any GPU), rows may share products. Each kind of layer, the head and the
products of an expert are run both ways at load, with the shapes and dtypes of the model; one differing bit forbids it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import mlx.core as mx

from ..models.contract import ExpertInput, Layer, Model

__all__ = ["exact_rows"]

_WARM_ROWS = 5
"""Rows in the caches before the comparison, so that histories and states are not zero."""


def exact_rows(
    model: Model, counts: Iterable[int], *, wide: int, table_width: int, expert_shapes: Sequence[tuple[int, int]],
    dtype: mx.Dtype,
) -> frozenset[int]:  # fmt: skip
    """The numbers of rows among `counts` for which every comparison came out bit-equal.

    `expert_shapes` are (out, in) of an expert's matrices, `table_width` the width of table rows.
    """
    layers = _one_of_each_kind(model.layers)
    return frozenset(
        n
        for n in counts
        if all(_layer_is_exact(layer, n, wide, table_width, dtype) for layer in layers)
        and all(_product_is_exact(n, out, width, dtype) for out, width in expert_shapes)
        and _head_is_exact(model, n, wide, dtype)
    )


def _one_of_each_kind(layers: Sequence[Layer]) -> list[Layer]:
    """The first layer of every kind of cache: layers of one kind have equal shapes."""
    kinds: dict[str, Layer] = {}
    for layer in layers:
        kinds.setdefault(type(layer.new_cache()).__name__, layer)
    return list(kinds.values())


def _random(shape: Sequence[int], dtype: mx.Dtype, seed: int) -> mx.array:
    return mx.random.normal(tuple(shape), key=mx.random.key(seed)).astype(dtype)


def _layer_is_exact(layer: Layer, n: int, wide: int, table_width: int, dtype: mx.Dtype) -> bool:
    x = _random((_WARM_ROWS + n, wide), dtype, n)
    rows = _random((_WARM_ROWS + n, table_width), dtype, 100 + n)
    at_once, alone = layer.new_cache(), layer.new_cache()
    for i in range(_WARM_ROWS):
        for cache in (at_once, alone):
            layer.mix(x[i : i + 1], cache, rows[i : i + 1])
    one = layer.mix(x[_WARM_ROWS:], at_once, rows[_WARM_ROWS:], apart=True)
    many = [layer.mix(x[i : i + 1], alone, rows[i : i + 1]) for i in range(_WARM_ROWS, _WARM_ROWS + n)]
    return (
        _equal([one[0]], [m[0] for m in many])
        and all(_equal([a], [_fields(m[1])[k] for m in many]) for k, a in enumerate(_fields(one[1])))
        and all(_equal([a], [b]) for a, b in zip(at_once.arrays(), alone.arrays()))
    )


def _fields(asked: ExpertInput) -> list[mx.array]:
    return [asked.hidden, asked.ids, asked.weights, asked.shared, asked.inject]


def _product_is_exact(n: int, out: int, width: int, dtype: mx.Dtype) -> bool:
    x, w = _random((n, width), dtype, n), _random((out, width), dtype, 200 + n)
    return _equal([x @ w.T], [x[i : i + 1] @ w.T for i in range(n)])


def _head_is_exact(model: Model, n: int, wide: int, dtype: mx.Dtype) -> bool:
    x = _random((n, wide), dtype, 300 + n)
    return _equal([model.head(x)], [model.head(x[i : i + 1]) for i in range(n)])


def _equal(a: Sequence[mx.array], b: Sequence[mx.array]) -> bool:
    left, right = (mx.concatenate(list(arrays), axis=0) for arrays in (a, b))
    same: Any = mx.array_equal(left, right).item()
    return bool(same)
