"""Rows through the layers: the one place where routers are read back, experts are asked for and waits are timed.

Token-major takes rows through all layers, experts coming from the slots. Layer-major takes a whole prompt through one
layer after another, each expert read once into a whole-layer buffer while the layer before is being computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np

from .cache.base import LayerCache
from .meter import Meter
from .models.contract import ExpertInput, Layer, Model, RowTable, as_ids
from .offload.experts import ExpertSource, ExpertStore
from .offload.layer_buffer import LayerBuffer
from .offload.rows import PendingRows, RowStore

__all__ = ["Forward", "LayerMajor"]

TOGETHER_ROWS = 64
"""From this many routed rows on, the rows of one expert are one product."""
_HOT_TOKENS = 1024
"""Routes of this many last prompt tokens say which experts are worth keeping for decode."""

_FEW_ROWS = 8
"""Rows of one forward that are a step of decode."""

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class LayerMajor:
    """What a layer-major pass leaves besides the caches."""

    wide: list[mx.array]
    """The residual after the last layer, one [t, W] a chunk."""
    saved: dict[int, list[Any]] = field(default_factory=dict)
    """Per asked chunk number the state of every layer behind that chunk."""


class Forward:
    """The layers of one model with their experts and tables."""

    def __init__(
        self,
        model: Model,
        store: ExpertStore,
        tables: Sequence[tuple[RowTable, RowStore]],
        buffers: Sequence[LayerBuffer],
        dtype: mx.Dtype,
        meter: Meter,
    ) -> None:
        self.model, self.store, self.meter = model, store, meter
        self._tables, self._dtype = tables, dtype
        self.buffers = buffers
        """Room for whole layers of a prompt; none where prompts go through the slots."""
        self.prove_rows: Callable[[], frozenset[int]] | None = None
        """What finds `exact_rows` when they are first needed; None where no rows are to share products."""
        self._exact_rows: frozenset[int] = frozenset()
        self.on_routes: Callable[[int, list[np.ndarray]], None] | None = None
        """Told (layer, ids of each part) of every read-back of the trunk."""

    @property
    def exact_rows(self) -> frozenset[int]:
        """Numbers of rows that were proven to have the same bits computed at once as computed alone."""
        if self.prove_rows is not None:
            self._exact_rows, self.prove_rows = self.prove_rows(), None
        return self._exact_rows

    @property
    def context_tokens(self) -> int:
        """How many tokens before a row its tables look back on."""
        return max((t.hash.context for t, _ in self._tables), default=0)

    @property
    def can_layer_major(self) -> bool:
        return bool(self.buffers)

    def ask_rows(self, before: Sequence[int], ids: Sequence[int]) -> dict[int, PendingRows]:
        """Start fetching the table rows of `ids`; keyed by layer."""
        return {table.layer: store.ask(table.hash.rows(before, ids)) for table, store in self._tables}

    def token_major(
        self, caches: Sequence[LayerCache], before: Sequence[int], ids: Sequence[int], *, apart: bool = False,
        together: bool | None = None,
    ) -> mx.array:  # fmt: skip
        """ids behind the caches -> residual after the last layer [T, W], not evaluated.

        `apart`: every row has the bits of a single token's step, experts still fetched once for all: rows run with the
        shapes of one row, or at once where `exact_rows` holds. `together`: the rows of one expert are one product
        (default: from 64 routed rows on).
        """
        pending = self.ask_rows(before, ids)
        try:
            exact = apart and len(ids) in self.exact_rows
            spans = [(i, i + 1) for i in range(len(ids))] if apart and not exact else [(0, len(ids))]
            together = exact if apart else together
            parts = [self.model.embed(as_ids(ids[a:b])) for a, b in spans]
            ahead = self.store.prefetch if len(ids) <= _FEW_ROWS else None
            if ahead is not None:
                ahead.begin(len(ids))
            for number, layer in enumerate(self.model.layers):
                self.meter.check()
                rows = self._rows(pending.pop(number, None))
                parts = self._layer(number, layer, parts, caches[number], rows, spans, apart=apart, together=together)
            if ahead is not None:
                ahead.end()
        finally:
            for rows_left in pending.values():
                rows_left.drop()
        return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=0)

    def _rows(self, pending: PendingRows | None) -> mx.array | None:
        if pending is None:
            return None
        return mx.array(pending.get(self.meter)).astype(self._dtype)

    def _layer(
        self, number: int, layer: Layer, parts: list[mx.array], cache: LayerCache, rows: mx.array | None,
        spans: list[tuple[int, int]], *, apart: bool, together: bool | None,
    ) -> list[mx.array]:  # fmt: skip
        mixed: list[mx.array] = []
        asked: list[ExpertInput] = []
        for x, (a, b) in zip(parts, spans):
            y, wants = layer.mix(x, cache, None if rows is None else rows[a:b], apart=apart)
            mixed.append(y)
            asked.append(wants)
        hidden, few = [w.hidden for w in asked], sum(w.ids.size for w in asked) < TOGETHER_ROWS
        if few and self.on_routes is None and self.store.whole():
            # Nothing has to be fetched, so nobody has to know the choice: the rows of a token are one graph.
            outputs = self.store.run_unread(number, hidden, [w.ids for w in asked])
        else:
            ids = self.read_back(asked, self._next_guess(number, asked) if few else None)
            if self.on_routes is not None:
                self.on_routes(number, ids)
            if together is None:
                together = len(spans) == 1 and not few
            outputs = self.store.run(number, hidden, ids, together=together)
        return [layer.merge(x, w, out) for x, w, out in zip(mixed, asked, outputs)]

    def _next_guess(self, number: int, asked: Sequence[ExpertInput]) -> mx.array | None:
        """Whom the next layer will probably ask for [T, k], where somebody reads ahead."""
        ahead = self.store.prefetch
        if ahead is None or not ahead.wanted or number + 1 == len(self.model.layers):
            return None
        hidden = [w.hidden for w in asked]
        rows = hidden[0] if len(hidden) == 1 else mx.concatenate(hidden, axis=0)
        return self.model.layers[number + 1].guess(rows, asked[0].ids.shape[1])

    def read_back(self, asked: Sequence[ExpertInput], guess: mx.array | None = None) -> list[np.ndarray]:
        """The routers' choices [t, k] of all parts, in one synchronisation; a guess goes to whoever reads ahead."""
        with self.meter.wait("router_sync"):
            mx.eval([w.ids for w in asked], [] if guess is None else guess)
        if guess is not None and self.store.prefetch is not None:
            # The likeliest of every row before the second likeliest of any.
            self.store.prefetch.expect(list(dict.fromkeys(np.array(guess).T.reshape(-1).tolist())))
        self.store.syncs += 1
        # The shared expert needs nothing from the disk: it runs while reads are prepared.
        mx.async_eval([w.shared for w in asked])
        return [np.array(w.ids) for w in asked]

    def layer_major(
        self, caches: Sequence[LayerCache], before: Sequence[int], chunks: Sequence[Sequence[int]],
        save_after: Sequence[int] = (), progress: Progress | None = None,
    ) -> LayerMajor:  # fmt: skip
        """Chunks of a prompt through one layer after another. `save_after` names chunks behind which states are kept.

        On an error the caches are left between two states: the caller restores them.
        """
        starts = np.cumsum([0, *(len(c) for c in chunks)]).tolist()
        total, layers = starts[-1], len(self.model.layers)
        asked = _RowsAhead(self, before, chunks)
        wide = [self.model.embed(as_ids(chunk)) for chunk in chunks]
        result = LayerMajor(wide, {c: [] for c in save_after})
        sources = _Sources(self.store, self.buffers, layers)
        try:
            for number, layer in enumerate(self.model.layers):
                source = sources.enter(number)
                hot: list[np.ndarray] = []
                for c, chunk in enumerate(chunks):
                    self.meter.check()
                    rows = self._rows(asked.take(c, number))
                    wide[c] = self._prompt_chunk(number, layer, wide[c], caches[number], rows, source, hot)
                    if c in result.saved:
                        result.saved[c].append(caches[number].save())
                    if progress is not None:
                        progress(number * total + starts[c] + len(chunk), total * layers)
                sources.leave(number, np.concatenate(hot)[-_HOT_TOKENS:])
        finally:
            sources.close()
            asked.close()
        return result

    def _prompt_chunk(
        self, number: int, layer: Layer, x: mx.array, cache: LayerCache, rows: mx.array | None, source: ExpertSource,
        hot: list[np.ndarray],
    ) -> mx.array:  # fmt: skip
        """One chunk through one layer, evaluated: afterwards the layer's bytes may be replaced."""
        y, wants = layer.mix(x, cache, rows)
        ids = self.read_back([wants])
        if self.on_routes is not None:
            self.on_routes(number, ids)
        hot.append(ids[0])
        together = ids[0].size >= TOGETHER_ROWS
        x = layer.merge(y, wants, source.run(number, [wants.hidden], ids, together=together)[0])
        with self.meter.wait("output_sync"):
            mx.eval(x, cache.arrays())
        return x


