"""Rounds: the text of plain decoding whatever is drafted, and states as if rejected drafts had never been there."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from qwen_chat_mlx.engine.cache.base import arrays_of
from qwen_chat_mlx.engine.errors import Cancelled, StorageError
from qwen_chat_mlx.engine.types import Sampling

SAMPLED = Sampling(temperature=0.9, top_k=40, top_p=0.95, presence_penalty=0.5, repetition_penalty=1.1, seed=11)


def ids_of(session: Any, prompt: list[int], count: int, sampling: Sampling | None = None) -> list[int]:
    return [t for s in session.generate(prompt, count, sampling=sampling, ignore_eos=True) for t in s.tokens]


def states(session: Any) -> list[np.ndarray]:
    """Everything the trunk remembers, growing buffers cut to what counts."""
    found: list[np.ndarray] = []
    for cache in session.caches:
        for part in getattr(cache, "parts", {"": cache}).values():
            if hasattr(part, "keys"):
                found += [np.array(part.keys.valid()), np.array(part.values.valid())]
                found += [np.array(part.index._raw.valid())]
                found += [np.array(part.index.pooled())] if part.index.blocks else []
            else:
                found += [np.array(a) for a in part.arrays()]
    return found


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("k", "length"),
    [(1, 6), (3, 70), *(pytest.param(k, n, marks=SLOW) for k, n in ((1, 70), (2, 6), (2, 70), (3, 6)))]
    + [pytest.param(k, n, marks=SLOW) for k, n in ((4, 6), (4, 70), (5, 6), (5, 70))],
)
def test_after_every_rewind_all_states_are_those_of_single_steps(
    tiny: Any, open_session: Callable[..., Any], scripted: Callable[..., Any], k: int, length: int
) -> None:
    prompt = tiny.prompt[:length]
    plain = open_session(tiny, expert_cache="100 %")
    truth = [*prompt, *ids_of(plain, prompt, 40)]
    session = open_session(tiny, mtp="fixed", max_draft=k, expert_cache="100 %")
    scripted(session, truth, lambda r: r % (k + 1))
    kept: set[int] = set()
    keep = session._rounds._keep

    plain.prompt(prompt)

    def compare() -> None:
        for token in session.tokens[plain.position :]:
            plain.step(token)
        for got, want in zip(states(session), states(plain), strict=True):
            np.testing.assert_array_equal(got, want)

    def compare_after(rows: int, *rest: Any) -> float:
        took = keep(rows, *rest)
        kept.add(rows)
        compare()
        return took

    session._rounds._keep = compare_after
    count = (k + 1) * (k + 2) // 2 + k + 4
    assert ids_of(session, prompt, count) == truth[length : length + count]
    assert kept >= set(range(1, k + 2)), "every number of rows kept must have been seen"
    compare()
    np.testing.assert_array_equal(*(np.array(s.model.head(_one(s, 7))) for s in (session, plain)))


def _one(session: Any, token: int) -> Any:
    return session.forward.token_major(session.caches, session.tokens[-16:], [token])


def test_a_rewind_uses_no_expert_no_weight_and_no_disk(
    tiny: Any, open_session: Callable[..., Any], scripted: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from qwen_chat_mlx.engine.offload.experts import ExpertStore
    from qwen_chat_mlx.engine.offload.reader import Reader
    from qwen_chat_mlx.engine.speculate.round import Rounds

    truth = [*tiny.prompt, *ids_of(open_session(tiny), tiny.prompt, 30)]
    session = open_session(tiny, mtp="fixed", max_draft=3)
    scripted(session, truth, lambda r: r % 4)
    keep, ran = Rounds._keep, []

    def guarded(self: Any, *args: Any) -> float:
        def refuse(*_: Any, **__: Any) -> Any:
            raise AssertionError("a rewind took the long way")

        with monkeypatch.context() as m:
            m.setattr(ExpertStore, "run", refuse)
            m.setattr(Reader, "submit", refuse)
            m.setattr(session.forward, "token_major", refuse)
            m.setattr(session.model, "head", refuse)
            ran.append(1)
            return keep(self, *args)

    monkeypatch.setattr(Rounds, "_keep", guarded)
    assert ids_of(session, tiny.prompt, 24) == truth[len(tiny.prompt) :][:24]
    assert len(ran) >= 6


CACHES = ("exactly top-k", "25 %", "100 %")


@pytest.mark.parametrize(
    ("k", "cache"),
    [(3, "exactly top-k"), (5, "25 %")] + [pytest.param(k, c, marks=SLOW) for k in (1, 2, 3, 4, 5) for c in CACHES],
)
def test_strict_greedy_and_sampled_ids_are_those_of_plain_decoding(
    layout: Any, open_session: Callable[..., Any], scripted: Callable[..., Any], cache: str, k: int
) -> None:
    plain = open_session(layout)
    pool = plain.loaded.survey.needs.experts
    budget = pool.top_k * pool.slot_bytes if cache == "exactly top-k" else cache
    policy = ("lru", "decay", "lfu")[k % 3]
    for sampling in (None, SAMPLED):
        truth = [*layout.prompt, *ids_of(plain, layout.prompt, 24, sampling)]
        session = open_session(layout, mtp="fixed", max_draft=k, expert_cache=budget, policy=policy, prefill_step=7 * k)
        scripted(session, truth, lambda r: (r * 7) % (k + 1))
        assert ids_of(session, layout.prompt, 24, sampling) == truth[len(layout.prompt) :]
        drafts = session.stats().drafts
        assert 0 < drafts.accepted < drafts.proposed
        assert drafts.committed + drafts.plain_steps + 1 == 24


def test_where_bits_depend_on_the_row_count_strict_still_equals_plain_and_batched_does_not(
    tiny: Any, open_session: Callable[..., Any], scripted: Callable[..., Any], count_rows: Callable[[float], None]
) -> None:
    count_rows(0.02)
    settings: dict[str, Any] = {"prefill_step": 1, "layer_major_threshold": 1 << 30}
    truth = [*tiny.prompt, *ids_of(open_session(tiny, **settings), tiny.prompt, 24)]
    told: dict[str, list[int]] = {}
    for verify in ("strict", "batched"):
        session = open_session(tiny, mtp="fixed", max_draft=3, verify=verify, **settings)
        assert session.forward.exact_rows == frozenset(), "rows that differ must not be taken for equal"
        scripted(session, truth, lambda r: r % 4)
        told[verify] = ids_of(session, tiny.prompt, 24)
    assert told["strict"] == truth[len(tiny.prompt) :]
    assert told["batched"] != told["strict"]


def test_on_this_device_rows_share_products_only_after_proof(tiny: Any, open_session: Callable[..., Any]) -> None:
    session = open_session(tiny, mtp="fixed", max_draft=3)
    assert session.forward.exact_rows <= {2, 3, 4}
    assert open_session(tiny, mtp="fixed", max_draft=3, verify="batched").forward.exact_rows == frozenset()


def test_a_stop_id_inside_a_round_ends_the_timeline_before_it(
    tiny: Any, open_session: Callable[..., Any], scripted: Callable[..., Any]
) -> None:
    plain = open_session(tiny)
    reply = ids_of(plain, tiny.prompt, 12)
    truth = [*tiny.prompt, *reply]
    session = open_session(tiny, mtp="fixed", max_draft=5)
    scripted(session, truth, lambda _: 5)
    sampler = _greedy_sampler(session, tiny.prompt)
    logits, _ = session.prompt(tiny.prompt)
    stop = reply[3]
    got = [t for s in session.steps(logits, sampler, 12, {stop}) for t in s.tokens]
    assert got == reply[: reply.index(stop) + 1]
    assert session.tokens == [*tiny.prompt, *got[:-1]]


@pytest.mark.parametrize(
    "taken", [pytest.param(0, marks=SLOW), 1, pytest.param(2, marks=SLOW), 3, pytest.param(4, marks=SLOW)]
)
def test_a_consumer_that_takes_only_part_of_a_step_leaves_exactly_that_part(
    tiny: Any, open_session: Callable[..., Any], scripted: Callable[..., Any], taken: int
) -> None:
    truth = [*tiny.prompt, *ids_of(open_session(tiny), tiny.prompt, 30)]
    session = open_session(tiny, mtp="fixed", max_draft=3)
    scripted(session, truth, lambda _: 3)
    logits, _ = session.prompt(tiny.prompt)
    steps = session.steps(logits, _greedy_sampler(session, tiny.prompt), 30, ())
    first, step = next(steps), next(steps)
    assert len(step.tokens) == 4
    with pytest.raises(StopIteration):
        steps.send(taken) if taken < 4 else (steps.close(), next(steps))
    told = [*first.tokens, *step.tokens[:taken]]
    assert session.tokens == [*tiny.prompt, *told][: len(tiny.prompt) + taken]
    session.mark()
    session._rounds.drafter.choose = type(session._rounds.drafter).choose.__get__(session._rounds.drafter)
    more = [*tiny.prompt, *told, 9, 9, 9]
    assert ids_of(session, more, 8) == ids_of(open_session(tiny), more, 8)


def _greedy_sampler(session: Any, prompt: list[int]) -> Any:
    from qwen_chat_mlx.engine.sampling import Sampler

    return Sampler(Sampling(temperature=0.0), session.loaded.survey.shape.vocab, prompt)


@pytest.mark.parametrize("stage", ["draft", "verify"])
@pytest.mark.parametrize("kind", ["cancel", "disk"])
def test_an_error_inside_a_round_leaves_the_state_before_it(
    tiny: Any, open_session: Callable[..., Any], scripted: Callable[..., Any], stage: str, kind: str
) -> None:
    reference = ids_of(open_session(tiny), tiny.prompt, 24)
    truth = [*tiny.prompt, *reference]
    session = open_session(tiny, mtp="fixed", max_draft=3)
    scripted(session, truth, lambda r: r % 4)
    steps = session.generate(tiny.prompt, 24, ignore_eos=True)
    got = [t for s in itertools.islice(steps, 4) for t in s.tokens]
    store = session.loaded.draft_store if stage == "draft" else session.loaded.store
    run, calls = store.run, []

    def fail(*args: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise Cancelled("stop") if kind == "cancel" else StorageError("the disk is gone")
        return run(*args, **more)

    store.run = fail
    with pytest.raises((Cancelled, StorageError)):
        got.extend(t for s in steps for t in s.tokens)
    store.run = run
    assert session.tokens == truth[: session.position]
    session.mark()
    more = truth[: session.position + 2]
    assert ids_of(session, more, 10) == ids_of(open_session(tiny), more, 10)
    mx.eval(arrays_of(session.caches))


def test_switching_every_seven_tokens_changes_no_id_and_leaves_no_hole(
    tiny: Any, open_session: Callable[..., Any], scripted: Callable[..., Any]
) -> None:
    truth = [*tiny.prompt, *ids_of(open_session(tiny), tiny.prompt, 70)]
    session = open_session(tiny, mtp="fixed", max_draft=3)
    scripted(session, truth, lambda r: 2 + r % 2)
    got: list[int] = []
    last = 0
    for step in session.generate(tiny.prompt, 70, ignore_eos=True):
        got += step.tokens
        if len(got) // 7 > last:
            last = len(got) // 7
            session.set_mtp("off" if last % 2 else "fixed")
    assert got == truth[len(tiny.prompt) :]
    drafter = session._rounds.drafter
    assert drafter.holes == 0
    assert session.stats().drafts.plain_steps > 20
    drafter.fill(session.tokens)
    assert drafter.cache.position == session.position - 1


def test_beyond_the_budget_of_kept_rows_the_draft_cache_starts_anew_and_says_so(
    tiny: Any, open_session: Callable[..., Any]
) -> None:
    session = open_session(tiny, mtp="off")
    drafter = session._rounds.drafter
    drafter._keep_bytes = 4 * session.loaded.survey.needs.wide_bytes
    reference = ids_of(open_session(tiny), tiny.prompt, 30)
    got: list[int] = []
    for step in session.generate(tiny.prompt, 30, ignore_eos=True):
        got += step.tokens
        if len(got) == 20:
            session.set_mtp("fixed")
    assert got == reference
    assert drafter.holes == 1
