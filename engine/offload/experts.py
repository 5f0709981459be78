"""Experts in slots: who is there, who is read, and the products of both, in waves when a union is larger than the slots.

An expert that is routed to is always computed. The output of (row, rank) lands in its place whatever was resident and
whatever arrived first, so results never depend on the cache. On any failure nobody writes into a slot any more when the
error leaves, claimed slots without bytes are empty again, and the next request works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Protocol

import mlx.core as mx
import numpy as np

from ..meter import Meter
from ..stats import ExpertStats
from .hindsight import Hindsight
from .layer_buffer import LayerBuffer
from .layout import ExpertLayout
from .memory import Pool
from .policy import SlotTable
from .prefetch import Prefetch
from .reader import Reader, Ticket
from .routed import Routed, routed
from .shelf import Computes, Shelf, slot_blocks

__all__ = ["ExpertSource", "ExpertStore"]

_POLL_S = 0.05
"""While waiting for the disk, how often a stop is looked for."""
_NOBODY: Mapping[tuple[int, int], Ticket] = MappingProxyType({})
_MOST_UNREAD = 256
"""Forwards whose choices are kept for counting before they are looked at."""


class ExpertSource(Protocol):
    """Where a layer's expert outputs come from."""

    def run(
        self, layer: int, hidden: Sequence[mx.array], ids: Sequence[np.ndarray], *, together: bool
    ) -> list[mx.array]:
        """hidden[i] [t_i, H] and ids[i] [t_i, k] -> outputs[i] [t_i, k, H].

        `together`: rows of a part that go to one expert are one product; else every row is a product of its own.
        """
        ...


