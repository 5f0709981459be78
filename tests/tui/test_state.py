"""Events in, plain data out."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from qwen_chat_mlx.engine.events import (
    EngineFailed,
    ModelLoading,
    MtpChanged,
    PrefillProgress,
    StatsTaken,
    TextDelta,
    TurnFinished,
    TurnStarted,
)
from qwen_chat_mlx.engine.fake import FakeScript
from qwen_chat_mlx.engine.stats import EngineStats, MtpStats, ThroughputStats
from qwen_chat_mlx.tui.bridge import Bridge
from qwen_chat_mlx.tui.state import ChatState
from qwen_chat_mlx.tui.window import Window


class Clock:
    now = 10.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def state(clock: Clock) -> ChatState:
    s = ChatState(clock)
    s.apply(FakeScript().model)
    return s


def finished(request_id: str, reason: str = "stop", n: int = 3, **throughput: float) -> TurnFinished:
    stats = EngineStats(throughput=ThroughputStats(generated_tokens=n, **throughput))  # type: ignore[arg-type]
    return TurnFinished(request_id, tuple(range(n)), reason, stats)  # type: ignore[arg-type]


def test_a_reply_grows_and_ends(state: ChatState, clock: Clock) -> None:
    r = state.ask("Why?")
    assert [m.text for m in r.messages] == ["Why?"]
    state.apply(PrefillProgress(r.id, "prompt", 0, 1, 9, 3.0))
    assert state.running is not None
    assert state.running.status == "prefill"
    state.apply(TurnStarted(r.id, 9, 0, 1.0))
    clock.now = 12.0
    state.apply(TextDelta(r.id, "thinking", "hm", 1))
    clock.now = 15.0
    state.apply(TextDelta(r.id, "answer", "be", 1))
    state.apply(TextDelta(r.id, "answer", "cause", 1))
    assert state.prefill is None
    state.apply(finished(r.id, decode_s=2.0, ttft_s=1.5))
    turn = state.turns[-1]
    assert (turn.text, turn.thinking, turn.status) == ("because", "hm", "done")
    assert (turn.tokens, turn.thinking_tokens, turn.thought_s) == (3, 1, 3.0)
    assert (turn.ttft_s, turn.tok_per_s) == (1.5, 1.5)
    assert turn.fingerprint == "fake-tokenizer"
    assert not state.busy


@pytest.mark.parametrize(
    ("reason", "status"), [("stop", "done"), ("length", "length"), ("context", "context"), ("cancelled", "stopped")]
)
def test_every_finish_reason_has_its_status(state: ChatState, reason: str, status: str) -> None:
    r = state.ask("x")
    state.apply(finished(r.id, reason))
    assert state.turns[-1].status == status


def test_events_of_other_requests_change_nothing(state: ChatState) -> None:
    state.ask("x")
    before = replace(state.turns[-1])
    for e in (TextDelta("old", "answer", "zzz", 1), finished("old"), EngineFailed("no", request_id="old")):
        state.apply(e)
    assert asdict(state.turns[-1]) == asdict(before)


def test_a_failure_of_the_request_keeps_what_came_before(state: ChatState) -> None:
    r = state.ask("x")
    state.apply(TextDelta(r.id, "answer", "part", 1))
    state.apply(EngineFailed("The disk \x1b[2J failed.", "Try again.", r.id, False, "StorageError"))
    turn = state.turns[-1]
    assert turn.status == "failed"
    assert turn.text == "part"
    assert turn.failure is not None
    assert "\x1b" not in turn.failure.message
    assert state.phase == "ready"


def test_a_fatal_failure_ends_the_running_reply_too(state: ChatState) -> None:
    state.ask("x")
    state.apply(EngineFailed("gone", "", None, True))
    assert state.phase == "failed"
    assert state.running is None
    assert state.turns[-1].status == "failed"


def test_escapes_split_between_two_deltas_are_gone(state: ChatState) -> None:
    r = state.ask("x")
    state.apply(TextDelta(r.id, "answer", "a\x1b", 1))
    state.apply(TextDelta(r.id, "answer", "]52;c;eA==\x07b\r", 1))
    state.apply(TextDelta(r.id, "answer", "\nc", 1))
    assert state.turns[-1].text == "a␛]52;c;eA==␇b\nc"


def test_the_reason_of_drafting_follows_the_numbers_while_its_state_stays(state: ChatState) -> None:
    def told(*now: str) -> str:
        state.apply(StatsTaken(EngineStats(mtp=MtpStats(*now)), 1.0))  # type: ignore[arg-type]
        assert state.mtp is not None
        return state.mtp.reason

    state.apply(MtpChanged(9, "auto", "PARKED", "a draft costs 1.2 plain steps"))
    assert told("auto", "PARKED", "a draft costs\n1.3 plain steps") == "a draft costs 1.3 plain steps"
    assert told("auto", "ON", "2 drafts pay") == "a draft costs 1.3 plain steps"
    assert state.mtp is not None
    assert (state.mtp.state, state.mtp.at_token) == ("PARKED", 9)


def test_drafting_that_goes_on_after_a_park_is_told_in_place_of_the_park(state: ChatState) -> None:
    state.apply(MtpChanged(0, "auto", "ON", "drafting"))
    state.ask("x")
    state.apply(MtpChanged(3, "auto", "PARKED", "a draft costs more"))
    assert state.mtp_notice == "MTP parked from token 3"
    state.apply(MtpChanged(1_040, "auto", "ON", "2 drafts pay"))
    assert state.mtp_notice == "MTP on again from token 1,040"


def test_switching_drafting_says_from_which_token(state: ChatState) -> None:
    state.apply(MtpChanged(0, "auto", "ON", "drafting"))
    state.ask("x")
    state.apply(MtpChanged(213, "off", "OFF", "switched off by you"))
    assert state.mtp_notice == "MTP off from token 213"
    assert [t.label for t in state.ticks] == ["OFF"]


def test_sampling_changes_go_along_with_the_request(state: ChatState) -> None:
    state.sampling = {"temperature": 0.7, "max_tokens": 9}
    state.system, state.think = "Be brief.", False
    r = state.ask("x")
    assert r.sampling_changes == (("temperature", 0.7),)
    assert (r.max_tokens, r.think, r.messages[0].role) == (9, False, "system")


def test_continuing_keeps_the_text_and_the_ids(state: ChatState) -> None:
    r = state.ask("x")
    state.apply(TextDelta(r.id, "answer", "one", 1))
    state.apply(finished(r.id, "length", 1))
    c = state.ask("", continue_last=True)
    assert c.continue_last
    assert c.messages[-1].text == "one"
    state.apply(TextDelta(c.id, "answer", " two", 1))
    state.apply(finished(c.id, "stop", 2))
    assert len(state.turns) == 2
    assert state.turns[-1].text == "one two"
    assert state.turns[-1].token_ids == (0, 0, 1)


def test_loading_words_are_made_safe(state: ChatState) -> None:
    state.apply(ModelLoading("reading \x1b[2J\nx", 1, 2))
    assert state.loading is not None
    assert state.loading.phase == "reading ␛[2J x"


# ---- the bridge


def test_adjacent_text_merges_and_order_stays() -> None:
    b = Bridge(lambda: None)
    for i in range(1000):
        b.emit(TextDelta("a", "thinking" if i < 500 else "answer", "x", 1))
        b.emit(TextDelta("a", "thinking" if i < 500 else "answer", "y", 1))
    got = b.drain()
    assert [(e.kind, len(e.text), e.tokens) for e in got if isinstance(e, TextDelta)] == [
        ("thinking", 1000, 1000),
        ("answer", 1000, 1000),
    ]


def test_after_a_long_wait_few_events_are_left_to_apply() -> None:
    b = Bridge(lambda: None)
    for i in range(2000):
        b.emit(ModelLoading("x", i, 2000))
    for i in range(2000):
        b.emit(TextDelta("a", "answer", "x", 1))
        if i % 10 == 0:
            b.emit(StatsTaken(EngineStats(), float(i)))
    assert len(b.drain()) < 450


def test_only_the_first_text_of_a_reply_and_its_end_wake_the_screen() -> None:
    woken: list[int] = []
    b = Bridge(lambda: woken.append(1))
    b.emit(TextDelta("a", "answer", "x", 1))
    assert len(woken) == 1
    b.drain()
    for _ in range(20):
        b.emit(TextDelta("a", "answer", "x", 1))
    assert len(woken) == 1
    b.emit(finished("a"))
    b.emit(finished("a"))
    assert len(woken) == 2


def test_statistics_behind_the_end_of_a_reply_wake_the_screen_and_those_within_it_do_not() -> None:
    woken: list[int] = []
    b = Bridge(lambda: woken.append(1))
    b.emit(TextDelta("a", "answer", "x", 1))
    b.drain()
    b.emit(StatsTaken(EngineStats(), 0.0))
    assert len(woken) == 1
    b.emit(finished("a"))
    assert len(woken) == 2
    b.drain()
    b.emit(StatsTaken(EngineStats(), 1.0))
    assert len(woken) == 3


def test_a_closed_bridge_drops_everything() -> None:
    b = Bridge(lambda: None)
    b.emit(finished("a"))
    b.close()
    b.emit(finished("a"))
    assert b.drain() == []


# ---- the window


def tokens(later: EngineStats, earlier: EngineStats) -> float | None:
    return float(later.throughput.generated_tokens - earlier.throughput.generated_tokens) or None


def at(n: int) -> EngineStats:
    return EngineStats(throughput=ThroughputStats(generated_tokens=n))


def test_a_window_without_samples_has_nothing() -> None:
    w = Window()
    assert w.recent() is None
    assert w.series(tokens, 4, 100.0) == [None] * 4
    assert w.last_at_s is None


def test_a_stall_is_a_gap_and_not_a_zero() -> None:
    w = Window()
    w.add(10.0, at(5))
    w.add(70.0, at(9))
    assert w.series(tokens, 4, 119.0) == [5.0, None, 4.0, None]


def test_what_left_the_window_no_longer_counts() -> None:
    w = Window()
    for t in range(300):
        w.add(float(t), at(t + 1))
    recent = w.recent()
    assert recent is not None
    assert 119 <= recent.throughput.generated_tokens <= 121
    assert len(w._bins) <= 242


def test_columns_of_moments_outside_are_none() -> None:
    assert Window.column_of(100.0, 12, 100.0) == 11
    assert Window.column_of(0.0, 12, 500.0) is None
