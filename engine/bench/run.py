"""One run of a benchmark in this process: opens an engine through its door, asks, and looks at what comes out.

Whoever calls this does nothing else in the process; `child` starts a fresh one for every run.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from .. import errors, open_engine
from ..config import EngineConfig
from ..events import (
    EngineFailed,
    Event,
    ModelLoading,
    ModelReady,
    PrefillProgress,
    StatsTaken,
    TextDelta,
    TurnFinished,
)
from ..stats import EngineStats, minus
from ..types import FinishReason, GenerationRequest, Message, Sampling
from .facts import drop_page_cache, peak_resident_bytes
from .figures import figures_of

__all__ = ["SEED", "Now", "RunResult", "RunTask", "as_error", "ids_hash", "run_here"]

SEED = 42
REQUEST_ID = "bench"
_GREEDY = Sampling(temperature=0.0, seed=SEED)
_LOOK_EVERY_S = 0.25
_log = logging.getLogger("qwen_chat_mlx.engine")

_E = TypeVar("_E", ModelReady, TurnFinished)


@dataclass(frozen=True, slots=True)
class RunTask:
    """What one run is to do; made of what JSON can hold."""

    settings: dict[str, Any]
    """Fields of EngineConfig."""
    prompt: str
    prompt_tokens: int
    """How many tokens the prompt is known to be."""
    max_tokens: int
    drop_page_cache: bool = False
    conversations: Sequence[Sequence[str]] = ()
    """The user's messages of conversations to hold instead, one after another, until max_tokens were generated."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What one run brought; made of what JSON can hold."""

    token_ids: tuple[int, ...]
    ids_sha256: str
    finish_reason: str
    figures: dict[str, float | None]
    """By the names of `figures.FIGURES`."""
    depth_counts: tuple[int, ...]
    """Steps by the number of drafts proposed, plain ones at index 0."""
    page_cache: str
    """What was done about the page cache before the prompt."""
    direct_io: bool
    """Whether experts were read past the page cache."""
    model: dict[str, Any]
    """The fields of ModelReady."""
    stats: dict[str, Any]
    """EngineStats of the request, or of the conversations."""
    warnings: tuple[str, ...] = ()
    """What the engine warned of, to its end: a trace that a full disk cut short."""


@dataclass(frozen=True, slots=True)
class Now:
    """How far a run is."""

    phase: str
    done: int
    total: int
    unit: str


def ids_hash(ids: Sequence[int]) -> str:
    """sha256 of token ids as 32-bit little-endian integers."""
    return hashlib.sha256(b"".join(i.to_bytes(4, "little") for i in ids)).hexdigest()


def as_error(kind: str, message: str, hint: str) -> errors.QwenChatError:
    """The error that a class name of engine/errors and its two sentences stand for."""
    found = getattr(errors, kind, None)
    if not isinstance(found, type) or not issubclass(found, errors.QwenChatError):
        found = errors.QwenChatError
    return found(message, hint)


def run_here(task: RunTask, tell: Callable[[Now], None] = lambda _: None) -> RunResult:
    """Carry out a task; `tell` hears how far it is, four times a second and where a stage ends.

    Raises the engine's errors, UsageError when prompt and reply do not fit together.
    """
    heard = _Warnings()
    _log.addHandler(heard)
    try:
        result = _run(task, tell)
    finally:
        _log.removeHandler(heard)
    return replace(result, warnings=tuple(heard.said))


def _run(task: RunTask, tell: Callable[[Now], None]) -> RunResult:
    config = EngineConfig(**task.settings)
    door = _Door(config, tell)
    try:
        ready = door.until(ModelReady)
        if task.prompt_tokens + task.max_tokens > ready.context:
            most = _most_context(ready.path)
            raise errors.UsageError(
                f"{task.prompt_tokens:,} prompt tokens and {task.max_tokens:,} more do not fit the context of {ready.context:,}.",
                "Lower --prompt-tokens or --max-tokens"
                + (f", or raise --context; this model's most is {most:,}." if most > ready.context else "."),
            )
        page_cache = drop_page_cache(Path(ready.path)) if task.drop_page_cache else "left as it was"
        start, cpu = time.perf_counter(), time.process_time()
        ids, reason, stats = _chat(door, task, ready) if task.conversations else _continue(door, task)
        wall_s, cpu_s = door.seen_s - start, time.process_time() - cpu
        outside = {"peak_rss_bytes": float(peak_resident_bytes()), "load_s": ready.load_s, "cpu_s": cpu_s}
        return RunResult(
            token_ids=ids,
            ids_sha256=ids_hash(ids),
            finish_reason=reason,
            figures=figures_of(stats, door.arrivals, wall_s, outside),
            depth_counts=stats.drafts.depth_counts,
            page_cache=page_cache,
            direct_io=stats.ssd.direct_io,
            model=asdict(ready),
            stats=asdict(stats),
        )
    finally:
        door.engine.close()


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def _most_context(folder: str) -> int:
    """Tokens that the model in a folder was made for."""
    from ..checkpoint.index import open_checkpoint
    from ..models.contract import architecture_of  # brings MLX, which who only starts children does without

    index = open_checkpoint(folder)
    return architecture_of(index.config, folder).read_config(index.config, folder).max_context


