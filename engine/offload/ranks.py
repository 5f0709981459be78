"""Who leaves first among the residents of all layers, kept cheap where the values of one layer at a time change.

Between two turns of a layer its values stand still, so only the first of each layer have to be compared, and a layer
is searched again only when its first has left or its values or residents have changed.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np

__all__ = ["LayerRanks"]

_NEVER = -np.inf


class LayerRanks:
    """Residents by a value a layer and expert and an offset a layer.

    The highest value + offset leaves first; of equal ones the lowest layer, then the lowest expert.
    """

    def __init__(self, layers: int, experts: int, dtype: type[np.floating] = np.float64) -> None:
        self._experts = experts
        self.value = [np.zeros(experts, dtype) for _ in range(layers)]
        """[experts] a layer, all finite; from `put` only."""
        # What is added to the values: 0 for residents, _NEVER for everybody else.
        self._absent = [np.full(experts, _NEVER, dtype) for _ in range(layers)]
        # The sums, and each layer's first to leave with its value: right for the layers not in `_stale`.
        self._sums = [np.full(experts, _NEVER, dtype) for _ in range(layers)]
        self._first = [0] * layers
        self._heads = np.full(layers, _NEVER)
        self._stale: set[int] = set()

    def put(self, layer: int, values: np.ndarray) -> None:
        """New values of a layer, [experts], of the dtype given; they are kept, not copied."""
        self.value[layer] = values
        self._stale.add(layer)

    def added(self, layer: int, experts: Sequence[int]) -> None:
        """These have slots from now on."""
        absent = self._absent[layer]
        for expert in experts:
            absent[expert] = 0.0
        self._stale.add(layer)

    def removed(self, key: int) -> None:
        """A resident has lost its slot."""
        layer, expert = divmod(key, self._experts)
        self._absent[layer][expert] = _NEVER
        self._stale.add(layer)

    def evict(
        self, count: int, layer: int, protected: Sequence[int], pinned: Container[int], offset: np.ndarray
    ) -> list[int]:
        """Remove up to `count` residents, the first to leave first; `offset` is float64 [layers].

        Nobody `pinned` and none of the experts `protected` of `layer`.
        """
        sums, absent, first, heads = self._sums, self._absent, self._first, self._heads
        self._stale.add(layer)
        for at in self._stale:
            sums[at] = here = self.value[at] + absent[at]
            if at == layer:
                for expert in protected:
                    here[expert] = _NEVER
            first[at] = best = int(here.argmax())
            heads[at] = here.item(best)
        self._stale = {layer}
        ranks = heads + offset
        found: list[int] = []
        while len(found) < count:
            at = int(ranks.argmax())
            here, expert = sums[at], first[at]
            if here.item(expert) == _NEVER:
                break
            here[expert] = _NEVER
            key = at * self._experts + expert
            if key in pinned:
                self._stale.add(at)
            else:
                absent[at][expert] = _NEVER
                found.append(key)
            first[at] = best = int(here.argmax())
            heads[at] = head = here.item(best)
            ranks[at] = head + offset.item(at)
        return found
