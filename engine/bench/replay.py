"""Replays a trace against cache policies: the engine's own slot book and policies, and Belady, who knows the future.

Reads nothing but the trace and prints nothing; time and bytes are not simulated, only who was there when asked for.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np

from ..offload.policy import POLICIES, Policy, SlotTable, make_policy
from ..offload.ranks import LayerRanks
from ..trace import Pool, Routes, Trace

__all__ = ["CYCLES", "Belady", "ReplayResult", "compare", "replay", "slots_for"]

CYCLES = (0.75, 1.5, 2.0, 3.0, 5.0, 8.0)
"""Pool sizes in token cycles: one cycle holds the experts that one token asks for."""

BELADY = "belady"


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What one policy with one pool made of a trace. Lookups are distinct (layer, expert) of each forward of a decode."""

    policy: str
    slots: int
    hits: int
    misses: int
    evictions: int
    handed_over: int
    early_misses: int
    """Misses of the first 32 decode forwards."""

    @property
    def hit_rate(self) -> float | None:
        """0..1; None for a trace without decoding."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else None


class Belady:
    """Evicts who is asked for again last, or never: no policy with the same slots has more hits.

    Made for one pass over `routes`, which have to come in the same order. From a prompt, which reads whole layers, it
    keeps what comes up soonest, asked for by the prompt or not.
    """

    def __init__(self, routes: Sequence[Routes], layers: int, experts: int) -> None:
        self._ranks = LayerRanks(layers, experts)
        self.added, self.removed = self._ranks.added, self._ranks.removed
        self._offset = np.zeros(layers)
        self._never = float(len(routes))
        self._next = np.full((layers, experts), self._never)
        """When each expert is asked for next, as far as the pass has come."""
        self._later: list[np.ndarray] = []
        """Of each decode forward's union, the first one last, when it is asked for again."""
        for i in range(len(routes) - 1, -1, -1):
            r = routes[i]
            if r.kind != "prompt":
                union = _union(r)
                self._later.append(self._next[r.layer, union])
                self._next[r.layer, union] = i

    def record(self, layer: int, experts: Sequence[int]) -> None:
        self._next[layer, list(experts)] = self._later.pop()
        self._ranks.put(layer, self._next[layer])

    def prime(self, layer: int, rows: np.ndarray) -> None:
        self._ranks.put(layer, self._next[layer])

    def evict(self, count: int, layer: int, protected: Sequence[int], pinned: Container[int]) -> list[int]:
        return self._ranks.evict(count, layer, protected, pinned, self._offset)

    def worth(self, layer: int) -> np.ndarray:
        return self._never - self._ranks.value[layer]


def slots_for(trace: Trace, cycles: float, pool: Pool = "trunk") -> int:
    """Slots of a pool of so many token cycles: at least a layer's top_k, at most every expert."""
    h = trace.header
    layers = h.layers if pool == "trunk" else 1
    return min(max(int(cycles * layers * h.top_k), h.top_k), layers * h.experts)


def replay(trace: Trace, policy: str, slots: int, pool: Pool = "trunk") -> ReplayResult:
    """Feed a trace to a policy ("belady" or a name of POLICIES) over a pool of `slots`, empty at first.

    Prompts go through layer by layer and hand over as the engine does; every other forward looks its union up, and each
    miss is claimed, in waves where the union exceeds the slots.
    """
    h = trace.header
    layers = h.layers if pool == "trunk" else 1
    routes = [r for r in trace.routes if r.pool == pool]
    offline = policy == BELADY
    ranks: Policy = Belady(routes, layers, h.experts) if offline else make_policy(policy, layers, h.experts)
    table = SlotTable(slots, layers, h.experts, ranks)
    most = None if offline else -(-slots // layers)
    hits = misses = evictions = handed_over = early = forwards = 0
    for r in routes:
        if r.kind == "prompt":
            table.prime(r.layer, np.array(r.rows))
            claims = table.hand_over(r.layer, most)
            handed_over += len(claims)
            evictions += sum(c.evicted is not None for c in claims)
            continue
        union = _union(r)
        found = table.lookup(r.layer, union)
        hits += len(found.hits)
        misses += len(found.misses)
        early += len(found.misses) if forwards < 32 * layers else 0
        forwards += 1
        for wave in table.waves(r.layer, union):
            absent = [e for e in wave if table.slot(r.layer, e) is None]
            evictions += sum(c.evicted is not None for c in table.claim_all(r.layer, absent, wave))
    return ReplayResult(policy, slots, hits, misses, evictions, handed_over, early)


def compare(
    trace: Trace,
    policies: Sequence[str] = (*POLICIES, BELADY),
    slots: Sequence[int] | None = None,
    pool: Pool = "trunk",
) -> list[list[ReplayResult]]:
    """One list a policy, one result a size; without `slots` the sizes are CYCLES."""
    sizes = [slots_for(trace, c, pool) for c in CYCLES] if slots is None else list(slots)
    return [[replay(trace, policy, n, pool) for n in sizes] for policy in policies]


def _union(r: Routes) -> list[int]:
    return sorted(set().union(*r.rows))