_Answer = tuple[tuple[int, ...], FinishReason, EngineStats]


def _continue(door: _Door, task: RunTask) -> _Answer:
    """A text continued: one request."""
    done = door.ask(GenerationRequest(REQUEST_ID, (), _GREEDY, max_tokens=task.max_tokens, raw_prompt=task.prompt))
    seen = done.stats.throughput
    if seen.prompt_tokens != task.prompt_tokens or seen.reused_tokens:
        raise errors.RequestError(
            f"The prompt came out as {seen.prompt_tokens:,} tokens, not as {task.prompt_tokens:,}.", "Please report it."
        )
    return done.token_ids, done.finish_reason, done.stats


def _chat(door: _Door, task: RunTask, ready: ModelReady) -> _Answer:
    """Conversations until `max_tokens` were generated in all; each reply to its own end but the last."""
    ids: list[int] = []
    before: EngineStats | None = None
    for lines in task.conversations:
        messages: tuple[Message, ...] = ()
        for line in lines:
            messages += (Message("user", line),)
            left = task.max_tokens - len(ids)
            done = door.ask(GenerationRequest(REQUEST_ID, messages, _GREEDY, max_tokens=left))
            before = minus(door.stats, done.stats) if before is None else before
            ids += done.token_ids
            if len(ids) >= task.max_tokens:
                return tuple(ids), done.finish_reason, minus(door.stats, before)
            said = {kind: "".join(text for k, text in door.said if k == kind) for kind in ("answer", "thinking")}
            messages += (
                Message("assistant", said["answer"], said["thinking"], done.token_ids, ready.tokenizer_fingerprint),
            )
    return tuple(ids), "stop", door.stats if before is None else minus(door.stats, before)


class _Door:
    """An engine and its events with their times. Emitting is an append, so that listening costs a run nothing."""

    def __init__(self, config: EngineConfig, tell: Callable[[Now], None]) -> None:
        self._came: deque[tuple[float, Event]] = deque()
        self._ended = threading.Event()
        self._tell = tell
        self._most = self._tokens = 0
        self.arrivals: list[list[tuple[float, int]]] = []
        """(time, tokens) of every delta of every reply."""
        self.said: list[tuple[str, str]] = []
        """(kind, text) of the latest reply's deltas."""
        self.stats = EngineStats()
        """Everything counted since the model was opened, as of the latest news."""
        self.seen_s = 0.0
        """When the last event that was waited for came, on perf_counter's clock."""
        self.engine = open_engine(config, self._emit)

    def _emit(self, event: Event) -> None:
        self._came.append((time.perf_counter(), event))
        if isinstance(event, (ModelReady, TurnFinished, EngineFailed)):
            self._ended.set()

    def ask(self, request: GenerationRequest) -> TurnFinished:
        """The whole reply. Raises what the engine failed with."""
        self._most = self._tokens + (request.max_tokens or 0)
        self.arrivals.append([])
        self.said.clear()
        self.engine.submit(request)
        return self.until(TurnFinished)

    def until(self, kind: type[_E]) -> _E:
        """The next event of this kind. Raises what the engine failed with."""
        while True:
            self._ended.wait(_LOOK_EVERY_S)
            self._ended.clear()
            now: Now | None = None
            while self._came:
                at, event = self._came.popleft()
                if isinstance(event, TextDelta):
                    self.arrivals[-1].append((at, event.tokens))
                    self.said.append((event.kind, event.text))
                    self._tokens += event.tokens
                    now = Now("decoding", self._tokens, self._most, "tokens")
                elif isinstance(event, ModelLoading):
                    now = Now(event.phase, event.done, event.total, event.unit)
                elif isinstance(event, PrefillProgress):
                    now = Now(event.phase, event.done, event.total, "tokens")
                elif isinstance(event, StatsTaken):
                    self.stats = event.stats
                elif isinstance(event, EngineFailed):
                    raise as_error(event.kind, event.message, event.hint)
                elif isinstance(event, kind):
                    self.seen_s = at
                    if now is not None:
                        self._tell(now)
                    return event
            if now is not None:
                self._tell(now)
