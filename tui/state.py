"""Everything the screen shows, as plain data: an event arrives, `apply` changes the state, widgets draw from it.

Runs on the UI thread only; what the engine says is imported when it says something. Knows no widget, no file and no tensor. All text that enters goes through the sanitiser.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from .text.sanitise import Sanitiser, clean, one_line
from .window import Window

if TYPE_CHECKING:
    from ..engine.events import (
        EngineFailed,
        Event,
        ModelLoading,
        ModelReady,
        MtpChanged,
        PrefillProgress,
        TextDelta,
        TurnFinished,
    )
    from ..engine.stats import EngineStats, MtpStats
    from ..engine.types import GenerationRequest, Message, MtpMode, Role

__all__ = ["ChatState", "Failure", "Refusal", "Tick", "Turn", "TurnStatus"]

TurnStatus = Literal["waiting", "prefill", "thinking", "answering", "done", "stopped", "length", "context", "failed"]
RUNNING: tuple[TurnStatus, ...] = ("waiting", "prefill", "thinking", "answering")
CUT_OFF: tuple[TurnStatus, ...] = ("stopped", "length", "context", "failed")
_ENDS: dict[str, TurnStatus] = {
    "stop": "done", "length": "length", "context": "context", "cancelled": "stopped", "error": "failed",
}  # fmt: skip
REFUSALS = ("ContextFullError", "RequestError", "TemplateError")
"""Failures of the prompt itself: it never became part of the engine's timeline, and would fail again in every later request."""
WARM_DRAFTS = 32
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a reply or the engine came to nothing."""

    message: str
    hint: str
    kind: str
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that the engine did not take; it has left the conversation as it was before."""

    text: str
    """The new prompt; empty where an old one was to be answered again."""
    failure: Failure


@dataclass(frozen=True, slots=True)
class Tick:
    """A moment worth a mark on the graphs."""

    at_s: float
    label: str


@dataclass(slots=True, eq=False)
class Turn:
    """One turn; an assistant's grows while its reply runs. Two with the same words are still two."""

    role: Role
    text: str = ""
    id: str = ""
    """Id of the request that makes it; unique within the process."""
    thinking: str = ""
    status: TurnStatus = "done"
    at: str = ""
    """Wall-clock time, "09:41"."""
    tokens: int = 0
    thinking_tokens: int = 0
    prompt_tokens: int = 0
    reused: int = 0
    asked_s: float = 0.0
    first_s: float | None = None
    """Clock of the first token."""
    thought_s: float | None = None
    """How long its thoughts took; None while the first one runs."""
    thought_from_s: float | None = None
    """Clock of the first token of the thought that runs."""
    end_s: float | None = None
    ttft_s: float | None = None
    tok_per_s: float | None = None
    token_ids: tuple[int, ...] = ()
    fingerprint: str = ""
    failure: Failure | None = None
    stats: EngineStats | None = None
    model: str = ""
    version: int = 0
    """Grows with every change, so that a widget knows what to draw again."""

    @property
    def running(self) -> bool:
        return self.status in RUNNING

    def end_thought(self, now: float) -> None:
        if self.thought_from_s is not None:
            self.thought_s = (self.thought_s or 0.0) + now - self.thought_from_s
            self.thought_from_s = None

    def message(self) -> Message:
        from ..engine.types import Message

        return Message(self.role, self.text, self.thinking, self.token_ids, self.fingerprint)


