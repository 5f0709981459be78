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
from .shelf import Computes, Shelf

__all__ = ["LayerBuffer"]

_POLL_S = 0.05
"""While waiting for the disk, how often a stop is looked for."""


class LayerBuffer:
    """Room for one layer; an expert's place is its number."""

    def __init__(
        self, layout: ExpertLayout, reader: Reader, computes: Computes, meter: Meter, pool: Pool | None = None
    ) -> None:
        """`pool` lends the memory of another buffer of at least this size; the two are never used at once."""
        self._layout, self._reader, self._meter = layout, reader, meter
        self.pool = pool or Pool(1, layout.slot_bytes * layout.n_experts)
        self._shelf = Shelf(
            self.pool, layout.slot_bytes, layout.n_experts, layout.parts, computes, layer=layout.n_experts
        )
        self._ticket: Ticket | None = None
        self.layer = -1
        """The layer that was loaded last; -1 when none was."""

    def load(self, layer: int) -> int:
        """Start reading a layer; whatever computed from the buffer has been evaluated. Returns the bytes to be read."""
        self.layer = layer
        self._ticket = self._reader.submit(self._layout.layer_ranges(layer), self.pool.memory(0))
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

    def memory(self, expert: int) -> memoryview:
        """The bytes of one expert, as a slot holds them."""
        first = expert * self._layout.slot_bytes
        return self.pool.memory(0)[first : first + self._layout.slot_bytes]

    def run(
        self, layer: int, hidden: Sequence[mx.array], ids: Sequence[np.ndarray], *, together: bool
    ) -> list[mx.array]:
        """Outputs of a layer that is here; see `ExpertSource.run`."""
        assert layer == self.layer
        products = routed(hidden, ids, together=together)
        asked = np.unique(np.concatenate([i.reshape(-1) for i in ids])).tolist()
        products.compute(self._shelf, layer, [(expert, expert) for expert in asked])
        return products.outputs()

    @property
    def nbytes(self) -> int:
        return self.pool.nbytes
