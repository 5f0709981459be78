"""The default policy: how long until each expert is asked for again, estimated from fading memories of its layer.

Every expert has a few memories that fade at different speeds. The chance that its layer's next turn asks for it is a
weighted sum of them, and the weights are learned while the model runs: nothing here is tuned to a model or a text.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np

from .ranks import LayerRanks

__all__ = ["DecayPolicy"]

KEEP = (0.5, 0.8, 0.95, 0.99, 0.998)
"""What each memory keeps from one turn to the next: from the last two tokens to the last five hundred."""
PRIOR_TURNS = 200
"""The weights start out equal and are believed as much as this many turns would be."""
FORGET = 0.999
"""What the learned weights' evidence keeps from one token to the next."""
STUDIED_ROWS = 256
"""Prompt rows at the end that are gone through one by one; earlier ones only leave their trace in the memories."""
STUDIED_TURNS, THEN_ONE_IN = 4096, 7
"""So many turns are learned from one and all, after them one in seven: the weights move slowly by then."""
LEAST_CHANCE = 1e-6
LEAST_SCALE = 1e-8


class DecayPolicy:
    """Who is expected to be asked for last leaves first: turns until the layer comes round plus 1 / chance."""

    def __init__(self, layers: int, experts: int) -> None:
        self._layers = layers
        self._ranks = LayerRanks(layers, experts, np.float32)
        self.added, self.removed = self._ranks.added, self._ranks.removed
        # Column i of a layer times its scale is memory i of every expert, as a chance; the last column is 1. Fading
        # changes the scale alone, which is folded into the memory before it gets too small for float32.
        self._memory = np.zeros((layers, experts, len(KEEP) + 1), np.float32)
        self._scale = np.ones((layers, len(KEEP) + 1), np.float32)
        self._memory[:, :, -1] = 1.0
        self._keep = np.array([*KEEP, 1.0], np.float32)
        self._mark = 1 - self._keep
        self._weights = np.r_[np.full(len(KEEP), 1 / len(KEEP)), 0.0].astype(np.float32)
        self._squares: np.ndarray | None = None
        self._products = np.zeros(len(KEEP) + 1)
        self._turns = 0
        self._least = np.full(experts, LEAST_CHANCE, np.float32)
        distance = (np.arange(layers)[None] - np.arange(layers)[:, None] - 1) % layers + 1
        self._distances = distance / layers
        self._offset = np.zeros(layers)

    def record(self, layer: int, experts: Sequence[int]) -> None:
        self._turns += 1
        learns = self._turns <= STUDIED_TURNS or self._turns % THEN_ONE_IN == 0
        self._remember(layer, np.array(experts, np.intp), learns)
        if self._turns % self._layers == 0:
            self._learn()
        self._judge(layer)
        self._offset = self._distances[layer]

    def prime(self, layer: int, rows: np.ndarray) -> None:
        early, late = rows[: max(0, len(rows) - STUDIED_ROWS)], rows[-STUDIED_ROWS:]
        if len(early):
            self._pass_over(layer, early)
        for row in late:
            self._remember(layer, row, True)
        if len(late):
            self._learn()
        self._judge(layer)
        # All layers are equally far from a decode that has not begun.
        self._offset = np.zeros(self._layers)

    def evict(self, count: int, layer: int, protected: Sequence[int], pinned: Container[int]) -> list[int]:
        return self._ranks.evict(count, layer, protected, pinned, self._offset)

    def worth(self, layer: int) -> np.ndarray:
        return 1 / self._ranks.value[layer]

    def _remember(self, layer: int, experts: np.ndarray, learns: bool) -> None:
        """Take in what was asked for, after comparing it with what the memories said where `learns`."""
        memory, scale = self._memory[layer], self._scale[layer]
        asked = memory.take(experts, 0)
        if self._squares is None:
            self._start(len(experts))
        if learns:
            self._squares += memory.T @ memory * (scale[:, None] * scale)
            self._products += np.add.reduce(asked) * scale
        scale *= self._keep
        memory[experts] = asked + self._mark / scale
        if scale.item(0) < LEAST_SCALE:
            self._fold(layer)

    def _fold(self, layer: int) -> None:
        self._memory[layer] *= self._scale[layer]
        self._scale[layer] = 1.0

    def _pass_over(self, layer: int, rows: np.ndarray) -> None:
        """What `_remember` of each row would leave in the memories, in one go and without learning."""
        self._fold(layer)
        age = np.arange(len(rows) - 1, -1, -1)
        for i, keep in enumerate(KEEP):
            weights = np.repeat((1 - keep) * keep**age, rows.shape[1])
            trace = np.bincount(rows.reshape(-1), weights, self._memory.shape[1])
            self._memory[layer, :, i] = self._memory[layer, :, i] * keep ** len(rows) + trace

    def _start(self, asked: int) -> None:
        """Least squares that begin at equal weights and a tenth of the mean chance, as sure as PRIOR_TURNS turns."""
        mean = max(asked, 1) / self._memory.shape[1]
        prior = np.r_[np.full(len(KEEP), 0.9 / len(KEEP)), 0.1 * mean]
        sure = PRIOR_TURNS * np.r_[np.full(len(KEEP), max(asked, 1) * mean), max(asked, 1)]
        self._squares = np.diag(sure)
        self._products = sure * prior

    def _learn(self) -> None:
        if self._squares is not None:
            self._weights = np.linalg.solve(self._squares, self._products).astype(np.float32)
            self._squares *= FORGET
            self._products *= FORGET

    def _judge(self, layer: int) -> None:
        chance = self._memory[layer] @ (self._weights * self._scale[layer])
        self._ranks.put(layer, np.reciprocal(np.maximum(chance, self._least, out=chance)))
