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
    tiny: Any, plain: Any, open_session: Callable[..., Any], scripted: Callable[..., Any], k: int, length: int
) -> None:
    prompt = tiny.prompt[:length]
    truth = plain.with_reply(prompt, 40)
    session = open_session(tiny, mtp="fixed", max_draft=k, expert_cache="100 %", verify="strict")
    if length < 10:
        # As where no number of rows has the bits of single ones: they go through the layers one by one.
        session.forward.prove_rows, session.forward._exact_rows = None, frozenset()
    scripted(session, truth, lambda r: r % (k + 1))
    kept: set[int] = set()
    keep = session._rounds._keep
    single = plain.session
    # From the start: the prompt has to be computed in the pieces of the other session.
    single.rewind(single._marks[0])
    single.prompt(prompt)

    def compare() -> None:
        for token in session.tokens[single.position :]:
            single.step(token)
        for got, want in zip(states(session), states(single), strict=True):
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
    np.testing.assert_array_equal(*(np.array(s.model.head(_one(s, 7))) for s in (session, single)))


def _one(session: Any, token: int) -> Any:
    return session.forward.token_major(session.caches, session.tokens[-16:], [token])


def test_a_rewind_uses_no_expert_no_weight_and_no_disk(
    tiny: Any,
    plain: Any,
    open_session: Callable[..., Any],
    scripted: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from qwen_chat_mlx.engine.offload.experts import ExpertStore
    from qwen_chat_mlx.engine.offload.reader import Reader
    from qwen_chat_mlx.engine.speculate.round import Rounds

    truth = plain.with_reply(tiny.prompt, 30)
    session = open_session(tiny, mtp="fixed", max_draft=3)
    scripted(session, truth, lambda r: r % 4)
    keep, ran = Rounds._keep, []

    def guarded(self: Any, *args: Any) -> float:
        def refuse(*_: Any, **__: Any) -> Any:
            raise AssertionError("a rewind took the long way")

        with monkeypatch.context() as m:
            m.setattr(ExpertStore, "run", refuse)
            m.setattr(ExpertStore, "run_unread", refuse)
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
    [(3, "exactly top-k")] + [pytest.param(k, c, marks=SLOW) for k in (1, 2, 3, 4, 5) for c in CACHES],
)
def test_strict_greedy_and_sampled_ids_are_those_of_plain_decoding(
    layout: Any, plain_of: Callable[..., Any], open_session: Callable[..., Any], scripted: Callable[..., Any],
    cache: str, k: int,
) -> None:  # fmt: skip
    plain = plain_of(layout)
    pool = plain.session.loaded.survey.needs.experts
    budget = pool.top_k * pool.slot_bytes if cache == "exactly top-k" else cache
    policy = ("lru", "decay", "lfu")[k % 3]
    session = open_session(
        layout, mtp="fixed", max_draft=k, expert_cache=budget, policy=policy, prefill_step=7 * k, verify="strict"
    )
    script = scripted(session, (), lambda r: (r * 7) % (k + 1))
    for turn, sampling in enumerate((None, SAMPLED), 1):
        script.truth = plain.with_reply(layout.prompt, 16, sampling)
        assert ids_of(session, layout.prompt, 16, sampling) == script.truth[len(layout.prompt) :]
        drafts = session.stats().drafts
        assert 0 < drafts.accepted < drafts.proposed
        assert drafts.committed + drafts.plain_steps + turn == 16 * turn


def test_where_bits_depend_on_the_row_count_strict_still_equals_plain_and_batched_does_not(
    tiny: Any, open_session: Callable[..., Any], scripted: Callable[..., Any], count_rows: Callable[[float], None]
) -> None:
    count_rows(0.02)
    settings: dict[str, Any] = {"prefill_step": 1, "layer_major_threshold": 1 << 30}
    prompt = tiny.prompt[:16]
    truth = [*prompt, *ids_of(open_session(tiny, **settings), prompt, 16)]
    told: dict[str, list[int]] = {}
    for verify in ("strict", "batched"):
        session = open_session(tiny, mtp="fixed", max_draft=3, verify=verify, **settings)
        assert session.forward.exact_rows == frozenset(), "rows that differ must not be taken for equal"
        scripted(session, truth, lambda r: r % 4)
        told[verify] = ids_of(session, prompt, 16)
    assert told["strict"] == truth[len(prompt) :]
    assert told["batched"] != told["strict"]


