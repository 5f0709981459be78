"""What a layer remembers of the tokens it has seen, and how it forgets a few of them again.

A *span* is the rows appended since `open_span`, kept tentatively; `commit(keep)` keeps its first rows and makes the
cache equal to one that never saw the others. Outside a span every append is final.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import mlx.core as mx

__all__ = ["CacheGroup", "LayerCache", "arrays_of"]


class LayerCache(Protocol):
    """The state of one layer over one timeline. Arrays are made and changed on the engine's thread only."""

    @property
    def position(self) -> int:
        """Rows seen, tentative ones included."""
        ...

    def open_span(self) -> None:
        """Everything appended from here to `commit` is tentative. Spans do not nest."""
        ...

    def commit(self, keep: int) -> None:
        """End the span, keeping its first `keep` rows (0 … rows appended)."""
        ...

    def save(self) -> Any:
        """A value that `restore` takes back; later appends do not change it. Costs no copy of what only grows."""
        ...

    def restore(self, saved: Any) -> None:
        """Go back to a saved state of this same timeline; ends an open span."""
        ...

    def saved_nbytes(self) -> int:
        """Bytes that a `save` holds on to beyond what the cache itself needs."""
        ...

    def nbytes(self) -> int:
        """Bytes held now."""
        ...

    def arrays(self) -> list[mx.array]:
        """Every array whose value the next step depends on; evaluated where a step must be complete."""
        ...


def arrays_of(caches: Iterable[LayerCache]) -> list[mx.array]:
    """The arrays of all caches, for one evaluation."""
    return [a for c in caches for a in c.arrays()]


class CacheGroup:
    """Several caches of one layer that move together."""

    def __init__(self, **parts: LayerCache) -> None:
        self.parts = parts

    def __getitem__(self, name: str) -> Any:
        return self.parts[name]

    @property
    def position(self) -> int:
        return next(iter(self.parts.values())).position

    def open_span(self) -> None:
        for part in self.parts.values():
            part.open_span()

    def commit(self, keep: int) -> None:
        for part in self.parts.values():
            part.commit(keep)

    def save(self) -> dict[str, Any]:
        return {name: part.save() for name, part in self.parts.items()}

    def restore(self, saved: dict[str, Any]) -> None:
        for name, part in self.parts.items():
            part.restore(saved[name])

    def saved_nbytes(self) -> int:
        return sum(part.saved_nbytes() for part in self.parts.values())

    def nbytes(self) -> int:
        return sum(part.nbytes() for part in self.parts.values())

    def arrays(self) -> list[mx.array]:
        return [a for part in self.parts.values() for a in part.arrays()]
