"""Who leaves first among the residents of all layers, kept cheap where the values of one layer at a time change.

Between two turns of a layer its values stand still, so only the first of each layer have to be compared.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

__all__ = ["LayerRanks"]

_NEVER = -np.inf


class LayerRanks:
    """Residents by a value a layer and expert and an offset a layer.

    The highest value + offset leaves first; of equal ones the lowest layer, then the lowest expert.
    """

    def __init__(self, layers: int, experts: int) -> None:
        self._experts = experts
        self.value = np.zeros((layers, experts))
        """float64 [layers, experts], all finite; written by `put` only."""
        self._resident = np.zeros((layers, experts), bool)
        # The values of residents, and of each layer the highest with its first place.
        self._leaving = np.full((layers, experts), _NEVER)
        self._heads = np.full(layers, _NEVER)
        self._at = [0] * layers

    def put(self, layer: int, values: np.ndarray) -> None:
        """New values of a layer, [experts]."""
        self.value[layer] = values
        np.copyto(self._leaving[layer], values, where=self._resident[layer])
        self._find_head(layer)

    def added(self, key: int) -> None:
        layer, expert = divmod(key, self._experts)
        value = self.value[layer, expert]
        self._resident[layer, expert] = True
        self._leaving[layer, expert] = value
        if (value, -expert) > (self._heads[layer], -self._at[layer]):
            self._heads[layer], self._at[layer] = value, expert

    def removed(self, key: int) -> None:
        layer, expert = divmod(key, self._experts)
        self._resident[layer, expert] = False
        self._leaving[layer, expert] = _NEVER
        if self._at[layer] == expert:
            self._find_head(layer)

    def victims(self, count: int, blocked: Collection[int], offset: np.ndarray) -> list[int]:
        """Up to `count` resident keys that are not blocked, the first to leave first; `offset` is float64 [layers]."""
        ranks = self._heads + offset
        at: dict[int, int] = {}
        found: list[int] = []
        passed: list[tuple[int, int]] = []
        while len(found) < count:
            layer = int(ranks.argmax())
            if ranks[layer] == _NEVER:
                break
            expert = at.get(layer, self._at[layer])
            key = layer * self._experts + expert
            if key not in blocked:
                found.append(key)
            row = self._leaving[layer]
            row[expert] = _NEVER
            passed.append((layer, expert))
            at[layer] = expert = int(row.argmax())
            ranks[layer] = row[expert] + offset[layer]
        for layer, expert in passed:
            self._leaving[layer, expert] = self.value[layer, expert]
        return found

    def _find_head(self, layer: int) -> None:
        row = self._leaving[layer]
        at = self._at[layer] = int(row.argmax())
        self._heads[layer] = row[at]
