"""The loop that joins drafting, checking, rewinding and control: steps of a reply, each plain or with drafts.

A round's tokens are handed out before the trunk keeps its rows; the consumer may answer with how many it takes (a stop
string can end inside a round), and exactly the rows behind those stay. An error or a cancel inside a round leaves the
state before it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import mlx.core as mx

from ..cache.base import LayerCache, arrays_of
from ..cache.recurrent import commit_all
from ..decode import Step
from ..forward import Forward
from ..meter import Meter
from ..models.contract import Model
from ..sampling import Sampler
from ..stats import MAX_DRAFT, DraftStats
from .control import Control, RoundOutcome
from .draft import Draft, Drafter
from .verify import accept, verify

__all__ = ["Rounds", "Timeline"]


class Timeline(Protocol):
    """What a round needs of a session."""

    tokens: list[int]
    caches: list[LayerCache]
    model: Model
    forward: Forward

    @property
    def meter(self) -> Meter: ...

    @property
    def position(self) -> int: ...

    @property
    def room(self) -> int: ...

    def step(self, token: int) -> mx.array:
        """One plain step: logits [V]."""
        ...

    def took(self, ids: Sequence[int], wide: mx.array) -> None:
        """ids with residual wide [T, W] are part of the timeline now."""
        ...

    def last_wide(self) -> mx.array | None:
        """Residual [1, W] of the last row."""
        ...


class Rounds:
    """Speculative decoding of one session."""

    def __init__(
        self, timeline: Timeline, drafter: Drafter, control: Control, *, strict: bool, rejection: bool
    ) -> None:
        self.drafter, self.control = drafter, control
        self._timeline = timeline
        self._strict, self._rejection = strict, rejection
        self._stats = DraftStats()

    def stats(self) -> DraftStats:
        return replace(self._stats, fallbacks=self.control.fallbacks, refilled_pairs=self.drafter.refilled)

    def steps(
        self, logits: mx.array, sampler: Sampler, max_tokens: int, stops: Collection[int]
    ) -> Generator[Step, int | None, None]:
        """The reply behind a prompt's last logits [V], until a stop id, `max_tokens` or the end of the context.

        `send(n)` instead of `next` says that only n of the step's tokens are taken; the reply is over then.
        """
        line = self._timeline
        if max_tokens < 1:
            return
        self.control.start_reply()
        token = self._sample(logits, sampler)
        made = 1
        if (yield Step((token,))) is not None:
            return
        while made < max_tokens and token not in stops and line.room > 0:
            most = min(max_tokens - made - 1, line.room - 1)
            depth = self.control.depth(most)
            if depth:
                step, over = yield from self._round(token, depth, sampler, stops)
            else:
                step = self._plain(token, sampler)
                over = (yield step) is not None
            if over:
                return
            made += len(step.tokens)
            token = step.tokens[-1]

    def _sample(self, logits: mx.array, sampler: Sampler) -> int:
        meter = self._timeline.meter
        with meter.phase("plain"):
            picked = sampler.pick(sampler.filter(logits), self._timeline.position)
            with meter.wait("output_sync"):
                return sampler.commit(int(picked))

    def _plain(self, token: int, sampler: Sampler) -> Step:
        """One token without drafts; its wide hidden is kept for drafting later."""
        step, seconds = self._undrafted(token, sampler)
        self.control.note_plain(seconds)
        return step

    def _undrafted(self, token: int, sampler: Sampler) -> tuple[Step, float]:
        """(step, seconds) of a plain step."""
        start = time.perf_counter()
        with self._timeline.meter.phase("plain"):
            logits = self._timeline.step(token)
            self.drafter.shrink()
        step = Step((self._sample(logits, sampler),))
        s = self._stats
        self._stats = replace(s, plain_steps=s.plain_steps + 1, depth_counts=_plus(s.depth_counts, 0))
        return step, time.perf_counter() - start

    def _round(
        self, anchor: int, depth: int, sampler: Sampler, stops: Collection[int]
    ) -> Generator[Step, int | None, tuple[Step, bool]]:
        """Draft, check, hand out, keep. Returns the step and whether it was the reply's last."""
        line, meter = self._timeline, self._timeline.meter
        begin = time.perf_counter()
        before = self._save()
        with self._all_or_nothing(before), meter.phase("draft"):
            made = self._drafts(anchor, depth, sampler)
        drafted_s = time.perf_counter() - begin
        confidences = tuple(d.confidence for d in made)
        # Rejection sampling is exact only if no draft is left out for what it is.
        drafts = made[: self.control.worth_checking(confidences, selective=not self._rejection)]
        if not drafts:
            with self._all_or_nothing(before):
                self.drafter.end_round()
                step, seconds = self._undrafted(anchor, sampler)
            foreseen = made[0].token == step.tokens[0]
            self.control.note_round(
                RoundOutcome(0, 0, 1, confidences, foreseen, self.drafter.first_rows, drafted_s, seconds, 0.0)
            )
            return step, (yield step) is not None
        checking = time.perf_counter()
        with self._all_or_nothing(before), meter.phase("verify"):
            for cache in line.caches:
                cache.open_span()
            ids = [anchor, *(d.token for d in drafts)]
            wide, logits = verify(line.forward, line.model, line.caches, line.tokens[-16:], ids, strict=self._strict)
            verdict = accept(sampler, logits, drafts, line.position + 1, rejection=self._rejection)
        verify_s = time.perf_counter() - checking
        tokens = [*ids[1 : 1 + verdict.accepted], verdict.token]
        stop = next((i for i, t in enumerate(tokens) if t in stops), None)
        tokens = tokens if stop is None else tokens[: stop + 1]
        for t in tokens:
            sampler.commit(t)
        step = Step(tuple(tokens), len(drafts), min(verdict.accepted, len(tokens)))
        kept, over = len(tokens), False
        try:
            answer = yield step
            if answer is not None:
                kept, over = answer, True
        finally:
            with self._all_or_nothing(before):
                rewind_s = self._keep(kept, ids, wide)
            self._count(step, kept)
            self.control.note_round(RoundOutcome(
                step.drafted, step.accepted, kept, confidences, False, self.drafter.first_rows, drafted_s, verify_s,
                rewind_s,
            ))  # fmt: skip
        return step, over

    def _drafts(self, anchor: int, depth: int, sampler: Sampler) -> list[Draft]:
        line = self._timeline
        drafts: list[Draft] = []
        logits = self.drafter.start(line.tokens, anchor)
        while True:
            position = line.position + 1 + len(drafts)
            drafts.append(self.drafter.choose(logits, sampler, [d.token for d in drafts], position))
            if len(drafts) == depth or not self.control.go_on([d.confidence for d in drafts]):
                return drafts
            logits = self.drafter.go_on(drafts[-1].token)

    def _keep(self, kept: int, ids: Sequence[int], wide: mx.array) -> float:
        """Keep the rows behind the tokens taken (the last one taken was not consumed); seconds until all is evaluated."""
        line = self._timeline
        start = time.perf_counter()
        with line.meter.phase("rewind"):
            commit_all(line.caches, kept)
            self.drafter.end_round()
            rows = mx.contiguous(wide[:kept])
            if not kept:
                self.drafter.rewind(line.position, line.last_wide())
            with line.meter.wait("output_sync"):
                mx.eval(arrays_of(line.caches), self.drafter.arrays(), rows)
        if kept:
            line.took(ids[:kept], rows)
        return time.perf_counter() - start

    def _count(self, step: Step, kept: int) -> None:
        s = self._stats
        proposed, accepted = list(s.proposed_at), list(s.accepted_at)
        for j in range(min(step.drafted, MAX_DRAFT)):
            proposed[j] += 1
            accepted[j] += j < step.accepted
        self._stats = replace(
            s, rounds=s.rounds + 1, zero_rounds=s.zero_rounds + (not step.accepted), proposed=s.proposed + step.drafted,
            accepted=s.accepted + step.accepted, committed=s.committed + kept, proposed_at=tuple(proposed),
            accepted_at=tuple(accepted), depth_counts=_plus(s.depth_counts, step.drafted),
        )  # fmt: skip

    def _save(self) -> tuple[list[Any], Any]:
        """The state of trunk and draft layer, outside a round."""
        return [c.save() for c in self._timeline.caches], self.drafter.save()

    @contextmanager
    def _all_or_nothing(self, before: tuple[list[Any], Any]) -> Iterator[None]:
        """On any error trunk and draft layer are as `before`."""
        caches = self._timeline.caches
        try:
            yield
        except BaseException:
            # Whatever is pending reads slots: it has to be over before anybody gets them.
            mx.eval(arrays_of(caches), self.drafter.arrays())
            for cache, state in zip(caches, before[0]):
                cache.restore(state)
            self.drafter.restore(before[1])
            raise


def _plus(counts: tuple[int, ...], index: int) -> tuple[int, ...]:
    return tuple(n + (i == index) for i, n in enumerate(counts))
