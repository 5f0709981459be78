"""Which expert sits in which slot, and who leaves when a slot is needed: one pool over (layer, expert).

A SlotTable keeps the book and never lets a protected or pinned expert go; a Policy only ranks the residents. The engine
and the replay use the same objects. Nothing here knows bytes, files, threads or tensors.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

__all__ = ["POLICIES", "Claim", "Lookup", "Policy", "SlotTable", "make_policy"]

Key = int
"""layer * experts + expert."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """What one forward of a layer finds: `hits` as (expert, slot), `misses` as experts, both in the order asked."""

    hits: list[tuple[int, int]]
    misses: list[int]


@dataclass(frozen=True, slots=True)
class Claim:
    """A slot given to `expert`; `evicted` is the (layer, expert) whose bytes were in it, None if it was empty."""

    expert: int
    slot: int
    evicted: tuple[int, int] | None


class Policy(Protocol):
    """Ranks resident keys. `added` and `removed` keep it informed; keys are layer * experts + expert."""

    def record(self, layer: int, experts: Sequence[int]) -> None:
        """One forward asks `layer` for these distinct experts, resident or not."""
        ...

    def prime(self, layer: int, rows: np.ndarray) -> None:
        """A prompt went through `layer`; `rows` int [T, top_k] are its routes, oldest first."""
        ...

    def added(self, key: Key) -> None: ...

    def removed(self, key: Key) -> None: ...

    def victims(self, count: int, blocked: Collection[Key]) -> list[Key]:
        """Up to `count` residents that are not blocked, the first to leave first. Changes nothing."""
        ...

    def worth(self, key: Key) -> float:
        """How much a key, resident or not, deserves a slot when a prompt's experts are handed over; higher is more."""
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

    # ---- looking

    def __len__(self) -> int:
        """Slots that hold an expert."""
        return len(self._slot_of)

    def slot(self, layer: int, expert: int) -> int | None:
        """The slot of a resident expert, or None. Tells the policy nothing."""
        return self._slot_of.get(layer * self.experts + expert)

    def residents(self) -> list[tuple[int, int, int]]:
        """(layer, expert, slot) of everything resident, by slot."""
        return sorted(((*divmod(k, self.experts), s) for k, s in self._slot_of.items()), key=lambda r: r[2])

    def lookup(self, layer: int, experts: Sequence[int]) -> Lookup:
        """Record one forward's distinct experts of a layer in the policy and say which are resident.

        Call it once a forward and layer, before any `claim` for it.
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
        self.policy.record(layer, experts)
        return Lookup(hits, misses)

    def free_slots(self, layer: int, protected: Collection[int] = ()) -> int:
        """How many claims would succeed now: empty slots and residents neither pinned nor among `protected`."""
        return self.slots - len(self._blocked(layer, protected))

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

    def claim(self, layer: int, expert: int, protected: Collection[int] = ()) -> Claim:
        """A slot for one expert that is not resident; see `claim_all`."""
        return self.claim_all(layer, (expert,), protected)[0]

    def claim_all(self, layer: int, experts: Sequence[int], protected: Collection[int] = ()) -> list[Claim]:
        """Slots for distinct experts of `layer` that are not resident, in order; they count as resident from now on.

        Nobody in `protected` (experts of the same layer), pinned or being claimed is evicted. Raises ValueError if the
        slots do not suffice (`waves` says how to split).
        """
        base = layer * self.experts
        keys = [base + e for e in experts]
        if any(k in self._slot_of for k in keys) or len(set(keys)) != len(keys):
            raise ValueError("only distinct experts that are not resident can be claimed")
        need = len(keys) - len(self._free)
        leaving: list[Key] = []
        if need > 0:
            leaving = self.policy.victims(need, self._blocked(layer, protected))
            if len(leaving) < need:
                raise ValueError(f"{len(keys)} slots were asked for, {len(self._free) + len(leaving)} can be had")
        claims = []
        for e, key in zip(experts, keys):
            evicted = None
            if self._free:
                slot = self._free.pop()
            else:
                victim = leaving[len(claims) - len(keys) + need]
                slot = self._slot_of.pop(victim)
                self.policy.removed(victim)
                evicted = divmod(victim, self.experts)
            self._slot_of[key] = slot
            self.policy.added(key)
            claims.append(Claim(e, slot, evicted))
        return claims

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
        worth = {e: self.policy.worth(base + e) for e in range(self.experts) if base + e not in self._slot_of}
        wanted = sorted((e for e in worth if worth[e] > 0), key=lambda e: (-worth[e], e))[: most or None]
        if most == 0:
            return []
        room = len(self._free)
        take, rivals = wanted[:room], wanted[room:]
        own = self._blocked(layer, ())
        for e, victim in zip(rivals, self.policy.victims(len(rivals), own)):
            if worth[e] <= self.policy.worth(victim):
                break
            take.append(e)
        return self.claim_all(layer, take)

    def _blocked(self, layer: int, protected: Iterable[int]) -> set[Key]:
        base = layer * self.experts
        blocked = {base + e for e in protected if base + e in self._slot_of}
        blocked.update(self._pins)
        return blocked


class LruPolicy:
    """Who was asked for longest ago leaves first. Below one token cycle it hits nothing; kept to compare with."""

    def __init__(self, layers: int, experts: int) -> None:
        self._experts = experts
        self._order: OrderedDict[Key, None] = OrderedDict()
        self._last = np.zeros(layers * experts)
        self._clock = 0

    def record(self, layer: int, experts: Sequence[int]) -> None:
        base = layer * self._experts
        self._clock += 1
        for e in experts:
            self._last[base + e] = self._clock
            if base + e in self._order:
                self._order.move_to_end(base + e)

    def prime(self, layer: int, rows: np.ndarray) -> None:
        base = layer * self._experts
        for row in rows.tolist():
            self._clock += 1
            self._last[[base + e for e in row]] = self._clock
        mine = [k for k in self._order if base <= k < base + self._experts]
        for key in sorted(mine, key=self._last.__getitem__):
            self._order.move_to_end(key)

    def added(self, key: Key) -> None:
        self._order[key] = None

    def removed(self, key: Key) -> None:
        del self._order[key]

    def victims(self, count: int, blocked: Collection[Key]) -> list[Key]:
        found: list[Key] = []
        for key in self._order:
            if len(found) == count:
                break
            if key not in blocked:
                found.append(key)
        return found

    def worth(self, key: Key) -> float:
        return float(self._last[key])


class DecayPolicy:
    """Decayed frequency a layer, weighed by how soon the layer's turn comes: low worth and a long way to go leaves first."""

    def __init__(self, layers: int, experts: int, gamma: float = 0.97) -> None:
        self._layers, self._experts, self._gamma = layers, experts, gamma
        self._score = np.zeros((layers, experts))
        self._resident = np.full((layers, experts), np.inf)
        self._turn = np.ones(layers)

    def record(self, layer: int, experts: Sequence[int]) -> None:
        self._score[layer] *= self._gamma
        self._score[layer, list(experts)] += 1.0
        self._turn = ((np.arange(self._layers) - layer - 1) % self._layers + 1) / self._layers
        self._refresh(layer)

    def prime(self, layer: int, rows: np.ndarray) -> None:
        age = np.arange(len(rows) - 1, -1, -1)
        weights = np.repeat(self._gamma**age, rows.shape[1])
        fresh = np.bincount(rows.reshape(-1), weights, self._experts)
        self._score[layer] = self._score[layer] * self._gamma ** len(rows) + fresh
        self._turn = np.ones(self._layers)
        self._refresh(layer)

    def _refresh(self, layer: int) -> None:
        here = np.isfinite(self._resident[layer])
        self._resident[layer][here] = self._score[layer][here]

    def added(self, key: Key) -> None:
        self._resident.flat[key] = self._score.flat[key]

    def removed(self, key: Key) -> None:
        self._resident.flat[key] = np.inf

    def victims(self, count: int, blocked: Collection[Key]) -> list[Key]:
        rank = (self._resident / self._turn[:, None]).reshape(-1)
        rank[list(blocked)] = np.inf
        count = min(count, int(np.isfinite(rank).sum()))
        return np.argsort(rank, kind="stable")[:count].tolist()

    def worth(self, key: Key) -> float:
        return float(self._score.flat[key])


class LfuPolicy(DecayPolicy):
    """How often an expert was asked for, halved every `age` recorded forwards; ties leave by number."""

    def __init__(self, layers: int, experts: int, half_life: int = 256) -> None:
        super().__init__(layers, experts, 0.5 ** (1 / half_life))

    def record(self, layer: int, experts: Sequence[int]) -> None:
        super().record(layer, experts)
        self._turn = np.ones(self._layers)


POLICIES = {"decay": DecayPolicy, "lru": LruPolicy, "lfu": LfuPolicy}


def make_policy(name: str, layers: int, experts: int) -> Policy:
    """A fresh policy by the name the settings use."""
    return POLICIES[name](layers, experts)
