"""One token timeline over a loaded model: sync it with a prompt, step it, mark it, rewind it.

Recurrent states cannot be trimmed, so marks (the states of all layers at one position) are kept at points that later
prompts will share. Invariant: `tokens` are exactly the ids that every cache has seen; after any error it is so again.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import mlx.core as mx
import numpy as np

from .cache.base import arrays_of
from .config import EngineConfig
from .decode import Step, plain_steps
from .errors import ContextFullError, RequestError, UnavailableError
from .loader import Loaded, Progress, Survey, load
from .machine import resident_set_bytes
from .meter import Meter
from .plan import PREFILL_WINDOW, WIDE_KEPT_BYTES
from .prefill import OnProgress, PromptOrder, run_prompt
from .sampling import Sampler
from .speculate.control import Control
from .speculate.draft import Drafter
from .speculate.exact import exact_rows
from .speculate.round import Rounds
from .stats import ContextStats, DraftStats, EngineStats, MemoryStats, MtpStats, ThroughputStats
from .tokenizer import Tokenizer
from .tracing import SessionTrace
from .types import MtpMode, Sampling

__all__ = ["Mark", "Session"]


@dataclass(frozen=True, slots=True)
class Mark:
    """A point of the timeline that can be gone back to."""

    position: int
    states: list[Any]
    """Every layer's saved state."""
    wide: mx.array | None
    """Residual of the last row [1, W]; None at position 0."""
    nbytes: int