class ExpertStore:
    """One pool of slots over (layer, expert)."""

    def __init__(
        self, layout: ExpertLayout, reader: Reader, computes: Computes, slots: int, policy: str, meter: Meter
    ) -> None:
        self.layout = layout
        self.table = SlotTable(slots, layout.n_layers, layout.n_experts, policy)
        self._reader, self._meter = reader, meter
        self._pool = Pool(slots, layout.slot_bytes)
        blocks = slot_blocks(self._pool.stride, slots, layout.parts, layout.n_experts)
        self._shelf = Shelf(self._pool, blocks, blocks[0].count, layout.parts, computes)
        self._hindsight = Hindsight(self.table)
        self._slot_map: list[tuple[int, mx.array]] | None = None
        self._unread: list[Sequence[mx.array]] = []
        self._hits = self._misses = self._evictions = self._read_bytes = self._waves = self._handed_over = 0
        self._layer_reads = 0
        self._by_phase: dict[str, tuple[int, int]] = dict.fromkeys(("plain", "verify", "draft"), (0, 0))
        self.syncs = 0
        """Router read-backs; counted by the forward."""
        self.on_lookup: Callable[[int, Sequence[int]], None] | None = None
        """Told (layer, experts) of every lookup; a trace listens here."""
        self.prefetch: Prefetch | None = None
        """Reads the next layer's experts ahead, where that is wanted."""

    def read_ahead(self) -> None:
        """From now on take guesses for the next layer."""
        if self.table.crowded:
            self.prefetch = Prefetch(self.table, self._read_early)

    def _read_early(self, layer: int, expert: int, slot: int) -> Ticket:
        ticket = self._reader.submit(self.layout.ranges(layer, expert), self._pool.memory(slot), background=True)
        self._read_bytes += ticket.n_bytes
        return ticket

    def run(
        self, layer: int, hidden: Sequence[mx.array], ids: Sequence[np.ndarray], *, together: bool
    ) -> list[mx.array]:
        products = routed(hidden, ids, together=together)
        rows = ids[0] if len(ids) == 1 else np.concatenate(ids)
        union = sorted(set(rows.reshape(-1).tolist()))
        found = self.table.lookup(layer, union, rows)
        if self.on_lookup is not None:
            self.on_lookup(layer, union)
        self._hits += len(found.hits)
        self._misses += len(found.misses)
        if self._meter.phase_name == "prefill":
            self._hindsight.restart()
        elif self.table.crowded:
            self._hindsight.note(layer, union, len(found.hits))
        waves = self.table.waves(layer, union)
        coming = {} if self.prefetch is None else self.prefetch.take(layer, union)
        if len(waves) > 1 and coming:
            # A wave takes the slots of others: whoever is on the way has to be there.
            with self._reading(layer, (), (), coming) as tickets:
                while tickets:
                    self._arrived(tickets)
            coming = {}
        for i, wave in enumerate(waves):
            if i:
                self._waves += 1
                self._meter.check()
            made = self._wave(layer, wave, products, coming)
            if i + 1 < len(waves):
                # The next wave may take these slots: whoever reads them has to be done.
                mx.eval(made)
        return products.outputs()

    def _wave(
        self, layer: int, wave: list[int], products: Routed, coming: Mapping[tuple[int, int], Ticket]
    ) -> list[mx.array]:
        """Compute the experts of one wave, resident ones while the others are read or still `coming`."""
        places = {e: s for e in wave if (s := self.table.slot(layer, e)) is not None}
        resident = [place for place in places.items() if place not in coming]
        absent = [e for e in wave if e not in places] if len(places) < len(wave) else []
        with self._reading(layer, absent, wave, coming) as tickets:
            if self.prefetch is not None:
                self.prefetch.start(layer, wave)
            made = products.compute(self._shelf, layer, resident)
            while tickets:
                if made:
                    mx.async_eval(made)
                here = self._arrived(tickets)
                made += products.compute(self._shelf, layer, here)
        return made

    @contextmanager
    def _reading(
        self, layer: int, absent: Sequence[int], protected: Sequence[int],
        coming: Mapping[tuple[int, int], Ticket] = _NOBODY,
    ) -> Iterator[dict[tuple[int, int], Ticket]]:  # fmt: skip
        """Slots for `absent` experts and their reads, by (expert, slot), with those that are `coming` already.

        Whoever has arrived is taken out. On any error inside nobody reads any more, and who had not arrived has no slot.
        """
        claims = self.table.claim_all(layer, absent, protected) if absent else []
        self._evictions += sum(c.evicted is not None for c in claims)
        tickets = dict(coming)
        asked = n_bytes = 0
        try:
            for c in claims:
                ticket = self._reader.submit(self.layout.ranges(layer, c.expert), self._pool.memory(c.slot))
                tickets[c.expert, c.slot] = ticket
                asked, n_bytes = asked + 1, n_bytes + ticket.n_bytes
            yield tickets
        except BaseException:
            for ticket in tickets.values():
                ticket.cancel()
            for expert in (*(e for e, _ in tickets), *(c.expert for c in claims[asked:])):
                self.table.release(layer, expert)
            mx.synchronize()
            raise
        self._count(len(claims), n_bytes)

    def _arrived(self, tickets: dict[tuple[int, int], Ticket]) -> list[tuple[int, int]]:
        """Wait for the first read and take out all that are done by then. Raises what a read raised."""
        first = next(iter(tickets.values()))
        if not first.done():
            with self._meter.wait("ssd_wait"):
                while not first.wait(_POLL_S):
                    self._meter.check()
        here = [key for key, ticket in tickets.items() if ticket.done() and ticket.wait()]
        for key in here:
            del tickets[key]
        return here

    def _count(self, misses: int, n_bytes: int) -> None:
        self._read_bytes += n_bytes
        phase = self._meter.phase_name
        if phase in self._by_phase:
            m, b = self._by_phase[phase]
            self._by_phase[phase] = (m + misses, b + n_bytes)

    # ---- everything resident

    def fill(self, progress: Callable[[int, int], None] = lambda *_: None) -> None:
        """Read every expert that is not here, where all of them have slots; elsewhere do nothing.

        `progress` hears (experts here, experts in all). Raises StorageError; what has arrived stays.
        """
        table = self.table
        if table.crowded or table.complete:
            return
        for layer in range(table.layers):
            absent = [e for e in range(table.experts) if table.slot(layer, e) is None]
            with self._reading(layer, absent, ()) as tickets:
                while tickets:
                    self._arrived(tickets)
            progress(len(table), table.layers * table.experts)

    def whole(self) -> bool:
        """Whether `run_unread` can be used: all experts are here, and nobody listens to lookups."""
        if self.on_lookup is not None or not self.table.complete:
            return False
        if self._slot_map is None:
            self._slot_map = self._mapped()
        return bool(self._slot_map)

    def _mapped(self) -> list[tuple[int, mx.array]]:
        """A layer's block of slots and, int32 [E], its experts' places in that block; empty if a layer has several."""
        block, experts = self._shelf.width, self.table.experts
        slots = np.array([s for *_, s in sorted(self.table.residents())], np.int32).reshape(-1, experts)
        if (slots // block != slots[:, :1] // block).any():
            return []
        return [(int(row[0]) // block, mx.array(row % block)) for row in slots]

    def run_unread(self, layer: int, hidden: Sequence[mx.array], ids: Sequence[mx.array]) -> list[mx.array]:
        """`run` of rows apart for the router's own choices, int32 [t_i, k], which need not be known; `whole` holds."""
        assert self._slot_map is not None
        block, slots = self._slot_map[layer]
        outputs = []
        for h, i in zip(hidden, ids):
            t, k = i.shape
            experts = i.reshape(-1)
            x = mx.broadcast_to(h[:, None, None], (t, k, 1, h.shape[1])).reshape(t * k, 1, -1)
            y = self._shelf.apart_unread(x, layer, experts, mx.take(slots, experts), block)
            outputs.append(y.reshape(t, k, -1))
        if len(ids) == 1 and ids[0].shape[0] == 1:
            # A row's experts are distinct.
            self._hits += ids[0].shape[1]
        else:
            self._unread.append(list(ids))
            if len(self._unread) > _MOST_UNREAD:
                self._count_unread()
        return outputs

    def _count_unread(self) -> None:
        """Look at the choices that were made meanwhile: each distinct expert of a forward was a hit."""
        for ids in self._unread:
            self._hits += len(np.unique(np.concatenate([np.array(i).reshape(-1) for i in ids])))
        self._unread.clear()

    def hand_over(self, layer: int, buffer: LayerBuffer, most: int) -> None:
        """Fill up to `most` slots with the experts of `layer` that deserve one, from a buffer that holds the layer."""
        self._hindsight.restart()
        for claim in self.table.hand_over(layer, most):
            buffer.copy(claim.expert, self._pool.memory(claim.slot))
            self._handed_over += 1
            self._evictions += claim.evicted is not None

    def count_layer_read(self, experts: int, n_bytes: int) -> None:
        """A whole layer was read for prefill."""
        self._layer_reads += experts
        self._read_bytes += n_bytes

    def clear(self) -> None:
        """Empty every slot, as after opening."""
        mx.synchronize()
        if self.prefetch is not None:
            self.prefetch.drop()
        self.table.clear()
        self._hindsight.restart()
        self._slot_map = None

    def memory(self, slot: int) -> memoryview:
        """The bytes of a slot."""
        return self._pool.memory(slot)

    @property
    def misses(self) -> int:
        """Experts that had to be read, so far."""
        return self._misses

    @property
    def nbytes(self) -> int:
        return self._pool.nbytes

    def stats(self) -> ExpertStats:
        self._count_unread()
        (pm, pb), (vm, vb), (dm, db) = (self._by_phase[p] for p in ("plain", "verify", "draft"))
        resident, ahead = len(self.table), self.prefetch
        return ExpertStats(
            hits=self._hits, misses=self._misses,
            evictions=self._evictions + (0 if ahead is None else ahead.evictions), read_bytes=self._read_bytes,
            layer_reads=self._layer_reads, handed_over=self._handed_over, waves=self._waves, syncs=self.syncs,
            plain_misses=pm, verify_misses=vm, draft_misses=dm, plain_bytes=pb, verify_bytes=vb, draft_bytes=db,
            slots=self.table.slots, resident=resident, resident_bytes=resident * self.layout.slot_bytes,
            budget_bytes=self.table.slots * self.layout.slot_bytes, total=self.table.layers * self.table.experts,
            guessed=0 if ahead is None else ahead.issued, guessed_right=0 if ahead is None else ahead.useful,
            prefetch="" if ahead is None else ahead.state, of_best=self._hindsight.share,
        )  # fmt: skip
