"""Whether rows computed at once have the bits of rows computed alone: asked of the device, not assumed.

Strict checking must give the bits of one-token steps. Where a matrix product's bits do not depend on how many rows it
has (true of the CPU's BLAS, not promised by any GPU), rows may share products. Each kind of layer, the head and the
products of an expert are run both ways at load, with the shapes and dtypes of the model; one differing bit forbids it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import mlx.core as mx

from ..cache.base import LayerCache
from ..models.contract import Layer, Model

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
    left = sorted(counts)
    rows = left[-1] if left else 0
    for layer in _one_of_each_kind(model.layers):
        x, table = (_random((_WARM_ROWS + rows, width), dtype, seed) for seed, width in enumerate((wide, table_width)))
        left = _exact_in_layer(layer, x, table, left)
    for out, width in expert_shapes:
        weight, x = _random((out, width), dtype, 2), _random((rows, width), dtype, 3)
        left = _exact(lambda x, w=weight: x @ w.T, x, left)
        # A step's experts are one product over a stack of matrices.
        stacked = (x[:, None] @ mx.repeat(weight[None], rows, axis=0).swapaxes(1, 2))[:, 0] if rows else x
        left = [n for n in left if _equal(x[:n] @ weight.T, [stacked[:n]])]
    return frozenset(_exact(model.head, _random((rows, wide), dtype, 4), left))


def _one_of_each_kind(layers: Sequence[Layer]) -> list[Layer]:
    """The first layer of every kind of cache: layers of one kind have equal shapes."""
    kinds: dict[str, Layer] = {}
    for layer in layers:
        kinds.setdefault(type(layer.new_cache()).__name__, layer)
    return list(kinds.values())


def _random(shape: Sequence[int], dtype: mx.Dtype, seed: int) -> mx.array:
    return mx.random.normal(tuple(shape), key=mx.random.key(seed)).astype(dtype)


def _exact(compute: Callable[[mx.array], mx.array], x: mx.array, counts: Sequence[int]) -> list[int]:
    """The counts n, of rising ones, for which the first n rows of x give at once what each gives alone."""
    alone: list[mx.array] = []
    for i in range(counts[-1] if counts else 0):
        alone.append(compute(x[i : i + 1]))
        mx.eval(alone[-1])
    return [n for n in counts if _equal(compute(x[:n]), alone[:n])]


def _exact_in_layer(layer: Layer, x: mx.array, rows: mx.array, counts: Sequence[int]) -> list[int]:
    """The same of a layer up to its experts: what it gives out, and what its cache holds behind the rows."""

    def mix(cache: LayerCache, first: int, last: int) -> tuple[list[mx.array], list[mx.array]]:
        """(rows given out, what the cache holds then), evaluated."""
        y, asked = layer.mix(x[first:last], cache, rows[first:last], apart=last - first > 1)
        made = [y, asked.hidden, asked.ids, asked.weights, asked.shared, asked.inject]
        # Rows that are appended later show in a growing buffer itself, not in an array made of it now.
        held = [mx.contiguous(a) for a in cache.arrays()]
        mx.eval(made, held)
        return made, held

    if not counts:
        return []
    single, together = layer.new_cache(), layer.new_cache()
    for i in range(_WARM_ROWS):
        mix(single, i, i + 1)
        mix(together, i, i + 1)
    warm = together.save()
    alone = [mix(single, _WARM_ROWS + i, _WARM_ROWS + i + 1) for i in range(counts[-1])]
    equal: list[int] = []
    # Rising: what an earlier count left behind its rows in a growing buffer is written over by the next.
    for n in counts:
        together.restore(warm)
        made, held = mix(together, _WARM_ROWS, _WARM_ROWS + n)
        if all(_equal(a, [row[0][k] for row in alone[:n]]) for k, a in enumerate(made)) and all(
            _equal(a, [b]) for a, b in zip(held, alone[n - 1][1])
        ):
            equal.append(n)
    return equal


def _equal(together: mx.array, alone: Sequence[mx.array]) -> bool:
    same: Any = mx.array_equal(together, mx.concatenate(list(alone), axis=0)).item()
    return bool(same)
