"""A scripted engine behind the same door: no model, no MLX, a virtual clock, every state reachable.

It keeps the contract of engine/contract (one suite runs over it and the real engine) and makes up plausible numbers.
`FakeEngine(emit, script)` runs on a thread of its own, paced by `speed`; with `manual=True` nothing runs until
`advance(seconds)` moves its clock, so that tests and pictures are repeatable. It knows nothing about screens.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from .contract import Emit
from .errors import ContextFullError, EngineClosedError, QwenChatError, RequestError
from .events import (
    EngineFailed,
    ModelLoading,
    MtpChanged,
    PrefillProgress,
    StatsTaken,
    TextDelta,
    TurnFinished,
    TurnStarted,
)
from .fake_numbers import FakeCounters
from .fake_script import FakeDisk, FakeReply, FakeScript, pieces, token_id
from .stats import EngineStats, MemoryStats, minus
from .types import FinishReason, GenerationRequest, MtpMode, MtpState, TextKind

__all__ = ["FakeDisk", "FakeEngine", "FakeReply", "FakeScript", "pieces"]

STATS_EVERY_S = 0.25
STOP_ID = 2


def _said(kind: TextKind, parts: list[str]) -> list[tuple[TextKind, str]]:
    return [(kind, p) for p in parts]


class FakeEngine:
    """See the module docstring; `submit`, `cancel`, `set_mtp` and `close` as in engine/contract."""

    def __init__(
        self,
        emit: Emit,
        script: FakeScript | Callable[[], FakeScript] = FakeScript,
        *,
        manual: bool = False,
        speed: float = 1.0,
    ) -> None:
        self.script = script if isinstance(script, FakeScript) else script()
        self._emit, self._manual, self._speed = emit, manual, speed
        self._start = 1000.0 if manual else time.monotonic()
        self._now = self._start
        self._wake_at: float | None = self._start
        self._changed = threading.Condition()
        self._queue: deque[GenerationRequest] = deque()
        self._cancelled: set[str] = set()
        self._current: str | None = None
        self._wanted_mtp: MtpMode | None = None
        self._closed = self._ended = False
        self._mode: MtpMode = self.script.mtp
        self._state: MtpState = "UNAVAILABLE"
        self._timeline: list[int] = []
        self._answered = 0
        self._produced = 0
        self._next_stats = self._start + STATS_EVERY_S
        self._counters = FakeCounters(self.script.model, self.script.disk, self.script.seed, self.script.zero_limit)
        self._random = random.Random(self.script.seed)
        self._run = self._simulate()
        self._thread: threading.Thread | None = None
        if not manual:
            self._thread = threading.Thread(target=self._drive, name="fake-engine", daemon=True)
            self._thread.start()

    # ---- the door

    def submit(self, request: GenerationRequest) -> None:
        with self._changed:
            if self._closed or self._ended:
                raise EngineClosedError("The engine is closed.", "Open the model again.")
            self._queue.append(request)
            self._poke()

    def cancel(self, request_id: str) -> None:
        with self._changed:
            if request_id == self._current or any(r.id == request_id for r in self._queue):
                self._cancelled.add(request_id)
                self._poke()

    def set_mtp(self, mode: MtpMode) -> None:
        with self._changed:
            self._wanted_mtp = mode
            self._poke()

    def close(self, timeout_s: float = 2.0) -> bool:
        with self._changed:
            self._closed = True
            self._poke()
        if self._thread is None:
            self._ended = True
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # ---- time

    @property
    def now(self) -> float:
        """The virtual clock, in seconds; moves with `advance`, or with the wall clock times `speed`."""
        return self._now if self._manual else self._start + (time.monotonic() - self._start) * self._speed

    @property
    def idle(self) -> bool:
        return self._wake_at is None or self._ended

    def advance(self, seconds: float = 0.0) -> None:
        """Move the clock of a manual engine; events are emitted on the calling thread."""
        until = self._now + seconds
        while not self._ended and self._wake_at is not None and self._wake_at <= until + 1e-9:
            self._now = max(self._now, self._wake_at)
            self._resume()
        self._now = until

    def finish(self, most_s: float = 3600.0) -> None:
        """Advance a manual engine until it waits for work."""
        until = self._now + most_s
        while not self.idle and self._now < until:
            self.advance(0.25)

    def _poke(self) -> None:
        if self._wake_at is None or self._closed or self._cancelled:
            self._wake_at = self.now
        self._changed.notify_all()

    def _resume(self) -> None:
        try:
            pause = next(self._run)
        except StopIteration:
            self._ended = True
            return
        with self._changed:
            busy = self._queue or self._wanted_mtp is not None or self._closed
            self._wake_at = self.now + pause if pause is not None else self.now if busy else None

    def _drive(self) -> None:
        while not self._ended:
            with self._changed:
                while self._wake_at is None or self._wake_at > self.now:
                    left = None if self._wake_at is None else (self._wake_at - self.now) / self._speed
                    self._changed.wait(left)
            self._resume()

    def _wait(self, seconds: float, stats: bool = True) -> Iterator[float | None]:
        """Let virtual time pass; a sample is emitted whenever one is due."""
        end = self.now + seconds
        while not self._closed:
            due = min(end, self._next_stats) if stats else end
            if due > self.now:
                yield due - self.now
            if self.now >= self._next_stats:
                self._next_stats = self.now + STATS_EVERY_S
                if stats:
                    self._sample()
            if self.now >= end - 1e-9 or self._current in self._cancelled:
                return

    def _sample(self) -> None:
        self._emit(StatsTaken(self._counters.copy(), self.now))

    # ---- the simulation: a generator that yields pauses in seconds, or None to wait for work

    def _simulate(self) -> Iterator[float | None]:
        failed = yield from self._load()
        if failed:
            return
        while not self._closed:
            self._take_mtp()
            with self._changed:
                request = self._queue.popleft() if self._queue else None
                self._current = request.id if request else None
            if request is None:
                yield None
                continue
            self._next_stats = self.now + STATS_EVERY_S
            try:
                fatal = yield from self._answer(request)
            except QwenChatError as e:
                fatal = False
                self._fail(e, request.id, fatal=False)
            self._cancelled.discard(request.id)
            self._current = None
            if fatal:
                return

    def _fail(self, e: QwenChatError, request_id: str | None, *, fatal: bool) -> None:
        self._emit(EngineFailed(e.message, e.hint, request_id, fatal, type(e).__name__))

    def _load(self) -> Iterator[float | None]:
        s, begun = self.script, self.now
        whole = self._counters.copy()
        planned = MemoryStats(plan_bytes=whole.memory.plan_bytes, limit_bytes=whole.memory.limit_bytes)
        self._emit(StatsTaken(EngineStats(mtp=whole.mtp, memory=planned), self.now))
        ticks = 40
        for i in range(ticks):
            phase, total, unit = s.load[min(len(s.load) - 1, i * len(s.load) // ticks)]
            share = (i * len(s.load) / ticks) % 1.0
            self._emit(ModelLoading(phase, int(share * total), total, unit))
            if s.load_error is not None and i >= s.load_error_at * ticks:
                self._fail(s.load_error, None, fatal=True)
                return True
            yield from self._wait(s.load_s / ticks, stats=False)
            if self._closed:
                return True
        self._emit(replace(s.model, load_s=self.now - begun))
        self._begin_mtp()
        self._emit(MtpChanged(0, self._mode, self._state, self._counters.mtp_reason))
        return False

    # ---- drafting

    def _begin_mtp(self) -> None:
        """State at the start of a reply: a fallback or a park of the last one is over."""
        if not self.script.model.has_mtp:
            self._set_mtp("UNAVAILABLE", "this model has no MTP layer")
        elif self._mode == "off":
            self._set_mtp("OFF", "switched off by you")
        elif self._counters.proposed < self.script.warm_drafts:
            self._set_mtp("WARM", "measuring the first drafts")
        else:
            self._set_mtp("ON", "drafting")
        self._counters.streak = 0

    def _set_mtp(self, state: MtpState, reason: str) -> None:
        self._state = state
        self._counters.set_mtp(self._mode, state, reason, self.script.max_draft if state in ("WARM", "ON") else 0)

    def _change_mtp(self, state: MtpState, reason: str) -> None:
        if (state, reason) != (self._state, self._counters.mtp_reason):
            self._set_mtp(state, reason)
            self._emit(MtpChanged(self._produced, self._mode, self._state, self._counters.mtp_reason))

    def _take_mtp(self) -> None:
        with self._changed:
            wanted, self._wanted_mtp = self._wanted_mtp, None
        if wanted is not None:
            self._mode = wanted
            self._begin_mtp()
            self._emit(MtpChanged(self._produced, self._mode, self._state, self._counters.mtp_reason))

    def _draft(self, reply: FakeReply, left: int) -> tuple[int, int]:
        """(proposed, accepted) of the next round; (0, 0) for a plain step."""
        if self._state not in ("WARM", "ON") or left <= 1:
            return 0, 0
        proposed = min(self.script.max_draft, left - 1)
        chances = reply.accept if reply.accept is not None else self.script.accept
        accepted = 0
        while accepted < proposed and self._random.random() < chances[min(accepted, len(chances) - 1)]:
            accepted += 1
        return proposed, accepted

    def _judge(self, reply: FakeReply) -> None:
        c, s = self._counters, self.script
        if self._state not in ("WARM", "ON"):
            return
        if c.streak >= s.zero_limit:
            c.fallbacks += 1
            self._change_mtp("FALLBACK", f"{s.zero_limit} rounds in a row without an accepted draft")
        elif reply.park_after is not None and self._produced >= reply.park_after and self._mode == "auto":
            self._change_mtp("PARKED", "a plain step is faster here: 12.1 against 9.8 tok/s")
        elif self._state == "WARM" and c.proposed >= s.warm_drafts:
            self._change_mtp("ON", "drafting")

    # ---- one request

    def _prompt_ids(self, request: GenerationRequest) -> list[int]:
        vocab, ids = self.script.model.vocab_size, []
        if request.raw_prompt is not None:
            return [token_id(p, vocab) for p in pieces(request.raw_prompt)]
        for m in request.messages:
            own = m.token_ids if m.tokenizer_fingerprint == self.script.model.tokenizer_fingerprint else ()
            ids += [1, *(own or (token_id(p, vocab) for p in pieces(m.text)))]
        return ids

    def _answer(self, request: GenerationRequest) -> Iterator[float | None]:
        s, c, begun = self.script, self._counters, self.now
        before, self._produced = c.copy(), 0
        seed = request.sampling.seed if request.sampling and request.sampling.seed is not None else 7
        ids = self._prompt_ids(request)
        if not ids:
            raise RequestError("The prompt is empty.", "Type something first.")
        if len(ids) >= s.model.context:
            raise ContextFullError(
                f"The conversation has {len(ids):,} tokens; {s.model.context:,} fit.",
                "Start a new chat, or edit an earlier turn.",
            )
        self._begin_mtp()
        c.requests += 1
        reply = s.replies[self._answered % len(s.replies)]
        self._answered += 1
        done = yield from self._prefill(request, ids)
        emitted: list[int] = []
        reason: FinishReason = "cancelled"
        if done:
            c.ttft_s = self.now - begun
            reason = yield from self._decode(request, reply, len(ids), emitted)
        self._timeline = ids + emitted
        self._sample()
        if reason == "error":
            error = reply.error or QwenChatError("The engine failed.")
            self._fail(error, request.id, fatal=reply.fatal)
            return reply.fatal
        self._emit(TurnFinished(request.id, tuple(emitted), reason, minus(c.copy(), before), seed))
        return False

    def _prefill(self, request: GenerationRequest, ids: list[int]) -> Iterator[float | None]:
        s, c, begun = self.script, self._counters, self.now
        reused = 0
        for a, b in zip(self._timeline, ids[:-1]):
            if a != b:
                break
            reused += 1
        total, done = len(ids) - reused, 0
        c.prompt_tokens += len(ids)
        c.reused_tokens += reused
        while done < total:
            rate = done / (self.now - begun) if self.now > begun else 0.0
            self._emit(PrefillProgress(request.id, "prompt", reused, done, total, rate))
            step = min(s.prefill_step, total - done)
            yield from self._wait(step / s.prefill_rate)
            if request.id in self._cancelled or self._closed:
                return False
            done += step
            c.prefill(step, step / s.prefill_rate)
            c.context_used = reused + done
        self._emit(PrefillProgress(request.id, "prompt", reused, total, total, total / max(1e-9, self.now - begun)))
        self._emit(TurnStarted(request.id, len(ids), reused, self.now - begun))
        return True

    def _decode(
        self, request: GenerationRequest, reply: FakeReply, prompt: int, emitted: list[int]
    ) -> Iterator[float | None]:
        s, c = self.script, self._counters
        text = reply.text
        for stop in request.stop:
            text = text.split(stop, 1)[0]
        thought = pieces(reply.thinking) if request.think is not False else []
        out = [*_said("thinking", thought), *_said("answer", pieces(text))]
        room = min(request.max_tokens or s.model.context, s.model.context - prompt)
        while True:
            self._take_mtp()
            if request.id in self._cancelled or self._closed:
                return "cancelled"
            if reply.error is not None and self._produced >= reply.error_after:
                return "error"
            left = min(len(out) + 1, room) - self._produced
            if left <= 0:
                return "length" if request.max_tokens and request.max_tokens <= room else "context"
            proposed, accepted = self._draft(reply, left)
            pause = s.step_s * (1 + 0.35 * proposed)
            yield from self._wait(pause)
            if request.id in self._cancelled or self._closed:
                return "cancelled"
            c.step(proposed, accepted, pause)
            self._judge(reply)
            for _ in range(accepted + 1):
                if self._produced == len(out):
                    emitted.append(STOP_ID)
                    c.generated_tokens += 1
                    return "stop"
                kind, piece = out[self._produced]
                self._produced += 1
                emitted.append(token_id(piece, s.model.vocab_size))
                c.generated_tokens += 1
                c.context_used = prompt + self._produced
                self._emit(TextDelta(request.id, kind, piece, 1))
