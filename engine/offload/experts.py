"""Experts in slots: who is there, who is read, and the products of both, in waves when a union is larger than the slots.

An expert that is routed to is always computed. The output of (row, rank) lands in its place whatever was resident and
whatever arrived first, so results never depend on the cache. On any failure nobody writes into a slot any more when the
error leaves, claimed slots without bytes are empty again, and the next request works.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

from ..meter import Meter
from ..stats import ExpertStats
from .layout import ExpertLayout
from .memory import Pool
from .policy import SlotTable
from .reader import Reader, Ticket

__all__ = ["ExpertSource", "ExpertStore", "LayerBuffer", "gather_outputs"]

_POLL_S = 0.05
"""While waiting for the disk, how often a stop is looked for."""

Math = Callable[[mx.array, Any, int, int], mx.array]


class Computes(Protocol):
    """Computes one expert from its bytes."""

    def views(self, raw: mx.array) -> Mapping[str, mx.array]: ...

    def __call__(self, x: mx.array, views: Any, layer: int, expert: int) -> mx.array: ...


class ExpertSource(Protocol):
    """Where a layer's expert outputs come from."""

    def run(
        self, layer: int, hidden: Sequence[mx.array], ids: Sequence[np.ndarray], *, together: bool
    ) -> list[mx.array]:
        """hidden[i] [t_i, H] and ids[i] [t_i, k] -> outputs[i] [t_i, k, H].

        `together`: rows of a part that go to one expert are one product; else every row is a product of its own.
        """
        ...


