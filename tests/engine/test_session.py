"""One timeline: what a prompt reuses, where it goes back to, and that the next ids are always those of a cold run."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tokenizers import Tokenizer

from qwen_chat_mlx.engine.errors import ContextFullError, RequestError
from qwen_chat_mlx.engine.sampling import Sampler
from qwen_chat_mlx.engine.types import Sampling

NEVER, ALWAYS = 1 << 30, 1


class Talk:
    """A session that is compared with cold ones: fresh caches over the same loaded model."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.rows = 0
        session.forward.on_routes = self._count

    def _count(self, layer: int, parts: list[np.ndarray]) -> None:
        if layer == 0:
            self.rows += sum(p.shape[0] for p in parts)

    def say(self, ids: list[int], count: int, boundaries: tuple[int, ...] = ()) -> tuple[list[int], int]:
        """(the greedy reply to ids, tokens reused); checks that exactly the others went through the model."""
        self.rows = 0
        logits, reused = self.session.prompt(ids, boundaries)
        assert self.rows == len(ids) - reused
        return self.go_on(logits, count), reused

    def go_on(self, logits: mx.array, count: int) -> list[int]:
        out = [int(mx.argmax(logits).item())]
        while len(out) < count:
            out.append(int(mx.argmax(self.session.step(out[-1])).item()))
        return out

    def cold(self, ids: list[int], count: int) -> list[int]:
        """The same reply from a session that has seen nothing."""
        fresh = type(self.session)(self.session.loaded, self.session.config)
        return Talk.__new__(Talk)._with(fresh).go_on(fresh.prompt(ids)[0], count)

    def _with(self, session: Any) -> Talk:
        self.session = session
        return self


@pytest.fixture
def talk(tiny: Any, open_session: Callable[..., Any]) -> Talk:
    return Talk(open_session(tiny, expert_cache="100 %"))


def ids_of(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(8, 320, count).tolist()


# ---- what is reused


def test_a_second_turn_computes_only_what_is_new(talk: Talk) -> None:
    first, new = ids_of(30), ids_of(10, 1)
    reply, reused = talk.say(first, 5)
    assert reused == 0
    # The last sampled token was never consumed: nothing was computed behind it.
    following, reused = talk.say([*first, *reply, *new], 5)
    assert reused == 34
    assert following == talk.cold([*first, *reply, *new], 5)


def test_the_same_prompt_again_goes_back_to_its_last_boundary(talk: Talk) -> None:
    ids = ids_of(30)
    reply, _ = talk.say(ids, 4, boundaries=(8, 20))
    again, reused = talk.say(ids, 4, boundaries=(8, 20))
    assert (again, reused) == (reply, 20)


def test_a_shorter_prompt_goes_back_to_a_boundary_inside_it(talk: Talk) -> None:
    ids = ids_of(30)
    talk.say(ids, 4, boundaries=(8, 20))
    reply, reused = talk.say(ids[:25], 4)
    assert reused == 20
    assert reply == talk.cold(ids[:25], 4)
    reply, reused = talk.say(ids[:20], 4)
    assert reused == 8
    assert reply == talk.cold(ids[:20], 4)


def test_an_edited_history_is_computed_from_the_edit_on(talk: Talk) -> None:
    ids = ids_of(30)
    talk.say(ids, 4, boundaries=(8, 20))
    edited = [*ids[:12], *ids_of(20, 7)]
    reply, reused = talk.say(edited, 4)
    assert reused == 8
    assert reply == talk.cold(edited, 4)


def test_a_prompt_that_shares_nothing_starts_from_nothing(talk: Talk) -> None:
    talk.say(ids_of(30), 4, boundaries=(8, 20))
    other = ids_of(12, 9)
    reply, reused = talk.say(other, 4)
    assert reused == 0
    assert reply == talk.cold(other, 4)


def test_a_prompt_that_goes_on_from_the_very_end_reuses_all_of_it(talk: Talk) -> None:
    ids = ids_of(20)
    talk.session.prompt(ids)
    reply, reused = talk.say([*ids, 50], 3)
    assert reused == 20
    assert reply == talk.cold([*ids, 50], 3)


def test_thinking_that_the_template_drops_costs_only_the_last_reply(talk: Talk) -> None:
    opening, answer, user = ids_of(25), ids_of(5, 2), ids_of(7, 3)
    reply, _ = talk.say([*opening, 6], 4, boundaries=(10, 25))
    without = [*opening, *reply[2:], *answer, *user, 6]
    after, reused = talk.say(without, 4, boundaries=(10, 25, 34))
    assert reused == 25
    assert after == talk.cold(without, 4)


@pytest.mark.parametrize("threshold", [NEVER, ALWAYS])
def test_boundaries_work_in_both_prompt_orders(tiny: Any, open_session: Callable[..., Any], threshold: int) -> None:
    talk = Talk(open_session(tiny, layer_major_threshold=threshold, prefill_step=16))
    ids = tiny.prompt
    talk.say(ids, 2, boundaries=(5, 16, 33))
    for length, at in ((40, 33), (33, 16), (5, 0)):
        reply, reused = talk.say(ids[:length], 2)
        assert reused == at
        assert reply == talk.cold(ids[:length], 2)


# ---- marks


def test_marks_keep_to_their_number_and_the_newest_stay(talk: Talk) -> None:
    session, most = talk.session, talk.session.loaded.survey.plan.marks
    ids = ids_of(60)
    talk.say(ids, 1, boundaries=tuple(range(4, 60, 4)))
    assert [m.position for m in session._marks] == [0, *range(60 - 4 * (most - 1), 60, 4), 60]
    context = session.stats().context
    assert context.marks == most
    assert context.mark_bytes == sum(m.nbytes for m in session._marks) > 0
    plan = session.loaded.survey.plan
    assert context.mark_bytes <= plan.term("states")


def test_a_layer_major_prompt_saves_no_more_states_than_are_kept(
    tiny: Any, open_session: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_session(tiny, layer_major_threshold=ALWAYS)
    asked: list[int] = []
    run = session.forward.layer_major

    def seen(caches: Any, before: Any, chunks: Any, save_after: Any, progress: Any) -> Any:
        asked.append(len(save_after))
        return run(caches, before, chunks, save_after, progress)

    monkeypatch.setattr(session.forward, "layer_major", seen)
    session.prompt(tiny.prompt, tuple(range(1, 70)))
    assert asked == [session.loaded.survey.plan.marks - 1]


def test_a_mark_holds_one_row_of_the_residual_and_not_its_chunk(talk: Talk) -> None:
    session = talk.session
    # The draft layer keeps rows of its own, on purpose.
    session._rounds = None
    session.prompt(ids_of(8))
    gc.collect()
    before = mx.get_active_memory()
    session.prompt(ids_of(600, 1), (300,))
    gc.collect()
    mx.clear_cache()
    held = sum(c.nbytes() for c in session.caches)
    # 600 rows of 256 floats are 614 kB; what may stay are the caches and a few states.
    assert mx.get_active_memory() - before < held + 200_000


@pytest.mark.parametrize("length", [1, 7, 512])
def test_a_restored_state_goes_on_as_a_cold_run(talk: Talk, length: int) -> None:
    ids = ids_of(length + 1, length)
    talk.session.prompt(ids, (length,))
    talk.say([*ids[:length], *ids_of(9, 5)], 3)
    reply, reused = talk.say(ids, 4)
    assert reused == length
    assert reply == talk.cold(ids, 4)


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 7, 512, 3000])
def test_64_ids_behind_a_restored_state_are_those_of_a_cold_run(layout: Any, open_session: Any, length: int) -> None:
    talk = Talk(open_session(layout, context=4096))
    ids = ids_of(length + 1, length)
    talk.session.prompt(ids, (length,))
    talk.say([*ids[:length], *ids_of(9, 5)], 3)
    reply, reused = talk.say(ids, 64)
    assert reused == length
    assert reply == talk.cold(ids, 64)


