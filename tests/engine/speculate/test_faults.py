"""Faults and stops inside rounds, seen from a whole turn: what is kept is whole, and the next turn has the plain ids."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from qwen_chat_mlx.engine.config import EngineConfig
from qwen_chat_mlx.engine.errors import StorageError
from qwen_chat_mlx.engine.events import TextDelta, TurnFinished, TurnStarted
from qwen_chat_mlx.engine.session import Session
from qwen_chat_mlx.engine.tokenizer import Tokenizer
from qwen_chat_mlx.engine.turn import run_turn
from qwen_chat_mlx.engine.types import GenerationRequest, Message, Sampling

GREEDY = Sampling(temperature=0.0)
FIRST = (Message("user", "Good day"),)
"""Answered without <think>, which random weights are quick to say: stop strings are looked for in answers only."""
LENGTH = 20


class Talk:
    """Turns over one session; with drafts, the first turn's are right, two of three rounds up to a point."""

    def __init__(self, session: Any) -> None:
        self.session = session
        index = session.loaded.survey.index
        self.tokenizer = Tokenizer.load(index.folder, index.config, index.generation_config)

    def turn(self, messages: tuple[Message, ...], **more: Any) -> list[Any]:
        events: list[Any] = []
        request = GenerationRequest("r", messages, sampling=GREEDY, max_tokens=LENGTH, think=False, **more)
        run_turn(self.session, self.tokenizer, request, events.append, lambda _: None)
        return events

    def second(self, events: list[Any]) -> tuple[Message, ...]:
        """The conversation behind a first turn that ended with `events`."""
        text = "".join(e.text for e in events if isinstance(e, TextDelta) and e.kind == "answer")
        reply = Message("assistant", text, token_ids=events[-1].token_ids)
        return (*FIRST, reply, Message("user", "And then?"))


def settings_of(tiny: Any, mtp: str) -> EngineConfig:
    return EngineConfig(
        model=str(tiny.path), memory_limit="4 GiB", expert_cache="25 %", direct_io="off", read_workers=3, mtp=mtp,
        max_draft=3,
    )  # fmt: skip


def pair(tiny: Any, scripted: Callable[..., Any]) -> tuple[Talk, Talk, list[Any]]:
    """(plain talk, drafting talk, the plain reply's events); the drafting one's drafts are taken from the plain reply."""
    plain = Talk(Session.open(settings_of(tiny, "off")))
    told = plain.turn(FIRST)
    prompt = list(plain.tokenizer.render(FIRST, False).ids)
    drafting = Talk(Session.open(settings_of(tiny, "fixed")))
    scripted(drafting.session, [*prompt, *told[-1].token_ids], lambda r: r % 4)
    return plain, drafting, told


@pytest.fixture(scope="module")
def talks(tiny: Any, scripted: Callable[..., Any]) -> Iterator[Any]:
    """Shared by the tests: every turn finds its own way back from whatever the last one left."""
    made = pair(tiny, scripted)
    yield made
    for talk in made[:2]:
        talk.session.close()


def ids(events: list[Any]) -> tuple[int, ...]:
    assert isinstance(events[-1], TurnFinished)
    return events[-1].token_ids


def test_a_turn_with_drafts_is_the_plain_turn_and_so_is_the_next(talks: Any) -> None:
    plain, drafting, told = talks
    events = drafting.turn(FIRST)
    assert ids(events) == ids(told)
    assert ids(drafting.turn(plain.second(told))) == ids(plain.turn(plain.second(told)))


@pytest.mark.parametrize(
    ("start", "length"),
    [(0, 1), (6, 4)] + [pytest.param(s, n, marks=pytest.mark.slow) for s in (0, 3, 6, 9, 12) for n in (1, 2, 4)],
)
def test_a_stop_string_ends_the_timeline_at_the_stop_wherever_it_falls(talks: Any, start: int, length: int) -> None:
    plain, drafting, told = talks
    text = "".join(e.text for e in told if isinstance(e, TextDelta))
    stop = text[start : start + length]
    if not stop:
        pytest.skip("the reply is shorter")
    want, got = plain.turn(FIRST, stop=(stop,)), drafting.turn(FIRST, stop=(stop,))
    assert ids(got) == ids(want)
    assert got[-1].finish_reason == "stop"
    begun = next(e for e in got if isinstance(e, TurnStarted)).prompt_tokens
    for talk in (plain, drafting):
        # Never beyond the stop; before it by what was held back as its possible beginning, and by the last token taken,
        # which no step has consumed.
        assert begun + len(ids(got)) - 1 - length <= talk.session.position <= begun + len(ids(got))
    if ids(got):
        after = plain.second(got)
        assert ids(drafting.turn(after)) == ids(plain.turn(after))


@pytest.mark.parametrize(
    "checks", [26] + [pytest.param(n, marks=pytest.mark.slow) for n in (3, 9, 12, 17, 14, 15, 19, 21, 23, 33, 41, 52)]
)
def test_a_cancel_anywhere_leaves_a_state_from_which_the_next_turn_is_the_plain_one(talks: Any, checks: int) -> None:
    plain, drafting, told = talks
    left = [checks]

    def cancelled() -> bool:
        left[0] -= 1
        return left[0] < 0

    drafting.session.meter.cancel = cancelled
    got = drafting.turn(FIRST)
    drafting.session.meter.cancel = lambda: False
    assert got[-1].finish_reason == "cancelled"
    assert ids(got) == ids(told)[: len(ids(got))]
    if ids(got):
        after = plain.second(got)
        assert ids(drafting.turn(after)) == ids(plain.turn(after))
    assert ids(drafting.turn(FIRST)) == ids(told)


@pytest.mark.parametrize("read", [85, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 60, 70, 100, 110))])
def test_a_failing_read_anywhere_leaves_a_state_from_which_the_turn_can_be_asked_again(
    disk: Any, tiny: Any, scripted: Callable[..., Any], read: int
) -> None:
    plain, drafting, told = pair(tiny, scripted)
    disk.forget()

    def fail(kind: str, number: int) -> None:
        if kind == "experts" and number == read:
            raise OSError(errno.EIO, "Input/output error")

    disk.before = fail
    try:
        assert ids(drafting.turn(FIRST)) == ids(told)
        assert disk.reads["experts"] < read, "the read that fails was made, so the turn must fail"
        pytest.skip("fewer reads than that")
    except StorageError:
        pass
    assert ids(drafting.turn(FIRST)) == ids(told)
    for talk in (plain, drafting):
        talk.session.close()


@pytest.mark.parametrize("stage", ["states", pytest.param("rows", marks=pytest.mark.slow)])
def test_an_error_while_rewinding_leaves_the_state_before_the_round(
    talks: Any, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    plain, drafting, told = talks
    cache, calls = drafting.session.caches[2], []
    owner, name = (cache.history, "commit") if stage == "rows" else (cache, "_advance")
    work = getattr(owner, name)

    def fail(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise MemoryError
        return work(*args)

    with monkeypatch.context() as m:
        for c in drafting.session.caches if stage == "states" else ():
            m.setattr(getattr(c, "parts", {"mixer": c})["mixer"], name, fail, raising=False)
        m.setattr(owner, name, fail)
        with pytest.raises(MemoryError):
            drafting.turn(FIRST)
    session = drafting.session
    assert {c.position for c in session.caches} == {session.position}
    assert ids(drafting.turn(FIRST)) == ids(told)
    assert ids(drafting.turn(plain.second(told))) == ids(plain.turn(plain.second(told)))