class _Places:
    """The routed rows of one part, as products to be made and places for their results."""

    def __init__(self, hidden: mx.array, ids: np.ndarray, *, together: bool) -> None:
        self._shape = ids.shape
        k = ids.shape[1]
        flat = ids.reshape(-1)
        self._back: np.ndarray | None = None
        self._jobs: dict[int, list[tuple[int, mx.array]]] = {}
        if together:
            order = np.argsort(flat, kind="stable")
            rows = mx.take(hidden, mx.array((order // k).astype(np.int32)), axis=0)
            experts, starts = np.unique(flat[order], return_index=True)
            stops = [*starts[1:].tolist(), len(flat)]
            for i, (e, start, stop) in enumerate(zip(experts.tolist(), starts.tolist(), stops)):
                self._jobs[e] = [(i, rows[start:stop])]
            self._back = np.empty(len(flat), np.int32)
            self._back[order] = np.arange(len(flat), dtype=np.int32)
            self._pieces: list[mx.array | None] = [None] * len(experts)
        else:
            rows = [hidden[t : t + 1] for t in range(ids.shape[0])] if ids.shape[0] > 1 else [hidden]
            for place, e in enumerate(flat.tolist()):
                self._jobs.setdefault(e, []).append((place, rows[place // k]))
            self._pieces = [None] * len(flat)

    def compute(self, expert: int, product: Callable[[mx.array], mx.array]) -> list[mx.array]:
        """Make every product with `expert`; returns the new pieces."""
        made = []
        for place, rows in self._jobs.get(expert, ()):
            made.append(product(rows))
            self._pieces[place] = made[-1]
        return made

    def outputs(self) -> mx.array:
        """[t, k, H]; every expert of the part has been computed."""
        pieces = [p for p in self._pieces if p is not None]
        assert len(pieces) == len(self._pieces), "a routed expert was not computed"
        flat = mx.concatenate(pieces, axis=0)
        if self._back is not None:
            flat = mx.take(flat, mx.array(self._back), axis=0)
        return flat.reshape(*self._shape, -1)


def gather_outputs(
    hidden: Sequence[mx.array],
    ids: Sequence[np.ndarray],
    *,
    together: bool,
    each: Callable[[int], Callable[[mx.array], mx.array]],
) -> list[mx.array]:
    """Outputs of experts that are all at hand: `each(expert)` gives the product."""
    places = [_Places(h, i, together=together) for h, i in zip(hidden, ids)]
    for expert in np.unique(np.concatenate([i.reshape(-1) for i in ids])).tolist():
        for part in places:
            part.compute(expert, each(expert))
    return [part.outputs() for part in places]


class ExpertStore:
    """One pool of slots over (layer, expert)."""

    def __init__(
        self, layout: ExpertLayout, reader: Reader, computes: Computes, slots: int, policy: str, meter: Meter
    ) -> None:
        self.layout = layout
        self.table = SlotTable(slots, layout.n_layers, layout.n_experts, policy)
        self._reader, self._computes, self._meter = reader, computes, meter
        self._pool = Pool(slots, layout.slot_bytes)
        self._views: dict[int, Any] = {}
        self._hits = self._misses = self._evictions = self._read_bytes = self._waves = self._handed_over = 0
        self._layer_reads = 0
        self._by_phase: dict[str, tuple[int, int]] = dict.fromkeys(("plain", "verify", "draft"), (0, 0))
        self.syncs = 0
        """Router read-backs; counted by the forward."""
        self.on_lookup: Callable[[int, Sequence[int]], None] | None = None
        """Told (layer, experts) of every lookup; a trace listens here."""

    def run(
        self, layer: int, hidden: Sequence[mx.array], ids: Sequence[np.ndarray], *, together: bool
    ) -> list[mx.array]:
        places = [_Places(h, i, together=together) for h, i in zip(hidden, ids)]
        rows = np.concatenate(ids)
        union = np.unique(rows).tolist()
        found = self.table.lookup(layer, union, rows)
        if self.on_lookup is not None:
            self.on_lookup(layer, union)
        self._hits += len(found.hits)
        self._misses += len(found.misses)
        waves = self.table.waves(layer, union)
        for i, wave in enumerate(waves):
            if i:
                self._waves += 1
                self._meter.check()
            made = self._wave(layer, wave, places)
            if i + 1 < len(waves):
                # The next wave may take these slots: whoever reads them has to be done.
                mx.eval(made)
        return [part.outputs() for part in places]

    def _wave(self, layer: int, wave: list[int], places: list[_Places]) -> list[mx.array]:
        """Compute the experts of one wave, resident ones while the others are read."""
        resident = [(e, s) for e in wave if (s := self.table.slot(layer, e)) is not None]
        absent = [e for e in wave if self.table.slot(layer, e) is None]
        claims = self.table.claim_all(layer, absent, wave) if absent else []
        self._evictions += sum(c.evicted is not None for c in claims)
        tickets: list[Ticket] = []
        done = 0
        try:
            for c in claims:
                tickets.append(self._reader.submit(self.layout.ranges(layer, c.expert), self._pool.memory(c.slot)))
            made = [piece for e, slot in resident for piece in self._compute(layer, e, slot, places)]
            if tickets and made:
                mx.async_eval(made)
            for claim, ticket in zip(claims, tickets):
                self._arrive(ticket)
                done += 1
                made += self._compute(layer, claim.expert, claim.slot, places)
        except BaseException:
            for ticket in tickets:
                ticket.cancel()
            for claim in claims[done:]:
                self.table.release(layer, claim.expert)
            mx.synchronize()
            raise
        self._count(len(claims), sum(t.n_bytes for t in tickets))
        return made

    def _arrive(self, ticket: Ticket) -> None:
        """Wait for one expert; the exposed part of the wait is what counts."""
        if ticket.done():
            ticket.wait()
            return
        with self._meter.wait("ssd_wait"):
            while not ticket.wait(_POLL_S):
                self._meter.check()

    def _compute(self, layer: int, expert: int, slot: int, places: list[_Places]) -> list[mx.array]:
        views = self._slot_views(slot)
        made = []
        for part in places:
            made += part.compute(expert, lambda x: self._computes(x, views, layer, expert))
        return made

    def _slot_views(self, slot: int) -> Any:
        views = self._views.get(slot)
        if views is None:
            views = self._views[slot] = self._computes.views(self._pool.array(slot))
            mx.eval(list(views.values()))
        return views

    def _count(self, misses: int, n_bytes: int) -> None:
        self._read_bytes += n_bytes
        phase = self._meter.phase_name
        if phase in self._by_phase:
            m, b = self._by_phase[phase]
            self._by_phase[phase] = (m + misses, b + n_bytes)

    def hand_over(self, layer: int, buffer: LayerBuffer, most: int) -> None:
        """Fill up to `most` slots with the experts of `layer` that deserve one, from a buffer that holds the layer."""
        for claim in self.table.hand_over(layer, most):
            self._pool.memory(claim.slot)[:] = buffer.memory(claim.expert)
            self._handed_over += 1
            self._evictions += claim.evicted is not None

    def count_layer_read(self, experts: int, n_bytes: int) -> None:
        """A whole layer was read for prefill."""
        self._layer_reads += experts
        self._read_bytes += n_bytes

    def clear(self) -> None:
        """Empty every slot, as after opening."""
        mx.synchronize()
        self.table.clear()

    @property
    def misses(self) -> int:
        """Experts that had to be read, so far."""
        return self._misses

    @property
    def nbytes(self) -> int:
        return self._pool.nbytes

    def stats(self) -> ExpertStats:
        (pm, pb), (vm, vb), (dm, db) = (self._by_phase[p] for p in ("plain", "verify", "draft"))
        resident = len(self.table)
        return ExpertStats(
            hits=self._hits, misses=self._misses, evictions=self._evictions, read_bytes=self._read_bytes,
            layer_reads=self._layer_reads, handed_over=self._handed_over, waves=self._waves, syncs=self.syncs,
            plain_misses=pm, verify_misses=vm, draft_misses=dm, plain_bytes=pb, verify_bytes=vb, draft_bytes=db,
            slots=self.table.slots, resident=resident, resident_bytes=resident * self.layout.slot_bytes,
            budget_bytes=self.table.slots * self.layout.slot_bytes, total=self.table.layers * self.table.experts,
        )  # fmt: skip


class LayerBuffer:
    """All experts of one layer at once, for prefill: read in large pieces, each expert once."""

    def __init__(
        self, layout: ExpertLayout, reader: Reader, computes: Computes, meter: Meter, pool: Pool | None = None
    ) -> None:
        """`pool` lends the memory of another buffer of at least this size; the two are never used at once."""
        self._layout, self._reader, self._computes, self._meter = layout, reader, computes, meter
        self.pool = pool or Pool(1, layout.slot_bytes * layout.n_experts)
        self._ticket: Ticket | None = None
        self._views: dict[int, Any] = {}
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
        assert layer == self.layer

        def each(expert: int) -> Callable[[mx.array], mx.array]:
            views = self._expert_views(expert)
            return lambda x: self._computes(x, views, layer, expert)

        return gather_outputs(hidden, ids, together=together, each=each)

    def _expert_views(self, expert: int) -> Any:
        views = self._views.get(expert)
        if views is None:
            size = self._layout.slot_bytes
            raw = self.pool.array(0, expert * size, size)
            views = self._views[expert] = self._computes.views(raw)
            mx.eval(list(views.values()))
        return views

    @property
    def nbytes(self) -> int:
        return self.pool.nbytes
