"""Replay: Belady against every possible choice, the policies against Belady, and the engine's own bookkeeping."""

from __future__ import annotations

import tracemalloc
from functools import lru_cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen_chat_mlx.engine.bench.replay import CYCLES, compare, replay, slots_for
from qwen_chat_mlx.engine.offload.policy import POLICIES
from qwen_chat_mlx.engine.trace import Routes, Trace, TraceHeader, TraceWriter, read_trace

LAYERS, EXPERTS = 2, 4

asked = st.lists(st.integers(0, EXPERTS - 1), min_size=1, max_size=2, unique=True)


def trace_of(forwards: list[tuple[int, list[int]]], prompt: list[list[list[int]]] | None = None) -> Trace:
    routes = [
        Routes(0, layer, "prompt", tuple(tuple(sorted(r)) for r in rows)) for layer, rows in enumerate(prompt or [])
    ]
    routes += [Routes(i, layer, "plain", (tuple(sorted(ids)),)) for i, (layer, ids) in enumerate(forwards)]
    return Trace(TraceHeader(LAYERS, EXPERTS, 2), (), tuple(routes))


def fewest_misses(forwards: list[tuple[int, list[int]]], slots: int) -> int:
    """By trying every set of victims at every forward."""

    @lru_cache(None)
    def best(i: int, held: frozenset[int]) -> int:
        if i == len(forwards):
            return 0
        layer, ids = forwards[i]
        keys = {layer * EXPERTS + e for e in ids}
        missing = keys - held
        need = max(0, len(held) + len(missing) - slots)
        return len(missing) + min(best(i + 1, held - set(v) | keys) for v in combinations(sorted(held - keys), need))

    return best(0, frozenset())


@given(forwards=st.lists(st.tuples(st.integers(0, LAYERS - 1), asked), max_size=9), slots=st.integers(2, 5))
@settings(max_examples=30, deadline=None)
def test_belady_has_as_few_misses_as_any_choice(forwards: list[tuple[int, list[int]]], slots: int) -> None:
    result = replay(trace_of(forwards), "belady", slots)
    assert result.misses == fewest_misses(forwards, slots)
    assert result.hits + result.misses == sum(len(ids) for _, ids in forwards)


@given(forwards=st.lists(st.tuples(st.integers(0, LAYERS - 1), asked), max_size=30), slots=st.integers(2, 8))
@settings(max_examples=20, deadline=None)
def test_no_policy_beats_belady(forwards: list[tuple[int, list[int]]], slots: int) -> None:
    trace = trace_of(forwards)
    best = replay(trace, "belady", slots)
    for policy in POLICIES:
        result = replay(trace, policy, slots)
        assert result.misses >= best.misses
        assert result.misses - result.evictions <= slots


def cyclic(tokens: int = 120, layers: int = 6, experts: int = 16, seed: int = 0) -> Trace:
    """A made-up text: every layer has favourites that drift."""
    rng = np.random.default_rng(seed)
    taste = rng.dirichlet(np.full(experts, 0.3), layers)
    routes = []
    for t in range(tokens):
        taste = 0.98 * taste + 0.02 * rng.dirichlet(np.full(experts, 0.3), layers)
        for layer in range(layers):
            ids = rng.choice(experts, 3, replace=False, p=taste[layer] * 0.9 + 0.1 / experts)
            routes.append((t, layer, tuple(sorted(ids.tolist()))))
    prompt = [
        Routes(0, layer, "prompt", tuple(ids for t, la, ids in routes if la == layer and t < 20))
        for layer in range(layers)
    ]
    decode = [Routes(t, layer, "plain", (ids,)) for t, layer, ids in routes if t >= 20]
    return Trace(TraceHeader(layers, experts, 3), (), (*prompt, *decode))


@pytest.mark.parametrize("seed", [0, 1])
def test_the_default_keeps_up_with_every_policy_at_every_size(seed: int) -> None:
    trace = cyclic(seed=seed)
    table = {row[0].policy: [r.hits for r in row] for row in compare(trace)}
    assert set(table) == {*POLICIES, "belady"}
    for i, _ in enumerate(CYCLES):
        assert table["decay"][i] >= 0.9 * max(table[p][i] for p in POLICIES)
        assert table["belady"][i] >= max(table[p][i] for p in POLICIES)
    assert table["decay"][0] > 1.2 * table["lru"][0]


def test_a_hand_over_saves_misses_at_the_start() -> None:
    warm = cyclic()
    cold = Trace(warm.header, (), tuple(r for r in warm.routes if r.kind != "prompt"))
    slots = slots_for(warm, 3)
    a, b = replay(warm, "decay", slots), replay(cold, "decay", slots)
    assert a.handed_over > 0 == b.handed_over
    assert a.early_misses < 0.9 * b.early_misses


def test_everything_resident_misses_each_expert_once_at_most() -> None:
    trace = cyclic()
    for policy in (*POLICIES, "belady"):
        result = replay(trace, policy, 96)
        assert result.evictions == 0
        assert result.misses + result.handed_over <= 96


def test_with_room_for_everybody_belady_takes_from_a_prompt_whoever_comes_up() -> None:
    routes = (Routes(0, 0, "plain", ((1,),)), Routes(1, 1, "prompt", ((2, 3),)), Routes(2, 1, "plain", ((2,),)))
    assert replay(Trace(TraceHeader(2, 4, 2), (), routes), "belady", 8).misses == 1


def test_belady_remembers_what_was_asked_for_and_not_every_expert_at_every_forward() -> None:
    routes = tuple(Routes(i, 0, "plain", ((i % 50,),)) for i in range(400))
    trace = Trace(TraceHeader(1, 1 << 14, 1), (), routes)
    tracemalloc.start()
    try:
        assert replay(trace, "belady", 25).hits > 0
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()


def test_sizes_stay_between_top_k_and_everything() -> None:
    trace = cyclic()
    assert slots_for(trace, 0.001) == 3
    assert slots_for(trace, 1000) == 96
    assert slots_for(trace, 1) == 18
    assert slots_for(trace, 1, "draft") == 3


def test_a_union_larger_than_the_pool_runs_in_waves() -> None:
    trace = Trace(TraceHeader(1, 6, 2), (), (Routes(0, 0, "verify", ((0, 1), (2, 3), (4, 5))),) * 3)
    for policy in (*POLICIES, "belady"):
        result = replay(trace, policy, 2)
        assert result.hits + result.misses == 18
        assert result.misses >= 14


def test_pools_are_replayed_apart() -> None:
    both = Trace(
        TraceHeader(2, 4, 1), (),
        (Routes(0, 1, "plain", ((2,),)), Routes(0, 0, "draft", ((1,),), "draft"), Routes(1, 0, "draft", ((1,),), "draft")),
    )  # fmt: skip
    assert replay(both, "decay", 4).misses == 1
    drafts = replay(both, "decay", 4, "draft")
    assert (drafts.hits, drafts.misses) == (1, 1)


def test_an_empty_trace_has_no_rate() -> None:
    empty = Trace(TraceHeader(2, 4, 1), (), ())
    assert replay(empty, "belady", 1).hit_rate is None


def test_a_written_trace_replays_like_the_one_in_memory(tmp_path: Path) -> None:
    trace = cyclic(tokens=30)
    with TraceWriter(tmp_path / "t", trace.header) as writer:
        for r in trace.routes:
            writer.routes(r.step, r.layer, r.kind, r.rows, r.pool)
    assert compare(read_trace(tmp_path / "t")) == compare(trace)