def test_on_this_device_rows_share_products_only_after_proof(tiny: Any, open_session: Callable[..., Any]) -> None:
    session = open_session(tiny, mtp="fixed", max_draft=3)
    assert session.forward.exact_rows <= {2, 3, 4}
    assert open_session(tiny, mtp="fixed", max_draft=3, verify="batched").forward.exact_rows == frozenset()


def test_whether_a_number_of_rows_is_proven_does_not_depend_on_the_others_asked_about(
    tiny: Any, open_session: Callable[..., Any]
) -> None:
    few, many = (open_session(tiny, mtp="fixed", max_draft=k).forward.exact_rows for k in (1, 3))
    assert many & {2} == few


def test_a_stop_id_inside_a_round_ends_the_timeline_before_it(
    tiny: Any, plain: Any, open_session: Callable[..., Any], scripted: Callable[..., Any]
) -> None:
    reply = plain.reply(tiny.prompt, 12)
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
    tiny: Any, plain: Any, open_session: Callable[..., Any], scripted: Callable[..., Any], taken: int
) -> None:
    truth = plain.with_reply(tiny.prompt, 30)
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
    assert ids_of(session, more, 8) == plain.reply(more, 8)


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("settings", [{"mtp": "off"}, {"mtp": "auto", "max_draft": 1}])
def test_a_consumer_that_ends_the_reply_at_a_plain_step_costs_no_further_one(
    tiny: Any, open_session: Callable[..., Any], settings: dict[str, Any], at: int
) -> None:
    session = open_session(tiny, **settings)
    logits, _ = session.prompt(tiny.prompt)
    steps = session.steps(logits, _greedy_sampler(session, tiny.prompt), 30, ())
    for _ in range(at + 1):
        assert len(next(steps).tokens) == 1
    with pytest.raises(StopIteration):
        steps.send(1)
    assert session.position == len(tiny.prompt) + at
    assert session.stats().drafts.plain_steps == at


