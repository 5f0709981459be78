"""The one thread that owns MLX, from loading a model to its end: takes requests from a queue, emits events.

Every MLX array is made, used and dropped on this thread. Errors are caught here once and worded as EngineFailed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from .config import EngineConfig
from .contract import Emit
from .errors import EngineClosedError, QwenChatError
from .events import EngineFailed, ModelLoading, ModelReady, MtpChanged, StatsTaken, TurnFinished
from .stats import EngineStats, MemoryStats, MtpStats
from .types import GenerationRequest, MtpMode

if TYPE_CHECKING:
    from .loader import Survey
    from .session import Session
    from .tokenizer import Tokenizer

__all__ = ["EngineWorker"]

STATS_EVERY_S = 0.25
_log = logging.getLogger("qwen_chat_mlx.engine")


class EngineWorker:
    """The engine behind the door; see engine/contract for the four methods."""

    def __init__(self, config: EngineConfig, emit: Emit) -> None:
        self._config, self._emit = config, emit
        self._changed = threading.Condition()
        self._queue: deque[GenerationRequest] = deque()
        self._running: str | None = None
        self._cancelled: set[str] = set()
        self._mode: MtpMode | None = None
        self._closed = self._ended = False
        self._next_stats = 0.0
        self._shown_mtp: tuple[str, str] | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    # ---- the door, any thread

    def submit(self, request: GenerationRequest) -> None:
        with self._changed:
            if self._closed or self._ended:
                raise EngineClosedError("The engine is closed.", "Open the model again.")
            self._queue.append(request)
            self._changed.notify()

    def cancel(self, request_id: str) -> None:
        with self._changed:
            if request_id == self._running or any(r.id == request_id for r in self._queue):
                self._cancelled.add(request_id)
                self._changed.notify()

    def set_mtp(self, mode: MtpMode) -> None:
        with self._changed:
            self._mode = mode
            self._changed.notify()

    def close(self, timeout_s: float = 2.0) -> bool:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # ---- the engine's thread

    def _run(self) -> None:
        try:
            self._serve()
        except QwenChatError as e:
            # Closing is what was asked for, not a failure to be told.
            if not (self._closed and isinstance(e, EngineClosedError)):
                self._fail(e, None, fatal=True)
        except MemoryError:
            self._fail(
                QwenChatError("There is not enough memory to open this model.", "Lower the budgets."), None, fatal=True
            )
        except Exception as e:  # noqa: BLE001 - the last place where anything can still be told
            _log.exception("the engine's thread ended")
            self._fail(_unexpected(e), None, fatal=True)
        finally:
            with self._changed:
                self._ended = True
                left, self._queue = list(self._queue), deque()
            for request in left:
                self._emit(TurnFinished(request.id, (), "cancelled", EngineStats()))

    def _serve(self) -> None:
        from . import turn  # noqa: F401  or the first reply would wait for this import
        from .loader import survey
        from .session import Session
        from .tokenizer import Tokenizer

        self._loading("reading headers", 0, 0, "tensors")
        surveyed = survey(self._config)
        index = surveyed.index
        tokenizer = Tokenizer.load(index.folder, index.config, index.generation_config)  # before minutes of weights
        self._emit(StatsTaken(_planned(self._config, surveyed), time.monotonic()))
        session = Session.open(self._config, self._loading, surveyed)
        try:
            session.meter.cancel = self._should_stop
            self._emit(_ready(session, tokenizer))
            self._show_mtp(session, 0)
            while (request := self._next(session)) is not None:
                self._answer(session, tokenizer, request)
        finally:
            session.close()

    def _loading(self, phase: str, done: int, total: int, unit: str) -> None:
        self._emit(ModelLoading(phase, done, total, unit))
        if self._closed:
            raise EngineClosedError("The engine was closed while loading.")

    def _next(self, session: Session) -> GenerationRequest | None:
        """Wait for a request; None when the engine is closed. Mode changes are taken meanwhile."""
        while True:
            with self._changed:
                self._running = None
                while not (self._queue or self._closed or self._mode is not None):
                    self._changed.wait()
                if self._closed:
                    return None
                request = self._queue.popleft() if self._queue else None
                self._running = request.id if request else None
                if request is not None and request.id in self._cancelled:
                    self._cancelled.discard(request.id)
                    self._emit(TurnFinished(request.id, (), "cancelled", EngineStats()))
                    continue
            self._take_mode(session)
            if request is not None:
                return request

    def _should_stop(self) -> bool:
        return self._closed or self._running in self._cancelled

    def _take_mode(self, session: Session, at_token: int = 0) -> None:
        """Change to the mode that was asked for, if any, and tell what drafting does if that has changed."""
        with self._changed:
            mode, self._mode = self._mode, None
        if mode is not None:
            session.set_mtp(mode)
        self._show_mtp(session, at_token, asked=mode is not None)

    def _show_mtp(self, session: Session, at_token: int, *, asked: bool = False) -> None:
        now = session.mtp_now()
        if asked or (now.mode, now.state) != self._shown_mtp:
            self._shown_mtp = now.mode, now.state
            self._emit(MtpChanged(at_token, now.mode, now.state, now.reason))

    def _answer(self, session: Session, tokenizer: Tokenizer, request: GenerationRequest) -> None:
        from .turn import run_turn

        def between(tokens: int) -> None:
            self._take_mode(session, tokens)
            now = time.monotonic()
            if now >= self._next_stats:
                self._next_stats = now + STATS_EVERY_S
                self._emit(StatsTaken(session.stats(), now))

        failure: QwenChatError | None = None
        try:
            run_turn(session, tokenizer, request, self._emit, between)
        except QwenChatError as e:
            failure = e
        except MemoryError:
            failure = QwenChatError("There was not enough memory for this request.", "Shorten it.")
        except Exception as e:  # noqa: BLE001 - one request may fail in a way nobody foresaw; the next one must work
            _log.exception("request %s failed", request.id)
            failure = _unexpected(e)
        finally:
            with self._changed:
                self._running = None
                self._cancelled.discard(request.id)
        if failure is not None:
            self._emit(StatsTaken(session.stats(), time.monotonic()))
            self._fail(failure, request.id)

    def _fail(self, e: QwenChatError, request_id: str | None, fatal: bool = False) -> None:
        self._emit(EngineFailed(e.message, e.hint, request_id, fatal, type(e).__name__))


def _unexpected(e: Exception) -> QwenChatError:
    said = " ".join(str(e).split())[:300]
    return QwenChatError(f"Something unexpected went wrong ({type(e).__name__}: {said}).", "Please report it.")


def _planned(config: EngineConfig, surveyed: Survey) -> EngineStats:
    """What is known before any weight is read."""
    plan = surveyed.plan
    return EngineStats(
        mtp=MtpStats(limit=config.zero_acceptance_limit),
        memory=MemoryStats(plan_bytes=plan.total_bytes, limit_bytes=plan.limit_bytes),
    )


def _ready(session: Session, tokenizer: Tokenizer) -> ModelReady:
    """What the loaded model is, for the interface."""
    loaded = session.loaded
    s = loaded.survey
    folder = s.index.folder
    return ModelReady(
        name=_name_of(folder, session.config.model),
        path=str(folder),
        layers=s.shape.layers,
        experts_per_layer=s.shape.experts,
        top_k=s.shape.top_k,
        context=s.plan.context,
        vocab_size=s.shape.vocab,
        dtype=str(s.dtype).rsplit(".", 1)[-1],
        has_mtp=s.draft_layout is not None,
        supports_thinking=tokenizer.supports_thinking,
        tokenizer_fingerprint=tokenizer.fingerprint,
        checkpoint_fingerprint=s.index.fingerprint,
        expert_cache_bytes=loaded.store.nbytes,
        expert_bytes_total=s.layout.total_bytes,
        load_s=loaded.load_s,
        notes=s.notes,
        is_demo=session.config.model == "demo",
    )


def _name_of(folder: Path, asked: str) -> str:
    """A name for people: the repository of a cache snapshot, else the folder's name."""
    path = folder
    if path.parent.name == "snapshots" and path.parent.parent.name.startswith("models--"):
        return path.parent.parent.name.removeprefix("models--").replace("--", "/")
    return "demo model" if asked == "demo" else path.resolve().name
