"""One request from messages to events: template, prompt, steps, text. Runs on the engine's thread; knows no queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import suppress

from .contract import Emit
from .decode import Step
from .errors import Cancelled, ContextFullError
from .events import PrefillProgress, StatsTaken, TextDelta, TurnFinished, TurnStarted
from .prompt import Prompt
from .reply import Piece, ReplyReader
from .sampling import Sampler, resolve_sampling
from .session import Mark, Session
from .stats import minus
from .tokenizer import Tokenizer
from .types import FinishReason, GenerationRequest

__all__ = ["run_turn"]


def run_turn(
    session: Session, tokenizer: Tokenizer, request: GenerationRequest, emit: Emit, between: Callable[[int], None]
) -> None:
    """Answer a request; ends with TurnFinished or an error of engine/errors. `between(tokens so far)` is called between steps.

    Whatever happens, the session's timeline is whole afterwards, so the next request works.
    """
    before = session.stats()
    ids: list[int] = []
    with session.meter.request():
        turn = _Turn(session, tokenizer, request, emit, between)
        try:
            reason = turn.answer(ids)
        except Cancelled:
            turn.say(turn.reader.finish() if turn.reader is not None else [])
            reason = "cancelled"
        session.mark()
    if turn.reader is not None and turn.reader.stopped:
        del ids[turn.reader.committed :]
    stats = session.stats()
    emit(StatsTaken(stats, time.monotonic()))
    emit(TurnFinished(request.id, tuple(ids), reason, minus(stats, before), turn.seed))


class _Turn:
    def __init__(
        self, session: Session, tokenizer: Tokenizer, request: GenerationRequest, emit: Emit,
        between: Callable[[int], None],
    ) -> None:  # fmt: skip
        self.session, self.tokenizer, self.request = session, tokenizer, request
        self.emit, self.between = emit, between
        self.reader: ReplyReader | None = None
        self.seed = 0
        self._before_stop: Mark | None = None
        """The latest state behind which no part of a stop string can lie; kept only where there are stop strings."""

    def answer(self, ids: list[int]) -> FinishReason:
        """Fill `ids` with the sampled ids; returns why it ended."""
        start = time.perf_counter()
        session, request = self.session, self.request
        config, index = session.config, session.loaded.survey.index
        sampling = resolve_sampling(request.sampling, config, index.generation_config, request.sampling_changes)
        prompt = self._prompt()
        if len(prompt.ids) >= session.context:
            raise ContextFullError(
                f"The conversation has {len(prompt.ids):,} tokens; the context holds {session.context:,}.",
                "Start a new chat, edit an earlier turn, or raise model.context.",
            )
        sampler = Sampler(sampling, session.loaded.survey.shape.vocab, prompt.ids)
        self.seed = sampler.seed
        logits, reused = session.prompt(prompt.ids, prompt.boundaries, self._progress(len(prompt.ids), start))
        prefill_s = time.perf_counter() - start
        session.count(
            requests=1, prompt_tokens=len(prompt.ids), reused_tokens=reused, prefill_s=prefill_s,
            prefill_tokens=len(prompt.ids) - reused,
        )  # fmt: skip
        self.emit(TurnStarted(request.id, len(prompt.ids), reused, prefill_s))
        self.reader = ReplyReader(
            self.tokenizer.token_bytes, think_ids=self.tokenizer.think_ids, starts_thinking=prompt.starts_thinking,
            continues=prompt.continues, stops=request.stop, hidden_ids=self.tokenizer.special_ids,
        )  # fmt: skip
        most = request.max_tokens or config.max_tokens or session.context
        stops = self.tokenizer.stop_ids
        steps = session.steps(logits, sampler, most, stops)
        if request.stop:
            self._before_stop = session.point()
            session.on_growth = self._note_point
        try:
            reason = self._decode(steps, ids, most, start)
        finally:
            steps.close()
            session.on_growth = lambda: None
        if self.reader.stopped and session.position > len(prompt.ids) + self.reader.committed:
            assert self._before_stop is not None
            session.rewind(self._before_stop)
        return reason

    def _note_point(self) -> None:
        reader = self.reader
        if reader is not None and not (reader.holds or reader.stopped):
            self._before_stop = self.session.point()

    def _prompt(self) -> Prompt:
        if self.request.raw_prompt is not None:
            return self.tokenizer.raw(self.request.raw_prompt)
        r = self.request
        return self.tokenizer.render(r.messages, r.think, r.continue_last, r.template_options)

    def _progress(self, total: int, start: float) -> Callable[[float, str], None]:
        """What `session.prompt` reports to: done tokens as events, at most twenty a second."""
        session, last = self.session, [0.0]

        def tell(done: float, phase: str) -> None:
            now = time.perf_counter()
            reused = session.position
            end = done >= total - reused
            if end or now - last[0] >= 0.05:
                last[0] = now
                took = now - start
                rate = done / took if took > 0 else 0.0
                self.emit(PrefillProgress(self.request.id, phase, reused, int(done), total - reused, rate))
                self.between(0)

        return tell

    def _decode(
        self, steps: Generator[Step, int | None, None], ids: list[int], most: int, start: float
    ) -> FinishReason:
        session, reader = self.session, self.reader
        assert reader is not None
        before = start
        for step in steps:
            now = time.perf_counter()
            if ids:
                session.count(generated_tokens=len(step.tokens), decode_s=now - before)
            else:
                session.count(generated_tokens=len(step.tokens), ttft_s=now - start)
            before, earlier = now, len(ids)
            for token in step.tokens:
                ids.append(token)
                if token in self.tokenizer.stop_ids:
                    break
                self.say(reader.feed(token))
                if reader.stopped:
                    self._take_only(steps, step, reader.committed - earlier)
                    return "stop"
            self.between(len(ids))
            session.meter.check()
        self.say(reader.finish())
        if reader.stopped or ids[-1] in self.tokenizer.stop_ids:
            return "stop"
        return "length" if len(ids) >= most else "context"

    @staticmethod
    def _take_only(steps: Generator[Step, int | None, None], step: Step, count: int) -> None:
        """A stop string ended the reply inside `step`: the timeline keeps only what stands before it."""
        with suppress(StopIteration):
            steps.send(max(0, min(count, len(step.tokens))))

    def say(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            self.emit(TextDelta(self.request.id, piece.kind, piece.text, piece.tokens))
