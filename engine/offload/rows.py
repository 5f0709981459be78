"""Rows of a table that stays on disk, fetched by number: deduplicated, a few kept, asked for ahead of the forward."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from ..checkpoint.header import TensorEntry
from ..checkpoint.quant import bf16_to_f32, widen
from ..meter import Meter
from .layout import ReadRange
from .reader import Reader, Ticket

__all__ = ["PendingRows", "RowStore"]

_KEEP_BYTES = 32 << 20
_POLL_S = 0.05


class PendingRows:
    """Rows on their way. `get` is called once."""

    def __init__(self, store: RowStore, numbers: np.ndarray, unique: np.ndarray, back: np.ndarray) -> None:
        self._store, self._numbers, self._unique, self._back = store, numbers, unique, back
        self._rows = np.empty((len(unique), store.row_bytes), np.uint8)
        fetched = []
        for i, number in enumerate(unique.tolist()):
            kept = store.kept(number)
            if kept is None:
                fetched.append(i)
            else:
                self._rows[i] = kept
        self._fetched = fetched
        self._ticket: Ticket | None = None
        if fetched:
            ranges = [store.range_of(int(unique[i]), i * store.row_bytes) for i in fetched]
            rows = memoryview(self._rows)  # pyright: ignore[reportArgumentType]
            self._ticket = store.reader.submit(ranges, rows.cast("B"))

    def get(self, meter: Meter) -> np.ndarray:
        """[T, heads * columns] float32. Raises StorageError, or Cancelled when the request was stopped."""
        store = self._store
        if self._ticket is not None:
            with meter.wait("rows_wait"):
                while not self._ticket.wait(_POLL_S):
                    meter.check()
            for i in self._fetched:
                store.keep(int(self._unique[i]), self._rows[i])
        values = store.values(self._rows)
        return values[self._back].reshape(self._numbers.shape[0], -1)

    def drop(self) -> None:
        """Give up: after this nobody writes into the rows' memory."""
        if self._ticket is not None:
            self._ticket.cancel()


class RowStore:
    """One table in equal shards of rows."""

    def __init__(self, shards: Sequence[TensorEntry], scale: np.ndarray | None, reader: Reader) -> None:
        """`scale` is one BF16 factor (uint16 bits), or None."""
        self.reader = reader
        self._shards = tuple(shards)
        self._shard_rows = shards[0].shape[0]
        self._dtype = shards[0].dtype
        self.row_bytes = shards[0].n_bytes // self._shard_rows
        self._scale = None if scale is None else np.float32(bf16_to_f32(scale).reshape(()))
        self._kept: OrderedDict[int, np.ndarray] = OrderedDict()
        self._most_kept = max(1, _KEEP_BYTES // (self.row_bytes + 200))

    def ask(self, numbers: np.ndarray) -> PendingRows:
        """Start fetching rows `numbers` [T, heads] int64."""
        unique, back = np.unique(numbers.reshape(-1), return_inverse=True)
        return PendingRows(self, numbers, unique, back.reshape(-1))

    def range_of(self, number: int, destination: int) -> ReadRange:
        shard, row = divmod(number, self._shard_rows)
        entry = self._shards[shard]
        return ReadRange(entry.path, entry.offset + row * self.row_bytes, self.row_bytes, destination)

    def kept(self, number: int) -> np.ndarray | None:
        row = self._kept.get(number)
        if row is not None:
            self._kept.move_to_end(number)
        return row

    def keep(self, number: int, row: np.ndarray) -> None:
        self._kept[number] = row.copy()
        if len(self._kept) > self._most_kept:
            self._kept.popitem(last=False)

    def values(self, rows: np.ndarray) -> np.ndarray:
        """Stored rows uint8 [n, row_bytes] as float32 [n, columns]."""
        codes = {"F8_E4M3": np.uint8, "BF16": np.uint16, "F16": np.float16, "F32": np.float32}[self._dtype]
        values = widen(rows.view(codes), self._dtype)
        return values if self._scale is None else values * self._scale