class Session:
    """A model and the conversation it has seen. Not thread-safe: one thread opens, uses and closes it."""

    def __init__(self, loaded: Loaded, config: EngineConfig) -> None:
        self.loaded, self.config = loaded, config
        self.model, self.forward = loaded.model, loaded.forward
        self.caches = [layer.new_cache() for layer in self.model.layers]
        self.tokens: list[int] = []
        self.context = loaded.survey.plan.context
        self._order = PromptOrder(config.prefill_step, config.layer_major_threshold)
        self._wide: mx.array | None = None
        self._marks: list[Mark] = [self._mark(0, [c.save() for c in self.caches], None)]
        self._throughput = ThroughputStats()
        self._plain_steps = 0
        """Steps of a model without a draft layer; with one, its rounds count."""
        self._reply: Generator[Step, int | None, None] | None = None
        """The steps that `generate` goes through."""
        self.on_growth: Callable[[], None] = lambda: None
        """Called when the timeline of a reply has grown, all caches being at its end."""
        self._rounds = self._make_rounds()
        self._trace = SessionTrace(self, config.trace) if config.trace else None
        if self._trace is not None:
            trace = self._trace
            self.forward.on_routes = trace.routes
            if self._rounds is not None:
                self._rounds.drafter.on_routes = lambda ids: trace.routes(0, [ids], "draft")

    def _make_rounds(self) -> Rounds | None:
        """Speculative decoding, where the checkpoint has a draft layer."""
        loaded, config = self.loaded, self.config
        if self.model.draft is None or loaded.draft_store is None:
            return None
        drafter = Drafter(
            self.model.draft, loaded.draft_store, self.meter, step=config.prefill_step, keep_bytes=WIDE_KEPT_BYTES
        )
        if config.verify == "strict":
            s = loaded.survey
            self.forward.prove_rows = lambda: exact_rows(
                self.model, range(2, config.max_draft + 2), wide=s.shape.wide, table_width=s.table_width,
                expert_shapes=sorted({(p.shape[0], p.shape[1]) for p in s.layout.parts}), dtype=s.dtype,
            )  # fmt: skip
            if config.mtp != "off":
                _ = self.forward.exact_rows  # now, so that the first round is not measured with it
        control = Control(config.mtp, config.max_draft, config.zero_acceptance_limit)
        return Rounds(
            self, drafter, control, strict=config.verify == "strict", rejection=config.acceptance == "rejection"
        )

    @classmethod
    def open(
        cls, config: EngineConfig, progress: Progress = lambda *_: None, surveyed: Survey | None = None
    ) -> Session:
        """Load the config's model. Raises the errors of `loader.load`."""
        loaded = load(config, progress, s=surveyed)
        try:
            return cls(loaded, config)
        except BaseException:
            loaded.close()
            raise

    def close(self) -> None:
        """End the reading threads; the session is not usable afterwards."""
        if self._trace is not None:
            self._trace.close()
        self.loaded.close()

    # ---- the timeline

    @property
    def meter(self) -> Meter:
        return self.loaded.meter

    @property
    def position(self) -> int:
        """Absolute position of the token that would be sampled next: all tokens up to here have been consumed."""
        return len(self.tokens)

    @property
    def room(self) -> int:
        return self.context - len(self.tokens)

    def prompt(
        self, ids: Sequence[int], boundaries: Sequence[int] = (), progress: OnProgress = lambda *_: None
    ) -> tuple[mx.array, int]:
        """Make `ids` the timeline, computing only what is new. Returns (logits [V] behind the last id, ids reused).

        `boundaries` are prefix lengths at which later prompts may part from this one. Raises RequestError for ids that
        the model does not have, ContextFullError when they do not fit; then the timeline is as before.
        """
        ids = self._checked(ids)
        reused = self.sync(ids)
        new = ids[reused:]
        # As many states as will be kept: in a layer-major pass each one asked for is held until the pass ends.
        cuts = [b - reused for b in boundaries if reused < b < len(ids)][1 - self.loaded.survey.plan.marks :]
        self._make_room(len(cuts) + 1)
        with self.meter.phase("prefill"), self._all_or_nothing():
            last = run_prompt(
                self.forward, self.caches, self.tokens, new, self._order, cuts=cuts,
                on_rows=lambda offset, wide: self._follow(reused + offset, wide, ids),
                on_cut=lambda offset, states, wide: self._add_mark(self._mark(reused + offset, states, wide)),
                on_window=lambda offset: self._fill_drafts(ids[: reused + offset]),
                progress=progress,
            )  # fmt: skip
            self._fill_drafts(ids, lambda done, _: progress(len(new), "draft cache"))
            logits = self.model.head(last)[0]
            last = mx.contiguous(last)
            with self.meter.wait("output_sync"):
                mx.eval(logits, last)
            self._wide = last
            self.tokens.extend(new)
        self.mark()
        return logits, reused

    @property
    def _drafts(self) -> bool:
        """Whether the draft cache is to be kept up with the timeline."""
        return self._rounds is not None and self._rounds.control.mode != "off"

    def _follow(self, start: int, wide: mx.array, ids: Sequence[int]) -> None:
        """Prompt rows have gone through the trunk: the draft layer needs their residuals, a window of them at most."""
        if self._rounds is None:
            return
        drafter = self._rounds.drafter
        drafter.note(start, wide)
        if not self._drafts:
            drafter.shrink()
        elif drafter.kept_rows >= PREFILL_WINDOW:
            self._fill_drafts(ids[: start + wide.shape[0]])

    def _fill_drafts(self, ids: Sequence[int], progress: Callable[[int, int], None] = lambda *_: None) -> None:
        """Draft pairs of all of `ids`, through the trunk by now; their residuals are let go."""
        if self._drafts:
            assert self._rounds is not None
            self._rounds.drafter.fill(ids, progress)

    def step(self, token: int) -> mx.array:
        """Consume one token; logits [V] behind it, being computed."""
        with self._all_or_nothing():
            wide = self.forward.token_major(self.caches, self.tokens[-16:], [token])
            logits = self.model.head(wide)[0]
            # Index keys that no row has looked at yet would pile up unevaluated, with all that they are made of.
            mx.async_eval(logits, arrays_of(self.caches))
        self.took([token], wide)
        self._plain_steps += self._rounds is None
        return logits

    def took(self, ids: Sequence[int], wide: mx.array) -> None:
        """ids with residual wide [T, W] have become part of the timeline; every cache has seen them."""
        if self._rounds is not None:
            self._rounds.drafter.note(self.position, wide)
        self._wide = wide[-1:]
        self.tokens.extend(ids)
        self.on_growth()

    def last_wide(self) -> mx.array | None:
        """Residual [1, W] of the timeline's last row; None when it is empty."""
        return self._wide

    def sync(self, ids: Sequence[int]) -> int:
        """Go back to the latest state whose tokens begin `ids`, leaving at least one id to compute. Returns its length."""
        shared = common_prefix(self.tokens, ids)
        most = min(shared, len(ids) - 1)
        if self.position <= most:
            return self.position
        best = max((m for m in self._marks if m.position <= most), key=lambda m: m.position)
        self.rewind(best)
        return best.position

    def rewind(self, mark: Mark) -> None:
        """Make the timeline end at a mark of its own."""
        for cache, state in zip(self.caches, mark.states):
            cache.restore(state)
        self._wide = mark.wide
        if self._rounds is not None:
            self._rounds.drafter.rewind(mark.position, mark.wide)
        del self.tokens[mark.position :]
        self._marks = [m for m in self._marks if m.position <= mark.position]

    def point(self) -> Mark:
        """The present state, for `rewind`; nobody else knows of it."""
        return self._mark(self.position, [c.save() for c in self.caches], self._wide)

    def mark(self) -> None:
        """Keep the present state as one to come back to."""
        mx.eval(arrays_of(self.caches))
        self._add_mark(self._mark(self.position, [c.save() for c in self.caches], self._wide))

    def _mark(self, position: int, states: list[Any], wide: mx.array | None) -> Mark:
        n_bytes = sum(c.saved_nbytes() for c in self.caches) + (0 if wide is None else wide.nbytes)
        if wide is not None:
            # Left lazy, or as a slice, the row would keep its whole chunk alive.
            wide = mx.contiguous(wide)
            mx.eval(wide)
        return Mark(position, states, wide, n_bytes if position else 0)

    def _add_mark(self, mark: Mark) -> None:
        """Keep a mark within the plan's number; the start stays, and of the others the oldest go first."""
        self._marks = sorted((*(m for m in self._marks if m.position != mark.position), mark), key=lambda m: m.position)
        self._make_room(0)

    def _make_room(self, coming: int) -> None:
        """Forget the oldest marks so that `coming` more keep within the plan, also while they are being made."""
        while len(self._marks) + coming > 1 + self.loaded.survey.plan.marks and len(self._marks) > 1:
            del self._marks[1]

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """On any error the caches, marks and tokens are as they were on entering."""
        saved = [c.save() for c in self.caches]
        draft = self._rounds.drafter.save() if self._rounds is not None else None
        marks, length = list(self._marks), len(self.tokens)
        try:
            yield
        except BaseException:
            # What is still pending reads slots: it has to be over before anybody gets these slots.
            mx.eval(arrays_of(self.caches))
            for cache, state in zip(self.caches, saved):
                cache.restore(state)
            if self._rounds is not None:
                self._rounds.drafter.restore(draft)
            self._marks = marks
            del self.tokens[length:]
            raise

    def _checked(self, ids: Sequence[int]) -> list[int]:
        """The ids as Python integers. Raises RequestError or ContextFullError."""
        ids = [int(i) for i in ids]
        if not ids:
            raise RequestError("The prompt is empty.", "Write something.")
        vocab = self.loaded.survey.shape.vocab
        wrong = next((i for i in ids if not 0 <= i < vocab), None)
        if wrong is not None:
            raise RequestError(f"Token id {wrong} is outside the model's vocabulary of {vocab}.")
        if len(ids) > self.context:
            raise ContextFullError(
                f"The conversation has {len(ids):,} tokens; the context holds {self.context:,}.",
                "Start a new chat, shorten the conversation, or raise model.context.",
            )
        return ids

    def steps(
        self, logits: mx.array, sampler: Sampler, max_tokens: int, stops: Collection[int]
    ) -> Generator[Step, int | None, None]:
        """The reply behind a prompt whose last logits [V] are given; see `Rounds.steps` and `decode.plain_steps`."""
        if self._rounds is None:
            steps = plain_steps(self, logits, sampler, max_tokens, stops)
        else:
            steps = self._rounds.steps(logits, sampler, max_tokens, stops)
        return steps if self._trace is None else self._trace.steps(steps)

    def set_mtp(self, mode: MtpMode) -> None:
        """Change the drafting mode, from the next step on; without a draft layer it stays unavailable."""
        if self._rounds is not None:
            self._rounds.control.set_mode(mode)

    def mtp_now(self) -> MtpStats:
        """Mode, state and the reason for it, with the numbers behind it."""
        if self._rounds is None:
            return MtpStats(mode="off", reason="this model has no MTP layer", limit=self.config.zero_acceptance_limit)
        return self._rounds.control.stats()

    # ---- for scripts

    def score(self, ids: Sequence[int]) -> np.ndarray:
        """Logits float32 [T, V] of every position, one prompt pass from an empty state; the timeline is left alone."""
        ids = self._checked(ids)
        rows: list[np.ndarray] = []
        caches = [layer.new_cache() for layer in self.model.layers]
        run_prompt(
            self.forward, caches, [], ids, self._order,
            on_rows=lambda _, wide: rows.append(np.array(self.model.head(wide))),
        )  # fmt: skip
        return np.concatenate(rows)

    def score_draft(self, ids: Sequence[int]) -> np.ndarray:
        """Draft logits float32 [T - 1, V]: row i is for pair (wide hidden i, token i + 1), from an empty state.

        Raises UnavailableError without a draft layer.
        """
        ids = self._checked(ids)
        if self._rounds is None or self.model.draft is None:
            raise UnavailableError("This model has no MTP layer.", "Choose a release that brings its mtp.* tensors.")
        head = self.model.draft.head
        wide: list[mx.array] = []
        rows: list[np.ndarray] = [np.empty((0, self.loaded.survey.shape.vocab), np.float32)]
        caches = [layer.new_cache() for layer in self.model.layers]
        run_prompt(self.forward, caches, [], ids, self._order, on_rows=lambda _, w: wide.append(w))
        drafter = self._rounds.drafter.fresh()
        all_wide = mx.concatenate(wide)
        drafter.score(lambda a, b: all_wide[a:b], ids[1:], lambda x: rows.append(np.array(head(x))))
        return np.concatenate(rows)

    def routes(self, ids: Sequence[int]) -> np.ndarray:
        """Routed experts int32 [layers, T, top_k] of every position, sorted; from an empty state."""
        ids = self._checked(ids)
        seen: list[list[np.ndarray]] = [[] for _ in self.model.layers]
        before, self.forward.on_routes = self.forward.on_routes, lambda layer, parts: seen[layer].extend(parts)
        try:
            caches = [layer.new_cache() for layer in self.model.layers]
            run_prompt(self.forward, caches, [], ids, self._order)
        finally:
            self.forward.on_routes = before
        return np.stack([np.sort(np.concatenate(parts), axis=-1) for parts in seen]).astype(np.int32)

    def generate(
        self, ids: Sequence[int], max_tokens: int = 256, sampling: Sampling | None = None, ignore_eos: bool = False
    ) -> Iterator[Step]:
        """Continue `ids`; yields steps until a stop id (unless ignored), `max_tokens`, or the end of the context.

        There is one timeline, so another call ends this one: going on with it then raises RequestError.
        """
        ids = self._checked(ids)
        if self._reply is not None:
            self._reply.close()  # a round that is handed out keeps its rows while the timeline is still its own
            self._reply = None
        sampler = Sampler(sampling or Sampling(temperature=0.0), self.loaded.survey.shape.vocab, ids)
        logits, _ = self.prompt(ids)
        stops = () if ignore_eos else self._stops
        mine = self._reply = self.steps(logits, sampler, max_tokens, stops)
        for step in mine:
            yield step
            if mine is not self._reply:
                raise RequestError("Another generate() has taken over this session.", "Finish one before the next.")

    @cached_property
    def _stops(self) -> frozenset[int]:
        """Ids that end a reply; only the tokenizer knows them all."""
        index = self.loaded.survey.index
        return Tokenizer.load(index.folder, index.config, index.generation_config).stop_ids

    def stats(self) -> EngineStats:
        """Everything counted since the model was opened."""
        draft = self.loaded.draft_store
        plan = self.loaded.survey.plan
        marks = self._marks[1:]
        return EngineStats(
            throughput=self._throughput,
            drafts=DraftStats(plain_steps=self._plain_steps) if self._rounds is None else self._rounds.stats(),
            mtp=self.mtp_now(),
            experts=self.loaded.store.stats(),
            draft_experts=EngineStats().draft_experts if draft is None else draft.stats(),
            ssd=self.loaded.reader.stats(),
            memory=MemoryStats(
                active_bytes=mx.get_active_memory(), peak_bytes=mx.get_peak_memory(), cache_bytes=mx.get_cache_memory(),
                rss_bytes=resident_set_bytes(), plan_bytes=plan.total_bytes, limit_bytes=plan.limit_bytes,
                major_faults=resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
            ),
            context=ContextStats(
                used=self.position, limit=self.context, marks=len(marks), mark_bytes=sum(m.nbytes for m in marks)
            ),
            timing=self.meter.copy(),
        )  # fmt: skip

    def count(self, **changes: Any) -> None:
        """Add to the throughput counters; `ttft_s` is replaced."""
        t = self._throughput
        ttft = changes.pop("ttft_s", t.ttft_s)
        self._throughput = replace(t, ttft_s=ttft, **{k: getattr(t, k) + v for k, v in changes.items()})


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids two timelines begin with alike."""
    n = min(len(a), len(b))
    low = 0
    while low < n:
        # Whole stretches are compared at once; only the stretch that differs is looked at closely.
        size = min(1024, n - low)
        if list(a[low : low + size]) != list(b[low : low + size]):
            return low + next(i for i in range(size) if a[low + i] != b[low + i])
        low += size
    return n
