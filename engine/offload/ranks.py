"""Who leaves first among the residents of all layers, kept cheap where the values of one layer at a time change.

Between two turns of a layer its values stand still, so only the first of each layer have to be compared, and whoever was
found to come next is remembered until then.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection

import numpy as np

__all__ = ["LayerRanks"]

_NEVER = -np.inf


class LayerRanks:
    """Residents by a value a layer and expert and an offset a layer.

    The highest value + offset leaves first; of equal ones the lowest layer, then the lowest expert.
    """

    def __init__(self, layers: int, experts: int, dtype: type[np.floating] = np.float64) -> None:
        self._experts = experts
        self.value = np.zeros((layers, experts), dtype)
        """[layers, experts], all finite; written by `put` only."""
        self._resident = np.zeros((layers, experts), bool)
        # Each layer's first to leave, as sorted (-value, expert): at least one while anybody is resident. The values of
        # the other residents stand in `_rest`; none of them leaves before anybody in the queue.
        self._queues: list[list[tuple[float, int]]] = [[] for _ in range(layers)]
        self._rest = np.full((layers, experts), _NEVER, dtype)
        self._heads = np.full(layers, _NEVER)

    def put(self, layer: int, values: np.ndarray) -> None:
        """New values of a layer, [experts]."""
        self.value[layer] = values
        np.copyto(self._rest[layer], values, where=self._resident[layer])
        self._queues[layer].clear()
        self._heads[layer] = -self._queues[layer][0][0] if self._draw(layer) else _NEVER

    def added(self, key: int) -> None:
        layer, expert = divmod(key, self._experts)
        value = self.value.item(layer, expert)
        self._resident[layer, expert] = True
        queue, place = self._queues[layer], (-value, expert)
        if queue and place > queue[-1]:
            self._rest[layer, expert] = value
        else:
            insort(queue, place)
            self._heads[layer] = -queue[0][0]

    def removed(self, key: int) -> None:
        layer, expert = divmod(key, self._experts)
        self._resident[layer, expert] = False
        queue = self._queues[layer]
        if queue[0][1] == expert:
            del queue[0]
            self._heads[layer] = -queue[0][0] if queue or self._draw(layer) else _NEVER
        elif (place := (-self.value.item(layer, expert), expert)) <= queue[-1]:
            queue.remove(place)
        else:
            self._rest[layer, expert] = _NEVER

    def victims(self, count: int, blocked: Collection[int], offset: np.ndarray) -> list[int]:
        """Up to `count` resident keys that are not blocked, the first to leave first; `offset` is float64 [layers]."""
        ranks = self._heads + offset
        passed: dict[int, int] = {}
        found: list[int] = []
        while len(found) < count:
            layer = int(ranks.argmax())
            queue, at = self._queues[layer], passed.get(layer, 0)
            if at == len(queue):
                break
            key = layer * self._experts + queue[at][1]
            if key not in blocked:
                found.append(key)
            passed[layer] = at = at + 1
            ranks[layer] = offset[layer] - queue[at][0] if at < len(queue) or self._draw(layer) else _NEVER
        return found

    def _draw(self, layer: int) -> bool:
        """Move the first of a layer's rest to the end of its queue; False if there is none."""
        rest = self._rest[layer]
        expert = int(rest.argmax())
        value = rest.item(expert)
        if value == _NEVER:
            return False
        rest[expert] = _NEVER
        self._queues[layer].append((-value, expert))
        return True