def test_forty_growing_turns_equal_cold_runs(talk: Talk) -> None:
    history: list[int] = []
    boundaries: list[int] = []
    for turn in range(40):
        boundaries.append(len(history)) if history else None
        prompt = [*history, *ids_of(6, turn)]
        reply, reused = talk.say(prompt, 2, tuple(boundaries))
        assert reused >= len(history) - 1
        if turn in (13, 39):
            assert reply == talk.cold(prompt, 2)
        history = [*prompt, *reply]
    assert len(talk.session.tokens) == len(history) - 1


# ---- limits and bad input


def test_a_prompt_that_does_not_fit_is_refused_and_changes_nothing(tiny: Any, open_session: Callable[..., Any]) -> None:
    session = open_session(tiny, context=64)
    session.prompt(ids_of(20))
    with pytest.raises(ContextFullError, match="65 tokens; the context holds 64"):
        session.prompt(ids_of(65))
    assert session.tokens == ids_of(20)


def test_a_reply_ends_where_the_context_does(tiny: Any, open_session: Callable[..., Any]) -> None:
    session = open_session(tiny, context=64)
    tokens = [t for step in session.generate(ids_of(60), 100, ignore_eos=True) for t in step.tokens]
    assert len(tokens) == 5
    assert session.room == 0
    assert [t for s in session.generate(ids_of(64), 100, ignore_eos=True) for t in s.tokens]


@pytest.mark.parametrize("count", [0, -1])
@pytest.mark.parametrize("mtp", ["auto", "off"])
def test_no_token_is_generated_where_none_is_asked_for(
    tiny: Any, open_session: Callable[..., Any], mtp: str, count: int
) -> None:
    assert list(open_session(tiny, mtp=mtp).generate(ids_of(20), count)) == []


