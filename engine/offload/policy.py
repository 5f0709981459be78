"""Which expert sits in which slot, and who leaves when a slot is needed: one pool over (layer, expert).

A SlotTable keeps the book and never lets a protected or pinned expert go; a Policy only ranks the residents. The engine
and the replay use the same objects. Nothing here knows bytes, files, threads or tensors.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

import numpy as np

from .decay import DecayPolicy
from .ranks import LayerRanks

__all__ = ["POLICIES", "Claim", "Lookup", "Policy", "SlotTable", "make_policy"]

PROMPT_ROWS = 8
"""Rows of one forward that are more than a round of drafts can hold."""

Key = int
"""layer * experts + expert."""


class Lookup(NamedTuple):
    """What one forward of a layer finds: `hits` as (expert, slot), `misses` as experts, both in the order asked."""

    hits: list[tuple[int, int]]
    misses: list[int]


class Claim(NamedTuple):
    """A slot given to `expert`; `evicted` is the (layer, expert) whose bytes were in it, None if it was empty."""

    expert: int
    slot: int
    evicted: tuple[int, int] | None


class Policy(Protocol):
    """Ranks residents; keys are layer * experts + expert. It knows them from `added`, `removed` and its own `evict`."""

    def record(self, layer: int, experts: Sequence[int]) -> None:
        """One forward asks `layer` for these distinct experts, resident or not."""
        ...

    def prime(self, layer: int, rows: np.ndarray) -> None:
        """A prompt went through `layer`; `rows` int [T, top_k] are its routes, oldest first."""
        ...

    def added(self, layer: int, experts: Sequence[int]) -> None:
        """These, distinct and not resident so far, have slots from now on."""
        ...

    def removed(self, key: Key) -> None:
        """A resident has lost its slot without being evicted."""
        ...

    def evict(self, count: int, layer: int, protected: Sequence[int], pinned: Container[Key]) -> list[Key]:
        """Choose `count` residents, the first to leave first, that are resident no more from now on.

        Nobody `pinned` and none of the experts `protected` of `layer`; without those at least `count` are left.
        """
        ...

    def worth(self, layer: int) -> np.ndarray:
        """How much each expert of a layer, resident or not, deserves a slot when a prompt's experts are handed over."""
        ...