def test_an_output_of_the_draft_layer_that_is_no_number_changes_no_text(
    tiny: Any, plain: Any, open_session: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_session(tiny, mtp="fixed", max_draft=2)
    monkeypatch.setattr(type(session.model.draft), "head", lambda self, x: mx.full((x.shape[0], 320), mx.nan))
    assert ids_of(session, tiny.prompt, 8) == plain.reply(tiny.prompt, 8)
    assert ids_of(session, tiny.prompt, 8, SAMPLED) == plain.reply(tiny.prompt, 8, SAMPLED)
    assert session.stats().drafts.accepted == 0


@pytest.mark.parametrize("acceptance", ["rejection", "coupled"])
def test_only_coupled_rounds_leave_out_drafts_for_what_they_are(
    tiny: Any, open_session: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, acceptance: str
) -> None:
    session = open_session(tiny, mtp="auto", max_draft=2, acceptance=acceptance)
    control, asked = session._rounds.control, set()
    worth = control.worth_checking

    def spy(confidences: Any, *, selective: bool) -> int:
        asked.add(selective)
        return worth(confidences, selective=selective)

    monkeypatch.setattr(control, "worth_checking", spy)
    ids_of(session, tiny.prompt, 24, SAMPLED)
    assert asked == {acceptance == "coupled"}


def _greedy_sampler(session: Any, prompt: list[int]) -> Any:
    from qwen_chat_mlx.engine.sampling import Sampler

    return Sampler(Sampling(temperature=0.0), session.loaded.survey.shape.vocab, prompt)


@pytest.mark.parametrize("stage", ["draft", "verify"])
@pytest.mark.parametrize("kind", ["cancel", "disk"])
def test_an_error_inside_a_round_leaves_the_state_before_it(
    tiny: Any, plain: Any, open_session: Callable[..., Any], scripted: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch, stage: str, kind: str,
) -> None:  # fmt: skip
    truth = plain.with_reply(tiny.prompt, 24)
    session = open_session(tiny, mtp="fixed", max_draft=3)
    scripted(session, truth, lambda r: r % 4)
    steps = session.generate(tiny.prompt, 24, ignore_eos=True)
    got = [t for s in itertools.islice(steps, 4) for t in s.tokens]
    store, calls = session.loaded.draft_store if stage == "draft" else session.loaded.store, []

    def failing(run: Callable[..., Any]) -> Callable[..., Any]:
        def fail(*args: Any, **more: Any) -> Any:
            calls.append(1)
            if len(calls) == 2:
                raise Cancelled("stop") if kind == "cancel" else StorageError("the disk is gone")
            return run(*args, **more)

        return fail

    with monkeypatch.context() as m:
        for way in ("run", "run_unread"):
            m.setattr(store, way, failing(getattr(store, way)))
        with pytest.raises((Cancelled, StorageError)):
            got.extend(t for s in steps for t in s.tokens)
    assert session.tokens == truth[: session.position]
    session.mark()
    more = truth[: session.position + 2]
    assert ids_of(session, more, 10) == plain.reply(more, 10)
    mx.eval(arrays_of(session.caches))


def test_switching_every_seven_tokens_changes_no_id_and_leaves_no_hole(
    tiny: Any, plain: Any, open_session: Callable[..., Any], scripted: Callable[..., Any]
) -> None:
    truth = plain.with_reply(tiny.prompt, 70)
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


@pytest.mark.slow
def test_after_every_switch_over_400_tokens_drafts_are_those_of_never_having_been_off(
    tiny: Any, plain: Any, open_session: Callable[..., Any], scripted: Callable[..., Any]
) -> None:
    count, start = 400, len(tiny.prompt)
    truth = plain.with_reply(tiny.prompt, count)
    first: list[dict[int, Any]] = []
    for switching in (False, True):
        session = open_session(tiny, mtp="fixed", max_draft=3, verify="strict")
        scripted(session, truth, lambda r: r % 4)
        first.append(_first_logits(session))
        got: list[int] = []
        last = 0
        for step in session.generate(tiny.prompt, count, ignore_eos=True):
            got += step.tokens
            if switching and len(got) // 7 > last:
                last = len(got) // 7
                session.set_mtp("off" if last % 2 else "fixed")
        assert got == truth[start:]
        assert session._rounds.drafter.holes == 0
    both = first[0].keys() & first[1].keys()
    assert len(both) >= 40
    for position in both:
        np.testing.assert_allclose(first[1][position], first[0][position], atol=1e-4)


def _first_logits(session: Any) -> dict[int, np.ndarray]:
    """Logits of each round's first draft by position, filled while the session runs."""
    drafter, seen = session._rounds.drafter, {}
    start = drafter.start

    def watched(tokens: Any, anchor: int) -> Any:
        logits = start(tokens, anchor)
        seen[len(tokens)] = np.array(logits)
        return logits

    drafter.start = watched
    return seen


@pytest.mark.parametrize("mtp", ["off", "fixed"])
def test_no_step_leaves_work_pending_that_holds_on_to_memory(
    tiny: Any, open_session: Callable[..., Any], mtp: str
) -> None:
    session = open_session(tiny, mtp=mtp, max_draft=2)
    for layer in session.model.layers:
        if layer._sparse:
            # A budget that is never reached: nothing asks for index keys.
            layer._mixer._most_blocks = 1 << 20
    ids_of(session, tiny.prompt[:6], 24)
    mx.synchronize()
    before = mx.get_active_memory()
    mx.eval(arrays_of(session.caches), session._rounds.drafter.arrays())
    assert before - mx.get_active_memory() < 1024


def test_beyond_the_budget_of_kept_rows_the_draft_cache_starts_anew_and_says_so(
    tiny: Any, plain: Any, open_session: Callable[..., Any]
) -> None:
    session = open_session(tiny, mtp="off")
    drafter = session._rounds.drafter
    drafter._keep_bytes = 4 * session.loaded.survey.needs.wide_bytes
    reference = plain.reply(tiny.prompt, 30)
    got: list[int] = []
    for step in session.generate(tiny.prompt, 30, ignore_eos=True):
        got += step.tokens
        if len(got) == 20:
            session.set_mtp("fixed")
    assert got == reference
    assert drafter.holes == 1
