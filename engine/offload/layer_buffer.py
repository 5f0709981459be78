"""All experts of one layer at once, for prompts: read in large pieces, each expert once. Knows no slots and no policy."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from ..meter import Meter
from .layout import ExpertLayout
from .memory import Pool
from .reader import Reader, Ticket
from .routed import routed
from .shelf import Computes, Shelf, layer_blocks

__all__ = ["LayerBuffer"]

_POLL_S = 0.05
"""While waiting for the disk, how often a stop is looked for."""


class LayerBuffer:
    """Room for one layer, which lies there as in its files."""

    def __init__(self, layout: ExpertLayout, reader: Reader, computes: Computes, meter: Meter) -> None:
        self._layout, self._reader, self._meter = layout, reader, meter
        self._computes = computes
        self.pool = Pool(1, layout.layer_bytes)
        self._starts = np.empty((0, 0), np.int64)
        self._places: list[int] = []
        self._shelf: Shelf | None = None
        self._ticket: Ticket | None = None
        self.layer = -1
        """The layer that was loaded last; -1 when none was."""

    def load(self, layer: int) -> int:
        """Start reading a layer; whatever computed from the buffer has been evaluated. Returns the bytes to be read."""
        self.layer = layer
        layout, image = self._layout, self._layout.layer_image(layer)
        self._ticket = self._reader.submit(image.ranges, self.pool.memory(0))
        self._starts = image.starts
        blocks, self._places = layer_blocks(image.starts, layout.part_starts)
        self._shelf = Shelf(self.pool, blocks, layout.n_experts, layout.parts, self._computes)
        return self._ticket.n_bytes

    def wait(self) -> None:
        """Until the layer is there. Raises StorageError, or Cancelled when the request was stopped."""
        assert self._ticket is not None
        if self._ticket.done():
            self._ticket.wait()
            return
        with self._meter.wait("ssd_wait"):
            while not self._ticket.wait(_POLL_S):
                self._meter.check()

    def drop(self) -> None:
        """Stop reading: after this nobody writes into the buffer."""
        if self._ticket is not None:
            self._ticket.cancel()
        self.layer = -1

    def copy(self, expert: int, slot: memoryview) -> None:
        """Fill a slot with an expert of the layer that is here."""
        whole = self.pool.memory(0)
        for (n_bytes, at), start in zip(self._layout.reads, self._starts[expert].tolist()):
            slot[at : at + n_bytes] = whole[start : start + n_bytes]

    def run(
        self, layer: int, hidden: Sequence[mx.array], ids: Sequence[np.ndarray], *, together: bool
    ) -> list[mx.array]:
        """Outputs of a layer that is here; see `ExpertSource.run`."""
        assert layer == self.layer
        assert self._shelf is not None
        products = routed(hidden, ids, together=together)
        asked = np.unique(np.concatenate([i.reshape(-1) for i in ids])).tolist()
        products.compute(self._shelf, layer, [(expert, self._places[expert]) for expert in asked])
        return products.outputs()

    @property
    def nbytes(self) -> int:
        return self.pool.nbytes
