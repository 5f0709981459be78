"""Rows through the layers: the same bits whatever was resident, whoever left, whatever arrived first; and no byte twice."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen_chat_mlx.engine import prefill
from qwen_chat_mlx.engine.prefill import chunk_ends

NEVER, ALWAYS = 1 << 30, 1


def new_caches(session: Any) -> list[Any]:
    return [layer.new_cache() for layer in session.model.layers]


def through(session: Any, caches: list[Any], before: list[int], ids: list[int], **how: Any) -> np.ndarray:
    wide = session.forward.token_major(caches, before, ids, **how)
    mx.eval(wide, [c.arrays() for c in caches])
    return np.array(wide)


# ---- equal bits


def test_logits_have_the_same_bits_under_every_cache_policy_order_and_arrival(
    layout: Any, disk: Any, open_session: Callable[..., Any]
) -> None:
    ids = layout.prompt[:30]
    expected = open_session(layout, expert_cache="100 %", prefill_step=20, layer_major_threshold=NEVER).score(ids)
    late = random.Random(0)
    disk.before = lambda kind, number: time.sleep(late.random() / 500) if kind != "weights" else None
    for cache, policy, threshold, direct in (
        ("24 KiB", "lru", NEVER, "off"),
        ("25 %", "lfu", NEVER, "on"),
        ("25 %", "decay", ALWAYS, "on"),
        ("60 %", "lru", ALWAYS, "off"),
    ):
        session = open_session(
            layout,
            expert_cache=cache,
            policy=policy,
            prefill_step=20,
            layer_major_threshold=threshold,
            direct_io=direct,
        )
        for _ in range(2):
            np.testing.assert_array_equal(session.score(ids), expected)


def test_experts_grouped_and_ungrouped_give_the_same_bits(layout: Any, open_session: Callable[..., Any]) -> None:
    session = open_session(layout)
    wide = [through(session, new_caches(session), [], layout.prompt, together=how) for how in (True, False, None)]
    np.testing.assert_array_equal(wide[0], wide[1])
    np.testing.assert_array_equal(wide[0], wide[2])


def test_rows_kept_apart_give_the_bits_of_single_steps(layout: Any, open_session: Callable[..., Any]) -> None:
    session, ids = open_session(layout), layout.prompt
    both = []
    for apart in (True, False):
        caches = new_caches(session)
        through(session, caches, [], ids[:30])
        if apart:
            both.append(through(session, caches, ids[:30], ids[30:36], apart=True))
        else:
            both.append(np.concatenate([through(session, caches, ids[:i], [ids[i]]) for i in range(30, 36)]))
    np.testing.assert_array_equal(both[0], both[1])


@pytest.mark.parametrize("threshold", [NEVER, ALWAYS])
def test_chunks_shorter_than_an_n_gram_still_see_all_of_it(
    tiny: Any, open_session: Callable[..., Any], threshold: int
) -> None:
    cut = tiny.prompt.index(3)
    ids = tiny.prompt[cut - 4 : cut + 5]
    whole = open_session(tiny).score(ids)
    for step in (1, 2):
        session = open_session(tiny, prefill_step=step, layer_major_threshold=threshold)
        assert np.abs(session.score(ids) - whole).max() <= 2e-4


# ---- no byte twice


def test_a_layer_major_prompt_reads_each_expert_exactly_once(
    layout: Any, disk: Any, open_session: Callable[..., Any]
) -> None:
    session = open_session(layout, layer_major_threshold=ALWAYS, prefill_step=7)
    disk.forget()
    session.score(layout.prompt)
    stats = session.stats().experts
    total = session.loaded.survey.layout.total_bytes
    assert disk.read_bytes["experts"] == stats.read_bytes == total
    assert stats.layer_reads == stats.total == 32
    assert stats.misses == 0
    assert 0 < stats.handed_over <= stats.slots


def test_experts_handed_over_by_a_prompt_are_used_by_the_reply(layout: Any, open_session: Callable[..., Any]) -> None:
    session = open_session(layout, layer_major_threshold=ALWAYS, expert_cache="50 %")
    logits, _ = session.prompt(layout.prompt)
    before = session.stats().experts
    mx.eval(session.step(int(mx.argmax(logits).item())))
    after = session.stats().experts
    assert before.resident == before.slots == 16
    assert after.hits - before.hits > after.misses - before.misses


def test_with_every_expert_resident_nothing_is_read(layout: Any, disk: Any, open_session: Callable[..., Any]) -> None:
    for threshold in (NEVER, ALWAYS):
        session = open_session(layout, expert_cache="100 %", layer_major_threshold=threshold)
        for layer in range(4):
            x = mx.ones((1, 64))
            session.loaded.store.run(layer, [x], [np.arange(8, dtype=np.int32)[None]], together=False)
        disk.forget()
        disk.before = lambda kind, number: pytest.fail("read an expert") if kind == "experts" else None
        session.score(layout.prompt)
        for token in session.generate(layout.prompt, 3, ignore_eos=True):
            assert token
        assert disk.reads["experts"] == 0
        disk.before = lambda kind, number: None


def test_the_next_layer_is_on_its_way_before_a_layer_is_computed(tiny: Any, open_session: Callable[..., Any]) -> None:
    session = open_session(tiny, layer_major_threshold=ALWAYS)
    loaded: list[set[int]] = []
    session.forward.on_routes = lambda layer, _: loaded.append({b.layer for b in session.forward.buffers})
    session.score(tiny.prompt)
    assert loaded == [{0, 1}, {1, 2}, {2, 3}, {2, 3}]


def test_while_a_resident_layer_is_computed_the_next_one_that_is_not_is_read(
    tiny: Any, open_session: Callable[..., Any]
) -> None:
    session = open_session(tiny, layer_major_threshold=ALWAYS, expert_cache="50 %")
    store = session.loaded.store
    for layer in (0, 1):
        store.run(layer, [mx.ones((1, 64))], [np.arange(8, dtype=np.int32)[None]], together=False)
    loaded: list[set[int]] = []
    session.forward.on_routes = lambda layer, _: loaded.append({b.layer for b in session.forward.buffers} - {-1})
    assert np.abs(session.score(tiny.prompt) - tiny.logits).max() <= 2e-4
    assert loaded[0] == {2}
    assert {2, 3} <= loaded[2]


@pytest.mark.parametrize("buffers", [0, 1, 2])
def test_a_prompt_takes_whatever_layer_buffers_there_are(
    tiny: Any, disk: Any, open_session: Callable[..., Any], buffers: int
) -> None:
    session = open_session(tiny, layer_major_threshold=ALWAYS)
    session.forward.buffers = session.forward.buffers[:buffers]
    disk.forget()
    assert np.abs(session.score(tiny.prompt) - tiny.logits).max() <= 2e-4
    assert (session.stats().experts.layer_reads == 32) == (buffers > 0)
    if buffers:
        assert disk.read_bytes["experts"] == session.loaded.survey.layout.total_bytes


def test_a_prompt_longer_than_the_window_goes_through_in_several(
    tiny: Any, disk: Any, open_session: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill, "PREFILL_WINDOW", 30)
    session = open_session(tiny, layer_major_threshold=ALWAYS, prefill_step=10)
    disk.forget()
    assert np.abs(session.score(tiny.prompt) - tiny.logits).max() <= 2e-4
    assert disk.read_bytes["experts"] == 3 * session.loaded.survey.layout.total_bytes


def test_table_rows_are_read_once_and_kept(tiny: Any, disk: Any, open_session: Callable[..., Any]) -> None:
    session = open_session(tiny)
    disk.forget()
    session.score(tiny.prompt)
    first = disk.read_bytes["rows"]
    distinct = len(np.unique(session.forward._tables[0][0].hash.rows([], tiny.prompt)))
    assert first == distinct * 4
    session.score(tiny.prompt)
    assert disk.read_bytes["rows"] == first


# ---- chunks and progress


@given(st.integers(1, 60), st.integers(1, 70), st.lists(st.integers(-3, 65)))
def test_chunks_end_at_every_cut_and_are_no_longer_than_the_step(total: int, step: int, cuts: list[int]) -> None:
    ends = chunk_ends(total, step, cuts)
    assert ends[-1] == total
    assert all(0 < b - a <= step for a, b in pairwise([0, *ends]))
    assert {c for c in cuts if 0 < c < total} <= set(ends)


@pytest.mark.parametrize("threshold", [NEVER, ALWAYS])
def test_progress_only_grows_and_ends_at_all_tokens(
    tiny: Any, open_session: Callable[..., Any], threshold: int
) -> None:
    session = open_session(tiny, layer_major_threshold=threshold, prefill_step=16)
    told: list[float] = []
    session.prompt(tiny.prompt, progress=lambda done, phase: told.append(done) if phase == "prompt" else None)
    assert all(a <= b for a, b in pairwise(told))
    assert told[-1] == 70
    assert len(told) == (5 if threshold == NEVER else 20)


# ---- nobody reads the routers


def test_with_every_expert_resident_no_router_is_read_back_in_decode(
    layout: Any, open_session: Callable[..., Any], continued: Any
) -> None:
    one_a_layer = open_session(layout, expert_cache="50 %", mtp="fixed", max_draft=2, verify="strict")
    none = open_session(layout, expert_cache="100 %", mtp="fixed", max_draft=2, verify="strict")
    texts, read = [], []
    for session in (one_a_layer, none):
        session.prompt(layout.prompt)
        before = session.stats()
        text = continued(session, layout.prompt, 20)
        after = session.stats()
        texts.append(text)
        # The prompt is gone through again from a mark: its chunk has more rows than are left unread.
        read.append(
            (after.experts.syncs - before.experts.syncs, after.draft_experts.syncs - before.draft_experts.syncs)
        )
        assert after.drafts.rounds > 0
    assert texts[0] == texts[1] == layout.greedy[:20]
    assert read[1][0] <= 4 < read[0][0]
    assert read[1][1] <= 1
    stats = none.stats().experts
    assert (stats.misses, stats.resident) == (0, 32)


def test_hits_are_the_same_whether_routers_are_read_or_not(layout: Any, open_session: Callable[..., Any]) -> None:
    session = open_session(layout, expert_cache="100 %")
    hits = []
    for listener in (None, lambda layer, ids: None):
        session.forward.on_routes = listener
        session.prompt(layout.prompt)
        before = session.stats().experts.hits
        for token in (5, 6, 7):
            mx.eval(session.step(token))
        hits.append(session.stats().experts.hits - before)
    assert hits[0] == hits[1] > 0