class _RowsAhead:
    """Table rows of a prompt's chunks, asked for two chunks ahead of their use."""

    def __init__(self, forward: Forward, before: Sequence[int], chunks: Sequence[Sequence[int]]) -> None:
        self._forward, self._before, self._chunks = forward, list(before[max(0, len(before) - 8) :]), chunks
        self._asked: dict[int, dict[int, PendingRows]] = {}
        self._ask(0)
        self._ask(1)

    def _ask(self, chunk: int) -> None:
        if chunk < len(self._chunks) and chunk not in self._asked:
            n = self._forward.context_tokens
            before = self._before
            # Chunks may be shorter than what the tables look back on: go back over as many as it takes.
            back = chunk
            tail: list[int] = []
            while back and len(tail) < n:
                back -= 1
                tail = [*self._chunks[back], *tail]
            self._asked[chunk] = self._forward.ask_rows([*before, *tail] if not back else tail, self._chunks[chunk])

    def take(self, chunk: int, layer: int) -> PendingRows | None:
        """The rows of one chunk for one layer, once."""
        found = self._asked.get(chunk, {}).pop(layer, None)
        if found is not None:
            self._ask(chunk + 2)
        return found

    def close(self) -> None:
        for rows in (r for asked in self._asked.values() for r in asked.values()):
            rows.drop()