class SlotTable:
    """The book of one pool. Slots are numbered from 0; the caller owns the memory behind them.

    Every method either succeeds or raises ValueError and changes nothing. Not locked: one thread owns it.
    """

    def __init__(self, slots: int, layers: int, experts: int, policy: str | Policy = "decay") -> None:
        if slots < 1 or layers < 1 or experts < 1:
            raise ValueError("a slot table needs at least one slot, one layer and one expert")
        self.slots, self.layers, self.experts = slots, layers, experts
        self.policy = make_policy(policy, layers, experts) if isinstance(policy, str) else policy
        self._slot_of: dict[Key, int] = {}
        self._free = list(range(slots - 1, -1, -1))
        self._pins: dict[Key, int] = {}
        self.crowded = slots < layers * experts
        """Whether somebody has to leave when everybody has come."""

    # ---- looking

    def __len__(self) -> int:
        """Slots that hold an expert."""
        return len(self._slot_of)

    @property
    def complete(self) -> bool:
        """Whether every expert of every layer is resident."""
        return len(self._slot_of) == self.layers * self.experts

    def slot(self, layer: int, expert: int) -> int | None:
        """The slot of a resident expert, or None. Tells the policy nothing."""
        return self._slot_of.get(layer * self.experts + expert)

    def keys(self) -> set[Key]:
        """Everything resident, as layer * experts + expert."""
        return set(self._slot_of)

    def residents(self) -> list[tuple[int, int, int]]:
        """(layer, expert, slot) of everything resident, by slot."""
        return sorted(((*divmod(k, self.experts), s) for k, s in self._slot_of.items()), key=lambda r: r[2])

    def lookup(self, layer: int, experts: Sequence[int], rows: np.ndarray | None = None) -> Lookup:
        """Record one forward's distinct experts of a layer in the policy and say which are resident.

        Call it once a forward and layer, before any `claim` for it. `rows` int [T, top_k] are the routes that `experts`
        is the union of; from PROMPT_ROWS rows on the policy learns from them, as a wide union says little.
        """
        base = layer * self.experts
        hits: list[tuple[int, int]] = []
        misses: list[int] = []
        for e in experts:
            slot = self._slot_of.get(base + e)
            if slot is None:
                misses.append(e)
            else:
                hits.append((e, slot))
        if not self.crowded:
            # Nobody ever leaves: who is asked for need not be remembered.
            return Lookup(hits, misses)
        if rows is not None and len(rows) >= PROMPT_ROWS:
            self.policy.prime(layer, rows)
        else:
            self.policy.record(layer, experts)
        return Lookup(hits, misses)

    def free_slots(self, layer: int, protected: Sequence[int] = ()) -> int:
        """How many claims would succeed now: empty slots and residents neither pinned nor among `protected`."""
        base = layer * self.experts
        blocked = {base + e for e in protected if base + e in self._slot_of}
        return self.slots - len(blocked.union(self._pins))

    def waves(self, layer: int, experts: Sequence[int]) -> list[list[int]]:
        """Split a union of distinct experts into consecutive groups that fit the slots at once, residents first.

        One group when all fit. Claims for a later group may evict an earlier group's experts.
        """
        base = layer * self.experts
        room = self.slots - sum(1 for k in self._pins if k // self.experts != layer or k - base not in experts)
        if room < 1 and experts:
            raise ValueError("every slot is pinned")
        if len(experts) <= room:
            return [list(experts)] if experts else []
        ordered = sorted(experts, key=lambda e: base + e not in self._slot_of)
        return [ordered[i : i + room] for i in range(0, len(ordered), room)]

    # ---- claiming

    def claim(self, layer: int, expert: int, protected: Sequence[int] = ()) -> Claim:
        """A slot for one expert that is not resident; see `claim_all`."""
        return self.claim_all(layer, (expert,), protected)[0]

    def claim_all(self, layer: int, experts: Sequence[int], protected: Sequence[int] = ()) -> list[Claim]:
        """Slots for distinct experts of `layer` that are not resident, in order; they count as resident from now on.

        Nobody in `protected` (experts of the same layer), pinned or being claimed is evicted. Raises ValueError if the
        slots do not suffice (`waves` says how to split).
        """
        base, here = layer * self.experts, self._slot_of
        keys = [base + e for e in experts]
        if len(set(keys)) < len(keys) or not here.keys().isdisjoint(keys):
            raise ValueError("only distinct experts that are not resident can be claimed")
        need = max(0, len(keys) - len(self._free))
        if need > len(here) - len(self._pins) - len(protected) and len(keys) > self.free_slots(layer, protected):
            raise ValueError(f"{len(keys)} slots were asked for, {self.free_slots(layer, protected)} can be had")
        slots = [self._free.pop() for _ in range(len(keys) - need)]
        evicted: list[tuple[int, int] | None] = [None] * len(slots)
        if need:
            victims = self.policy.evict(need, layer, protected, self._pins)
            slots += map(here.pop, victims)
            evicted += [divmod(v, self.experts) for v in victims]
        here.update(zip(keys, slots))
        self.policy.added(layer, experts)
        return list(map(Claim, experts, slots, evicted))

    def release(self, layer: int, expert: int) -> None:
        """Undo a claim whose read failed or was cancelled, or forget an expert: its slot is empty. Pins are dropped."""
        key = layer * self.experts + expert
        if key not in self._slot_of:
            raise ValueError(f"expert {expert} of layer {layer} is not resident")
        self._free.append(self._slot_of.pop(key))
        self._pins.pop(key, None)
        self.policy.removed(key)

    def clear(self) -> None:
        """Empty every slot; what the policy has learned stays."""
        for key in list(self._slot_of):
            self.release(*divmod(key, self.experts))

    def pin(self, layer: int, expert: int) -> None:
        """Keep a resident expert until as many `unpin`s."""
        key = layer * self.experts + expert
        if key not in self._slot_of:
            raise ValueError(f"expert {expert} of layer {layer} is not resident")
        self._pins[key] = self._pins.get(key, 0) + 1

    def unpin(self, layer: int, expert: int) -> None:
        key = layer * self.experts + expert
        left = self._pins.get(key, 0) - 1
        if left < 0:
            raise ValueError(f"expert {expert} of layer {layer} is not pinned")
        if left:
            self._pins[key] = left
        else:
            del self._pins[key]

    # ---- hand-over from prefill

    def prime(self, layer: int, rows: np.ndarray) -> None:
        """Tell the policy a prompt's routes of a layer: int [T, top_k], oldest row first. Instead of `lookup`."""
        self.policy.prime(layer, np.asarray(rows))

    def hand_over(self, layer: int, most: int | None = None) -> list[Claim]:
        """Claim slots for the experts of a primed layer that deserve one more than the coldest resident does.

        Hottest first, at most `most`; the caller fills the slots at once (their bytes are in the layer buffer).
        """
        base = layer * self.experts
        worth = self.policy.worth(layer)
        wanted = [
            e for e in np.argsort(-worth, kind="stable").tolist() if worth[e] > 0 and base + e not in self._slot_of
        ]
        del wanted[self.experts if most is None else most :]
        room = len(self._free)
        if len(wanted) > room:
            coldest = self._worths()
            rivals = worth[wanted[room : room + len(coldest)]]
            del wanted[room + int((rivals > coldest[: len(rivals)]).sum()) :]
        return self.claim_all(layer, wanted)

    def _worths(self) -> np.ndarray:
        """What residents without pins are worth, ascending."""
        layers, experts = np.divmod(np.array([k for k in self._slot_of if k not in self._pins], int), self.experts)
        worths = np.zeros(len(layers))
        for layer in np.unique(layers).tolist():
            mine = layers == layer
            worths[mine] = self.policy.worth(layer)[experts[mine]]
        return np.sort(worths)


class LruPolicy:
    """Who was asked for longest ago leaves first. Below one token cycle it hits nothing; kept to compare with."""

    def __init__(self, layers: int, experts: int) -> None:
        self._experts = experts
        self._order: OrderedDict[Key, None] = OrderedDict()
        self._last = np.zeros((layers, experts))
        self._clock = 0

    def record(self, layer: int, experts: Sequence[int]) -> None:
        base = layer * self._experts
        self._clock += 1
        self._last[layer, list(experts)] = self._clock
        for e in experts:
            if base + e in self._order:
                self._order.move_to_end(base + e)

    def prime(self, layer: int, rows: np.ndarray) -> None:
        base = layer * self._experts
        for row in rows.tolist():
            self._clock += 1
            self._last[layer, row] = self._clock
        mine = [k for k in self._order if base <= k < base + self._experts and self._last.flat[k]]
        for key in sorted(mine, key=self._last.flat.__getitem__):
            self._order.move_to_end(key)

    def added(self, layer: int, experts: Sequence[int]) -> None:
        for e in experts:
            self._order[layer * self._experts + e] = None

    def removed(self, key: Key) -> None:
        del self._order[key]

    def evict(self, count: int, layer: int, protected: Sequence[int], pinned: Container[Key]) -> list[Key]:
        mine = {layer * self._experts + e for e in protected}
        found = list(islice((key for key in self._order if key not in mine and key not in pinned), count))
        for key in found:
            del self._order[key]
        return found

    def worth(self, layer: int) -> np.ndarray:
        return self._last[layer]


class LfuPolicy:
    """Who was asked for least often leaves first; all counts are halved every `HALVE_AFTER` turns of the layers."""

    HALVE_AFTER = 64

    def __init__(self, layers: int, experts: int) -> None:
        self._layers = layers
        self._ranks = LayerRanks(layers, experts)
        self.added, self.removed = self._ranks.added, self._ranks.removed
        self._counts = np.zeros((layers, experts))
        self._turns = np.zeros(layers, int)
        self._level = np.zeros(layers)

    def record(self, layer: int, experts: Sequence[int]) -> None:
        self._count(layer, list(experts))
        self._refresh(layer)

    def prime(self, layer: int, rows: np.ndarray) -> None:
        for row in rows.tolist():
            self._count(layer, row)
        self._refresh(layer)

    def _count(self, layer: int, experts: list[int]) -> None:
        self._counts[layer, experts] += 1
        self._turns[layer] += 1
        if self._turns[layer] % self.HALVE_AFTER == 0:
            self._counts[layer] /= 2

    def _refresh(self, layer: int) -> None:
        self._ranks.put(layer, -self._counts[layer])

    def evict(self, count: int, layer: int, protected: Sequence[int], pinned: Container[Key]) -> list[Key]:
        return self._ranks.evict(count, layer, protected, pinned, self._level)

    def worth(self, layer: int) -> np.ndarray:
        return self._counts[layer]


POLICIES = {"decay": DecayPolicy, "lru": LruPolicy, "lfu": LfuPolicy}


def make_policy(name: str, layers: int, experts: int) -> Policy:
    """A fresh policy by the name the settings use."""
    return POLICIES[name](layers, experts)
