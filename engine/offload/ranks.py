"""The residents of every layer in the order in which they would leave, kept cheap where one layer changes at a time.

Between two turns of a layer the order of its experts stands still, so only the first of each layer have to be compared.
Knows values, not where they come from.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

__all__ = ["LayerRanks"]


class LayerRanks:
    """Residents by a value a layer and expert (`value`, float64 [layers, experts]) and an offset a layer.

    The highest value + offset leaves first; of equal ones the lowest layer, then the lowest expert.
    """

    def __init__(self, layers: int, experts: int) -> None:
        self._experts = experts
        self.value = np.zeros((layers, experts))
        self._resident = np.zeros((layers, experts), bool)
        self._queue: list[list[int]] = [[] for _ in range(layers)]
        self._first = [0] * layers
        self._heads = np.full(layers, -np.inf)
        self._stale: set[int] = set()

    def changed(self, layer: int) -> None:
        """The values of a layer are new."""
        self._stale.add(layer)

    def added(self, key: int) -> None:
        layer, expert = divmod(key, self._experts)
        self._resident[layer, expert] = True
        self._stale.add(layer)

    def removed(self, key: int) -> None:
        layer, expert = divmod(key, self._experts)
        self._resident[layer, expert] = False
        if layer in self._stale:
            return
        queue, at = self._queue[layer], self._first[layer]
        if queue[at] == expert:
            at += 1
            while at < len(queue) and not self._resident[layer, queue[at]]:
                at += 1
            self._first[layer] = at
            self._heads[layer] = self.value[layer, queue[at]] if at < len(queue) else -np.inf

    def victims(self, count: int, blocked: Collection[int], offset: np.ndarray) -> list[int]:
        """Up to `count` resident keys that are not blocked, the first to leave first; `offset` is float64 [layers]."""
        for layer in self._stale:
            self._sort(layer)
        self._stale.clear()
        ranks = self._heads + offset
        at: dict[int, int] = {}
        found: list[int] = []
        while len(found) < count:
            layer = int(ranks.argmax())
            if ranks[layer] == -np.inf:
                break
            queue, resident = self._queue[layer], self._resident[layer]
            i = at.get(layer, self._first[layer])
            key = layer * self._experts + queue[i]
            if key not in blocked:
                found.append(key)
            i += 1
            while i < len(queue) and not resident[queue[i]]:
                i += 1
            at[layer] = i
            ranks[layer] = self.value[layer, queue[i]] + offset[layer] if i < len(queue) else -np.inf
        return found

    def _sort(self, layer: int) -> None:
        here = self._resident[layer].nonzero()[0]
        value = self.value[layer, here]
        order = (-value).argsort(kind="stable")
        self._queue[layer] = here[order].tolist()
        self._first[layer] = 0
        self._heads[layer] = value[order[0]] if len(here) else -np.inf
