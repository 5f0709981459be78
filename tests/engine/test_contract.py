"""The contract of engine/contract, as tests that run over every engine that `engine` below makes."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from qwen_chat_mlx.engine import open_engine
from qwen_chat_mlx.engine.config import EngineConfig
from qwen_chat_mlx.engine.contract import Emit, Engine
from qwen_chat_mlx.engine.errors import EngineClosedError
from qwen_chat_mlx.engine.events import (
    EngineFailed,
    Event,
    ModelReady,
    MtpChanged,
    PrefillProgress,
    StatsTaken,
    TextDelta,
    TurnFinished,
    TurnStarted,
)
from qwen_chat_mlx.engine.fake import FakeEngine, FakeReply, FakeScript
from qwen_chat_mlx.engine.types import GenerationRequest, Message

LONG = " ".join(f"word{i}" for i in range(2000))


@dataclass
class Bench:
    """An engine with everything it emitted."""

    events: list[Event] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)
    engine: Engine | None = None
    timeout_s: float = 60.0

    def emit(self, event: Event) -> None:
        self.threads.add(threading.get_ident())
        self.events.append(event)

    def until(self, wanted: Callable[[Event], bool], since: int = 0) -> Event:
        end = time.monotonic() + self.timeout_s
        while time.monotonic() < end:
            for e in self.events[since:]:
                if wanted(e):
                    return e
            time.sleep(0.002)
        raise AssertionError(f"never came; last events: {self.events[-5:]}")

    def finished(self, request_id: str) -> TurnFinished:
        e = self.until(lambda e: isinstance(e, TurnFinished) and e.request_id == request_id)
        assert isinstance(e, TurnFinished)
        return e

    def of(self, request_id: str) -> list[Event]:
        return [e for e in self.events if getattr(e, "request_id", None) == request_id]

    def text(self, request_id: str) -> str:
        return "".join(e.text for e in self.of(request_id) if isinstance(e, TextDelta) and e.kind == "answer")


def ask(name: str, text: str = "Hello there", **more: object) -> GenerationRequest:
    return GenerationRequest(name, (Message("user", text),), **more)  # type: ignore[arg-type]


def fake(emit: Emit) -> Engine:
    replies = (FakeReply("A short answer."), FakeReply(LONG, thinking="Let me see."))
    return FakeEngine(emit, FakeScript(replies=replies, load_s=0.05, step_s=0.02, prefill_rate=50000), speed=4.0)


def real(emit: Emit) -> Engine:
    """The engine over a tiny checkpoint whose greedy reply to `ask` is some 400 tokens long."""
    folder = Path(__file__).parent / "fixtures" / "fp8-1"
    return open_engine(
        EngineConfig(model=str(folder), memory_limit="4 GiB", expert_cache="25 %", temperature=0.0), emit
    )


ENGINES: dict[str, Callable[[Emit], Engine]] = {"fake": fake, "real": real}
"""One more engine is one more entry; its second request must run for a while unless stopped."""


@pytest.fixture(params=sorted(ENGINES))
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    b = Bench()
    b.engine = ENGINES[request.param](b.emit)
    yield b
    b.engine.close()


def engine_of(b: Bench) -> Engine:
    assert b.engine is not None
    return b.engine


def test_a_request_submitted_while_loading_is_answered_after_the_model_is_ready(bench: Bench) -> None:
    engine_of(bench).submit(ask("a", max_tokens=8))
    bench.finished("a")
    kinds = [type(e) for e in bench.events]
    assert kinds.index(ModelReady) < kinds.index(PrefillProgress) < kinds.index(TurnStarted) < kinds.index(TurnFinished)


def test_the_events_of_a_request_come_in_the_documented_order(bench: Bench) -> None:
    engine_of(bench).submit(ask("a", max_tokens=8))
    done = bench.finished("a")
    own = [type(e) for e in bench.of("a")]
    first_text, started = own.index(TextDelta), own.index(TurnStarted)
    assert PrefillProgress not in own[started:]
    assert started < first_text
    assert own[-1] is TurnFinished
    assert own.count(TurnStarted) == own.count(TurnFinished) == 1
    progress = [e for e in bench.of("a") if isinstance(e, PrefillProgress)]
    assert progress[-1].done == progress[-1].total
    assert all(a.done <= b.done for a, b in itertools.pairwise(progress))
    assert len(done.token_ids) >= 1


def test_every_event_comes_from_one_thread(bench: Bench) -> None:
    engine_of(bench).submit(ask("a", max_tokens=4))
    engine_of(bench).set_mtp("off")
    bench.finished("a")
    assert len(bench.threads) == 1
    assert threading.get_ident() not in bench.threads


def test_max_tokens_ends_with_length_and_exactly_that_many_ids(bench: Bench) -> None:
    engine_of(bench).submit(ask("a", max_tokens=1))
    done = bench.finished("a")
    assert (done.finish_reason, len(done.token_ids)) == ("length", 1)


def test_deltas_count_every_sampled_token_but_the_stop(bench: Bench) -> None:
    engine_of(bench).submit(ask("a", max_tokens=6))
    done = bench.finished("a")
    counted = sum(e.tokens for e in bench.of("a") if isinstance(e, TextDelta))
    assert counted in (len(done.token_ids), len(done.token_ids) - (done.finish_reason == "stop"))


def test_requests_run_one_at_a_time_in_order(bench: Bench) -> None:
    for name in "abc":
        engine_of(bench).submit(ask(name, max_tokens=3))
    for name in "abc":
        bench.finished(name)
    own = [e.request_id for e in bench.events if isinstance(e, (TurnStarted, TextDelta, TurnFinished))]
    assert own == sorted(own)


def test_cancel_ends_the_reply_and_no_text_follows(bench: Bench) -> None:
    engine_of(bench).submit(ask("warm", max_tokens=2))
    engine_of(bench).submit(ask("a"))
    bench.until(lambda e: isinstance(e, TextDelta) and e.request_id == "a")
    engine_of(bench).cancel("a")
    done = bench.finished("a")
    assert done.finish_reason == "cancelled"
    assert bench.of("a")[-1] is done
    time.sleep(0.05)
    assert bench.of("a")[-1] is done


def test_a_queued_request_can_be_cancelled_before_it_runs(bench: Bench) -> None:
    engine_of(bench).submit(ask("warm", max_tokens=2))
    engine_of(bench).submit(ask("a"))
    engine_of(bench).submit(ask("b", max_tokens=2))
    engine_of(bench).cancel("b")
    bench.until(lambda e: isinstance(e, TurnStarted) and e.request_id == "a")
    engine_of(bench).cancel("a")
    assert bench.finished("b").finish_reason == "cancelled"
    assert not [e for e in bench.of("b") if isinstance(e, TextDelta)]


def test_the_next_request_after_a_cancel_works(bench: Bench) -> None:
    engine_of(bench).submit(ask("warm", max_tokens=2))
    engine_of(bench).submit(ask("a"))
    bench.until(lambda e: isinstance(e, TextDelta) and e.request_id == "a")
    engine_of(bench).cancel("a")
    engine_of(bench).submit(ask("b", max_tokens=3))
    assert bench.finished("b").finish_reason in ("length", "stop")


def test_unknown_ids_and_late_cancels_are_ignored(bench: Bench) -> None:
    engine_of(bench).cancel("nobody")
    engine_of(bench).submit(ask("a", max_tokens=2))
    bench.finished("a")
    engine_of(bench).cancel("a")
    engine_of(bench).submit(ask("b", max_tokens=2))
    assert bench.finished("b").finish_reason != "cancelled"


def test_an_empty_prompt_is_an_error_of_that_request_only(bench: Bench) -> None:
    engine_of(bench).submit(GenerationRequest("a", (), raw_prompt=""))
    e = bench.until(lambda e: isinstance(e, EngineFailed))
    assert isinstance(e, EngineFailed)
    assert (e.request_id, e.fatal, e.kind) == ("a", False, "RequestError")
    assert e.message
    engine_of(bench).submit(ask("b", max_tokens=2))
    bench.finished("b")


def test_switching_drafting_is_announced_with_its_token(bench: Bench) -> None:
    engine_of(bench).submit(ask("warm", max_tokens=2))
    engine_of(bench).submit(ask("a", max_tokens=400))
    bench.until(lambda e: isinstance(e, TextDelta) and e.request_id == "a")
    since = len(bench.events)
    engine_of(bench).set_mtp("off")
    e = bench.until(lambda e: isinstance(e, MtpChanged) and e.mode == "off", since)
    assert isinstance(e, MtpChanged)
    assert e.state in ("OFF", "UNAVAILABLE")
    assert e.at_token > 0
    assert e.reason
    engine_of(bench).cancel("a")
    stats = bench.finished("a").stats
    assert stats.mtp.mode == "off"


def test_samples_come_while_something_runs_and_once_at_the_end(bench: Bench) -> None:
    engine_of(bench).submit(ask("a", max_tokens=5))
    done = bench.finished("a")
    samples = [e for e in bench.events if isinstance(e, StatsTaken)]
    assert bench.events.index(samples[-1]) == bench.events.index(done) - 1
    assert samples[-1].stats.throughput.generated_tokens == len(done.token_ids)
    assert all(a.at_s <= b.at_s for a, b in itertools.pairwise(samples))


def test_the_stats_of_a_turn_count_that_turn_alone(bench: Bench) -> None:
    for name in "ab":
        engine_of(bench).submit(ask(name, max_tokens=3))
    for name in "ab":
        done = bench.finished(name)
        assert done.stats.throughput.generated_tokens == len(done.token_ids)
        assert done.stats.throughput.requests == 1


def test_a_repeated_conversation_reuses_its_prefix(bench: Bench) -> None:
    engine_of(bench).submit(ask("a", "one two three four five six", max_tokens=2))
    first = bench.finished("a")
    engine_of(bench).submit(ask("b", "one two three four five six", max_tokens=2))
    bench.finished("b")
    started = next(e for e in bench.of("b") if isinstance(e, TurnStarted))
    assert started.reused < started.prompt_tokens
    assert first.stats.throughput.reused_tokens == 0


def test_close_ends_a_running_reply_within_two_seconds_and_refuses_more(bench: Bench) -> None:
    engine_of(bench).submit(ask("warm", max_tokens=2))
    engine_of(bench).submit(ask("a"))
    bench.until(lambda e: isinstance(e, TextDelta) and e.request_id == "a")
    begun = time.monotonic()
    assert engine_of(bench).close()
    assert time.monotonic() - begun < 2.0
    assert engine_of(bench).close()
    with pytest.raises(EngineClosedError):
        engine_of(bench).submit(ask("b"))


def test_a_fake_load_failure_is_fatal_and_named() -> None:
    from qwen_chat_mlx.engine.errors import CheckpointError

    b = Bench()
    e = FakeEngine(
        b.emit, FakeScript(load_error=CheckpointError("No config.json in /x.", "Check the path.")), manual=True
    )
    e.advance(5)
    last = b.events[-1]
    assert last == EngineFailed("No config.json in /x.", "Check the path.", None, True, "CheckpointError")
    with pytest.raises(EngineClosedError):
        e.submit(ask("a"))


@pytest.mark.parametrize(
    ("change", "reply", "state"),
    [
        ({}, FakeReply(LONG), "ON"),
        ({"warm_drafts": 10**6}, FakeReply(LONG), "WARM"),
        ({"mtp": "off"}, FakeReply(LONG), "OFF"),
        ({}, FakeReply(LONG, park_after=20), "PARKED"),
        ({}, FakeReply(LONG, accept=(0.0,)), "FALLBACK"),
        ({"model": replace(FakeScript().model, has_mtp=False)}, FakeReply(LONG), "UNAVAILABLE"),
    ],
)
def test_every_drafting_state_of_the_fake_can_be_scripted(change: dict, reply: FakeReply, state: str) -> None:
    b = Bench()
    e = FakeEngine(b.emit, replace(FakeScript(replies=(reply,)), **change), manual=True)
    e.submit(ask("a"))
    e.advance(30)
    stats = [x for x in b.events if isinstance(x, StatsTaken)][-1].stats
    assert stats.mtp.state == state
    assert stats.mtp.reason


def test_two_manual_fakes_with_the_same_script_emit_the_same_events() -> None:
    runs = []
    for _ in range(2):
        b = Bench()
        e = FakeEngine(b.emit, FakeScript(replies=(FakeReply(LONG[:400], "hm"),)), manual=True)
        e.submit(ask("a"))
        e.finish()
        runs.append(b.events)
    assert runs[0] == runs[1]