class _Sources:
    """Which bytes each layer of a layer-major pass computes from, and the reading ahead."""

    def __init__(self, store: ExpertStore, buffers: Sequence[LayerBuffer], layers: int) -> None:
        self._store, self._buffers, self._layers = store, buffers, layers
        self._of: dict[int, LayerBuffer] = {}

    def _all_resident(self, layer: int) -> bool:
        return all(self._store.table.slot(layer, e) is not None for e in range(self._store.table.experts))

    def _load(self, layer: int) -> None:
        """Start reading `layer` if it has to be read and a buffer is idle."""
        if layer >= self._layers or layer in self._of or self._all_resident(layer):
            return
        idle = next((b for b in self._buffers if b not in self._of.values()), None)
        if idle is not None:
            self._store.count_layer_read(self._store.table.experts, idle.load(layer))
            self._of[layer] = idle

    def enter(self, layer: int) -> ExpertSource:
        """The source of a layer, its bytes there; the next layer that has to be read is on its way where a buffer is idle."""
        self._load(layer)
        ahead = next((n for n in range(layer + 1, self._layers) if not self._all_resident(n)), self._layers)
        self._load(ahead)
        buffer = self._of.get(layer)
        if buffer is None:
            return self._store
        buffer.wait()
        return buffer

    def leave(self, layer: int, hot: np.ndarray) -> None:
        """Everything that read the layer's bytes has been evaluated; the hottest experts stay in slots."""
        buffer = self._of.pop(layer, None)
        if buffer is None:
            return
        self._store.table.prime(layer, hot)
        self._store.hand_over(layer, buffer, -(-self._store.table.slots // self._layers))

    def close(self) -> None:
        for buffer in self._of.values():
            buffer.drop()
        self._of.clear()