@dataclass(slots=True)
class ChatState:
    """One chat and its engine, as far as they have come."""

    clock: Callable[[], float]
    """Monotonic seconds, the same clock as StatsTaken.at_s."""
    wall: Callable[[], str] = lambda: ""
    """Time of day for people."""
    phase: Literal["loading", "ready", "failed"] = "loading"
    loading: ModelLoading | None = None
    loading_since_s: float = 0.0
    model: ModelReady | None = None
    failure: Failure | None = None
    """Why the engine takes no request."""
    title: str = ""
    temporary: bool = False
    """This chat is not kept on disk, though others are."""
    turns: list[Turn] = field(default_factory=list)
    system: str = ""
    think: bool | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    """Sampling settings changed in this chat, by the names of engine.types.Sampling; max_tokens too."""
    queued: str | None = None
    """A prompt typed while the model loads or a reply runs; sent when its turn comes."""
    prefill: PrefillProgress | None = None
    mtp: MtpChanged | None = None
    wanted_mtp: MtpMode = "auto"
    """The drafting mode asked for last; it outlives the model."""
    last_mode: MtpMode = "auto"
    """The last drafting mode that was not off; Ctrl+T goes back to it."""
    notice: str = ""
    """One line for the status bar."""
    mtp_notice: str = ""
    """What became of drafting in the reply that runs, such as "MTP off from token 213"; over with it."""
    refused: Refusal | None = None
    """The latest prompt, when it was refused; whoever has given it back to the user takes it away."""
    stats: EngineStats | None = None
    window: Window = field(default_factory=Window)
    ticks: deque[Tick] = field(default_factory=lambda: deque(maxlen=32))
    revision: int = 0
    """Grows when turns were added or removed."""
    _sanitisers: dict[str, Sanitiser] = field(default_factory=dict)
    _dropped: list[Turn] = field(default_factory=list)
    """What the latest rewind took away, until the request behind it has been taken."""
    _new_prompt: bool = False
    """The running request came with a prompt that was not in the conversation before."""

    # ---- questions

    @property
    def running(self) -> Turn | None:
        return self.turns[-1] if self.turns and self.turns[-1].running else None

    @property
    def busy(self) -> bool:
        return self.phase == "loading" or self.running is not None

    @property
    def last_reply(self) -> Turn | None:
        return next((t for t in reversed(self.turns) if t.role == "assistant"), None)

    @property
    def cut_off(self) -> bool:
        """The chat ends with a reply that broke off, and that can go on."""
        last = self.turns[-1] if self.turns else None
        return last is not None and bool(last.text or last.thinking) and last.status in CUT_OFF

    @property
    def context_used(self) -> int:
        """Tokens of this conversation in the engine's timeline; 0 until one of its prompts was read."""
        return self.stats.context.used if self.stats and any(t.prompt_tokens for t in reversed(self.turns)) else 0

    @property
    def context_limit(self) -> int:
        return self.model.context if self.model else 0

    @property
    def context_share(self) -> float:
        return self.context_used / self.context_limit if self.context_limit else 0.0

    # ---- what the user does

    def want_mtp(self, mode: MtpMode) -> None:
        self.wanted_mtp = mode
        if mode != "off":
            self.last_mode = mode

    def ask(self, text: str, *, continue_last: bool = False) -> GenerationRequest:
        """Add the user's turn and the empty reply, and return the request for them."""
        self._new_prompt = not continue_last
        if not continue_last:
            self.turns.append(Turn("user", clean(text), at=self.wall()))
        return self._reply(continue_last)

    def again(self) -> GenerationRequest:
        """A new reply to the last user turn; the old one must have been rewound before."""
        self._new_prompt = False
        return self._reply(False)

    def _reply(self, continue_last: bool) -> GenerationRequest:
        from ..engine.types import GenerationRequest, Message

        messages = [Message("system", self.system)] if self.system else []
        messages += [t.message() for t in self.turns if t.text or t.role == "user" or t.token_ids]
        request_id = f"turn-{next(_numbers)}"
        if continue_last:
            turn = self.turns[-1]
            turn.status, turn.failure, turn.id = "waiting", None, request_id
        else:
            turn = Turn("assistant", id=request_id, status="waiting", at=self.wall())
            self.turns.append(turn)
        turn.asked_s, turn.first_s, turn.end_s = self.clock(), None, None
        turn.model = self.model.name if self.model else ""
        turn.version += 1
        self._sanitisers.clear()
        self.prefill, self.notice, self.mtp_notice, self.refused = None, "", "", None
        self.revision += 1
        changes = {k: v for k, v in self.sampling.items() if k != "max_tokens"}
        return GenerationRequest(
            request_id,
            tuple(messages),
            sampling_changes=tuple(sorted(changes.items())),
            think=self.think,
            max_tokens=self.sampling.get("max_tokens"),
            continue_last=continue_last,
        )

    def rewind(self, keep: int) -> None:
        """Drop all turns after the first `keep`; they come back if the prompt behind them is refused."""
        self._dropped = self.turns[keep:]
        del self.turns[keep:]
        self.revision += 1

    def clear(self) -> None:
        self.turns.clear()
        self.title, self.notice, self.prefill = "", "", None
        self.mtp_notice, self.refused, self._dropped = "", None, []
        self.revision += 1

    def stop(self) -> Turn | None:
        """Nothing more is heard of the running reply, which is returned: it stays as far as it came."""
        turn = self.running
        if turn is not None:
            self._cut(turn, "stopped")
        return turn

    def _cut(self, turn: Turn, status: TurnStatus) -> None:
        """End a reply whose ids were never told: those of a part would stand for the whole text."""
        turn.status, turn.end_s = status, self.clock()
        turn.end_thought(turn.end_s)
        turn.token_ids = turn.token_ids if turn.first_s is None else ()
        turn.version += 1

    def forget_model(self) -> None:
        """The model is being replaced: everything that belonged to it goes, the turns stay."""
        self.stop()
        self.phase, self.loading, self.model, self.failure = "loading", None, None, None
        self.mtp, self.stats, self.prefill, self.notice, self.mtp_notice = None, None, None, "", ""
        self.window.clear()
        self.ticks.clear()

    # ---- what the engine says

    def apply(self, event: Event) -> None:
        """Take in one event; unknown request ids are old news and ignored."""
        from ..engine import events as ev

        match event:
            case ev.ModelLoading():
                self.phase, self.loading = (
                    "loading",
                    replace(event, phase=one_line(event.phase, 60), unit=one_line(event.unit, 20)),
                )
            case ev.ModelReady():
                self.phase, self.failure, self.loading = "ready", None, None
                notes = tuple(one_line(note, 400) for note in event.notes)
                self.model = replace(event, name=one_line(event.name, 60), path=one_line(event.path, 400), notes=notes)
            case ev.PrefillProgress():
                if turn := self._turn(event.request_id):
                    turn.status, self.prefill = "prefill", replace(event, phase=one_line(event.phase, 40))
                    turn.version += 1
            case ev.TurnStarted():
                if turn := self._turn(event.request_id):
                    turn.prompt_tokens, turn.reused = event.prompt_tokens, event.reused
            case ev.TextDelta():
                self._text(event)
            case ev.MtpChanged():
                self._mtp(event)
            case ev.StatsTaken():
                self.stats = event.stats
                self.window.add(event.at_s, event.stats)
                self._mtp_reason(event.stats.mtp)
            case ev.TurnFinished():
                self._finished(event)
            case ev.EngineFailed():
                self._failed(event)

    def _turn(self, request_id: str | None) -> Turn | None:
        turn = self.running
        return turn if turn is not None and turn.id == request_id else None

    def _text(self, event: TextDelta) -> None:
        turn = self._turn(event.request_id)
        if turn is None:
            return
        now = self.clock()
        if turn.first_s is None:
            turn.first_s = now
            turn.ttft_s = now - turn.asked_s
            self.prefill = None
        sanitiser = self._sanitisers.setdefault(event.kind, Sanitiser())
        text = sanitiser.feed(event.text)
        turn.tokens += event.tokens
        if event.kind == "thinking":
            turn.thought_from_s = now if turn.thought_from_s is None else turn.thought_from_s
            turn.status = "thinking"
            turn.thinking += text
            turn.thinking_tokens += event.tokens
        else:
            turn.end_thought(now)
            turn.status = "answering"
            turn.text += text
        turn.version += 1

    def _mtp(self, event: MtpChanged) -> None:
        before, self.mtp = self.mtp, replace(event, reason=one_line(event.reason))
        if before is None or (before.mode, before.state) == (event.mode, event.state):
            return
        where = f" from token {event.at_token:,}" if event.at_token else ""
        if before.mode != event.mode:
            self.mtp_notice = f"MTP {event.mode}{where}"
        elif event.state in ("FALLBACK", "PARKED"):
            self.mtp_notice = f"MTP {event.state.lower()}{where}"
        elif before.state in ("FALLBACK", "PARKED"):
            self.mtp_notice = f"MTP on again{where}" if where else ""
        else:
            return
        self.ticks.append(Tick(self.clock(), event.state))

    def _mtp_reason(self, now: MtpStats) -> None:
        """A reason has figures in it that go on changing while the state stays."""
        if self.mtp is not None and (now.mode, now.state) == (self.mtp.mode, self.mtp.state) and now.reason:
            self.mtp = replace(self.mtp, reason=one_line(now.reason))

    def _finished(self, event: TurnFinished) -> None:
        turn = self._turn(event.request_id)
        if turn is None:
            return
        turn.status = _ENDS[event.finish_reason]
        turn.end_s, turn.stats = self.clock(), event.stats
        turn.end_thought(turn.end_s)
        turn.token_ids = turn.token_ids + event.token_ids
        turn.fingerprint = self.model.tokenizer_fingerprint if self.model else ""
        t = event.stats.throughput
        turn.ttft_s = t.ttft_s if t.ttft_s is not None and turn.first_s is not None else turn.ttft_s
        turn.tok_per_s = t.decode_rate
        turn.version += 1
        self._reply_over(event.stats)

    def _reply_over(self, stats: EngineStats | None) -> None:
        """What holds for one reply only ends with it: its progress, what was said of its drafting, a fallback."""
        self.prefill, self.mtp_notice, self._dropped = None, "", []
        if self.mtp is not None and self.mtp.state == "FALLBACK":
            known = self.stats or stats
            warm = known is not None and known.drafts.proposed < WARM_DRAFTS
            self.mtp = replace(self.mtp, state="WARM" if warm else "ON", reason="the next reply drafts again")

    def _failed(self, event: EngineFailed) -> None:
        failure = Failure(clean(event.message), clean(event.hint), one_line(event.kind, 40), event.fatal)
        turn = self.running if event.fatal else self._turn(event.request_id)
        if turn is not None:
            refused = event.kind in REFUSALS and not (event.fatal or turn.text or turn.thinking)
            self._cut(turn, "failed")
            turn.failure = failure
            if refused:
                self.refused = Refusal(self.turns[-2].text if self._new_prompt else "", failure)
                self.turns[-2 if self._new_prompt else -1 :] = self._dropped
                self.revision += 1
            self._reply_over(None)
        if event.fatal:
            self.phase, self.failure = "failed", failure