@pytest.mark.parametrize("mtp", ["off", "fixed"])
def test_a_reply_that_another_one_interrupted_does_not_go_on(
    tiny: Any, open_session: Callable[..., Any], mtp: str
) -> None:
    session = open_session(tiny, mtp=mtp)
    first, second = (session.generate(ids_of(n), 8, ignore_eos=True) for n in (20, 30))
    next(first)
    next(first)
    got = [next(second)]
    with pytest.raises(RequestError, match="taken over"):
        next(first)
    got += second
    whole = open_session(tiny, mtp="off").generate(ids_of(30), 8, ignore_eos=True)
    assert [t for s in got for t in s.tokens] == [t for s in whole for t in s.tokens]


def test_steps_are_counted_without_a_draft_layer_too(files: Any, open_session: Callable[..., Any]) -> None:
    index = files.folder / "model.safetensors.index.json"
    files.drop(*(n for n in json.loads(index.read_text())["weight_map"] if n.startswith("mtp.")))
    session = open_session(files.folder)
    list(session.generate(ids_of(20), 6, ignore_eos=True))
    assert session.stats().drafts.plain_steps == 5


def test_a_longer_context_than_the_model_has_is_said(tiny: Any, open_session: Callable[..., Any]) -> None:
    session = open_session(tiny, context=1 << 20)
    assert any(f"{session.context:,} tokens, this model's most" in n for n in session.loaded.survey.notes)


def test_a_reply_ends_at_a_stop_id(talk: Talk) -> None:
    ids = ids_of(20)
    reply = talk.cold(ids, 4)
    logits, _ = talk.session.prompt(ids)
    steps = talk.session.steps(logits, Sampler(Sampling(temperature=0.0), 320, ids), 50, {reply[2]})
    got = [t for step in steps for t in step.tokens]
    assert got == reply[: reply.index(reply[2]) + 1]


@pytest.mark.parametrize("known_to", ["generation_config", "tokenizer_config"])
def test_what_generate_stops_at_is_what_the_tokenizer_says(
    files: Any, open_session: Callable[..., Any], known_to: str
) -> None:
    backend = Tokenizer.from_file(str(files.folder / "tokenizer.json"))
    session = open_session(files.folder)
    reply = [t for step in session.generate(ids_of(20), 30, ignore_eos=True) for t in step.tokens]
    stop = next(t for t in reply[1:] if t != reply[0] and backend.id_to_token(t))
    files.json(
        "generation_config.json", lambda c: c.update(eos_token_id=stop if known_to == "generation_config" else [])
    )
    if known_to == "tokenizer_config":
        files.json("tokenizer_config.json", lambda c: c.update(eos_token=backend.id_to_token(stop)))
    again = open_session(files.folder)
    got = [t for step in again.generate(ids_of(20), 30) for t in step.tokens]
    assert got == reply[: reply.index(stop) + 1]


@pytest.mark.parametrize("wrong", [-1, 320, 1 << 40])
def test_ids_outside_the_vocabulary_are_refused_everywhere(talk: Talk, wrong: int) -> None:
    session, ids = talk.session, ids_of(12)
    session.prompt(ids)
    for call in (session.prompt, session.score, session.routes, lambda x: next(session.generate(x, 2))):
        with pytest.raises(RequestError, match=f"Token id {wrong} is outside the model's vocabulary of 320"):
            call([5, wrong, 7])
        with pytest.raises(RequestError, match="empty"):
            call([])
    assert session.tokens == ids


def test_ids_may_be_numpy_numbers(talk: Talk) -> None:
    ids = ids_of(12)
    as_array = np.array(ids, np.int32)
    np.testing.assert_array_equal(talk.session.score(as_array), talk.session.score(ids))
    assert [t for s in talk.session.generate(as_array, 3, ignore_eos=True) for t in s.tokens] == talk.cold(ids, 3)


def test_scoring_and_routes_leave_the_timeline_alone(talk: Talk) -> None:
    ids = ids_of(20)
    session = talk.session
    logits, _ = session.prompt(ids, (9,))
    before, marks = session.stats().context, [m.position for m in session._marks]
    session.score(ids_of(30, 4))
    session.routes(ids_of(9, 5))
    assert session.stats().context == before
    assert (session.tokens, [m.position for m in session._marks]) == (ids, marks)
    assert talk.go_on(logits, 5) == talk.cold(ids, 5)


def test_a_reply_left_in_the_middle_can_be_gone_on_from(talk: Talk) -> None:
    ids = ids_of(20)
    steps = talk.session.generate(ids, 50, ignore_eos=True)
    said = [t for _ in range(4) for t in next(steps).tokens]
    steps.close()
    reply, reused = talk.say([*ids, *said, *ids_of(3, 2)], 4)
    assert reused >= 20
    assert reply == talk.cold([*ids, *said, *ids_of(3, 2)], 4)


def test_a_session_says_what_it_holds(talk: Talk) -> None:
    talk.session.prompt(ids_of(20), (5,))
    stats = talk.session.stats()
    assert (stats.context.used, stats.context.limit) == (20, talk.session.context)
    assert stats.memory.plan_bytes == talk.session.loaded.survey.plan.total_bytes
    assert stats.memory.rss_bytes > 0
    assert stats.timing.prefill_s > 0
    assert stats.ssd.reads > 0
