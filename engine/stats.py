"""Counters as frozen values: what the engine measures, copied out whole, and one generic difference.

A counter only grows while a model is open, so the difference of two copies is what happened between them: a window, a
turn, a round. A gauge is a level (bytes resident, streak, state); the difference of two copies keeps the later one.
Seconds end in `_s`, bytes in `_bytes`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from .types import MtpMode, MtpState

__all__ = [
    "MAX_DRAFT",
    "ContextStats",
    "DraftStats",
    "EngineStats",
    "ExpertStats",
    "Histogram",
    "HistogramRecorder",
    "MemoryStats",
    "MtpStats",
    "SsdStats",
    "ThroughputStats",
    "TimingStats",
    "minus",
]

MAX_DRAFT = 5
"""Most drafts a round may hold; the length of every per-position tuple."""

_NO_POSITIONS = (0,) * MAX_DRAFT
_SUB_BITS = 4
_SUB = 1 << _SUB_BITS
_OCTAVES = 32


def gauge(default: Any = 0) -> Any:
    """A dataclass field that is a level, not a count."""
    return field(default=default, metadata={"gauge": True})


def _bucket(value: int) -> int:
    """Index of the bucket of a non-negative integer: exact below 16, then 16 buckets an octave (error <= 6.25 %)."""
    if value < _SUB:
        return value
    shift = value.bit_length() - _SUB_BITS - 1
    return min((shift << _SUB_BITS) + (value >> shift), _OCTAVES * _SUB - 1)


def _bucket_top(index: int) -> int:
    """Largest value that falls into bucket `index`."""
    if index < _SUB:
        return index
    shift = (index >> _SUB_BITS) - 1
    return (((index & (_SUB - 1)) + _SUB + 1) << shift) - 1


@dataclass(frozen=True, slots=True)
class Histogram:
    """Durations in log-linear buckets of whole microseconds, after HdrHistogram. Differences are exact per bucket."""

    counts: tuple[tuple[int, int], ...] = ()
    """(bucket, count) of the buckets that are not empty, ascending."""
    total: int = 0
    max_s: float = 0.0
    """Largest duration since the recorder was made; of a difference, as well as its buckets tell."""

    def quantile_s(self, q: float) -> float | None:
        """Smallest bucket top that at least a share `q` (0..1) of the durations do not exceed, or `max_s` where that is less;
        None when empty."""
        if not self.total:
            return None
        need, seen = max(1, -int(-q * self.total // 1)), 0
        for bucket, count in self.counts:
            seen += count
            if seen >= need:
                return min(_bucket_top(bucket) / 1e6, self.max_s)
        return self.max_s

    def minus(self, earlier: Histogram) -> Histogram:
        before = dict(earlier.counts)
        left = tuple((b, c - before.get(b, 0)) for b, c in self.counts if c > before.get(b, 0))
        top = min(self.max_s, _bucket_top(left[-1][0]) / 1e6) if left else 0.0
        return Histogram(left, self.total - earlier.total, top)


class HistogramRecorder:
    """The mutable side of Histogram. Not locked: its owner records under a lock it holds anyway."""

    __slots__ = ("_counts", "_max_s", "_total")

    def __init__(self) -> None:
        self._counts = [0] * (_OCTAVES * _SUB)
        self._total = 0
        self._max_s = 0.0

    def record(self, seconds: float) -> None:
        self._counts[_bucket(int(seconds * 1e6))] += 1
        self._total += 1
        self._max_s = max(self._max_s, seconds)

    def copy(self) -> Histogram:
        return Histogram(tuple((i, c) for i, c in enumerate(self._counts) if c), self._total, self._max_s)


@dataclass(frozen=True, slots=True)
class ThroughputStats:
    """Tokens and the time they took."""

    requests: int = 0
    prompt_tokens: int = 0
    """Prompt tokens in all, reused ones included."""
    reused_tokens: int = 0
    prefill_tokens: int = 0
    """Prompt tokens that went through the model."""
    prefill_s: float = 0.0
    generated_tokens: int = 0
    decode_s: float = 0.0
    """From the first token to the last; the first token itself belongs to the prefill."""
    ttft_s: float | None = gauge(None)
    """Time to first token of the latest request, from its start on the engine thread; None before the first."""

    @property
    def decode_rate(self) -> float | None:
        """Tokens a second behind the first token of each request; None where there are none."""
        made = self.generated_tokens - self.requests
        return made / self.decode_s if self.decode_s > 0 and made > 0 else None


@dataclass(frozen=True, slots=True)
class DraftStats:
    """Speculative decoding, counted. Position 1 is the first draft of a round."""

    rounds: int = 0
    """Rounds with at least one draft."""
    zero_rounds: int = 0
    """Of those, rounds with no draft accepted."""
    proposed: int = 0
    accepted: int = 0
    committed: int = 0
    """Tokens that came out of rounds, corrections and bonus tokens included."""
    plain_steps: int = 0
    """Steps without a draft."""
    proposed_at: tuple[int, ...] = _NO_POSITIONS
    accepted_at: tuple[int, ...] = _NO_POSITIONS
    depth_counts: tuple[int, ...] = (0,) * (MAX_DRAFT + 1)
    """Steps by the number of drafts proposed, plain ones at index 0."""
    fallbacks: int = 0
    refilled_pairs: int = 0
    """Draft-cache pairs filled in after drafting was off."""

    @property
    def acceptance(self) -> float | None:
        """Accepted over proposed, 0..1; None while nothing was proposed."""
        return self.accepted / self.proposed if self.proposed else None

    @property
    def tokens_per_round(self) -> float | None:
        return self.committed / self.rounds if self.rounds else None


@dataclass(frozen=True, slots=True)
class MtpStats:
    """What drafting is doing now, and why."""

    mode: MtpMode = gauge("off")
    state: MtpState = gauge("UNAVAILABLE")
    reason: str = gauge("")
    depth: int = gauge(0)
    """Drafts of the latest step."""
    streak: int = gauge(0)
    """Consecutive rounds with drafts and none accepted."""
    limit: int = gauge(32)


@dataclass(frozen=True, slots=True)
class ExpertStats:
    """One pool of expert slots. A lookup is one distinct (layer, expert) of one forward: a hit or a miss."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    read_bytes: int = 0
    """Bytes of experts read into slots or layer buffers."""
    layer_reads: int = 0
    """Whole-layer reads of prefill, in experts."""
    handed_over: int = 0
    """Experts that prefill left in the slots."""
    waves: int = 0
    """Times a layer's experts ran in more than one wave."""
    syncs: int = 0
    """Router read-backs."""
    guessed: int = 0
    """Experts that were read because the next layer would probably ask for them."""
    guessed_right: int = 0
    """Of those, the ones it asked for."""
    plain_misses: int = 0
    verify_misses: int = 0
    draft_misses: int = 0
    plain_bytes: int = 0
    verify_bytes: int = 0
    draft_bytes: int = 0
    slots: int = gauge(0)
    resident: int = gauge(0)
    """Slots that hold an expert."""
    resident_bytes: int = gauge(0)
    budget_bytes: int = gauge(0)
    total: int = gauge(0)
    """Experts in the model that this pool serves."""
    prefetch: str = gauge("")
    """What reading ahead does now and why; empty where it is not asked for."""
    of_best: float | None = gauge(None)
    """Hits of the latest stretch of decode over the most that knowing the future would give, 0..1; None until known."""

    @property
    def decode_misses(self) -> int:
        """Misses of plain steps, checks and drafting; the prompt's are not among them."""
        return self.plain_misses + self.verify_misses + self.draft_misses

    @property
    def hit_rate(self) -> float | None:
        """Hits over lookups, 0..1; None before the first lookup."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else None


@dataclass(frozen=True, slots=True)
class SsdStats:
    """Reads as the reader's threads saw them."""

    reads: int = 0
    read_bytes: int = 0
    busy_s: float = 0.0
    """Time with at least one read in flight; read_bytes / busy_s is the throughput."""
    errors: int = 0
    cached_bytes: int = 0
    """Bytes that the operating system said came from its page cache."""
    judged_bytes: int = 0
    """Bytes for which it was asked at all; cached_bytes / judged_bytes is the page-cache share."""
    latency: Histogram = Histogram()
    in_flight: int = gauge(0)
    direct_io: bool = gauge(False)
    buffered_reason: str = gauge("")
    """Why experts are read through the page cache although direct reads were asked for; empty when they are not."""


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Bytes in use now."""

    active_bytes: int = gauge(0)
    """MLX arrays."""
    peak_bytes: int = gauge(0)
    cache_bytes: int = gauge(0)
    """MLX's allocator cache."""
    rss_bytes: int = gauge(0)
    plan_bytes: int = gauge(0)
    """What the memory plan allowed for."""
    limit_bytes: int = gauge(0)
    """What this machine gives."""
    major_faults: int = 0
    """Pages that had to come from disk; swapping shows here."""


@dataclass(frozen=True, slots=True)
class ContextStats:
    """Tokens in the session's timeline."""

    used: int = gauge(0)
    limit: int = gauge(0)
    marks: int = gauge(0)
    mark_bytes: int = gauge(0)


@dataclass(frozen=True, slots=True)
class TimingStats:
    """Where the time of requests went. The phases sum to wall_s; the waits are parts of the phases.

    Waits are timed only at synchronisations that exist anyway.
    """

    wall_s: float = 0.0
    prefill_s: float = 0.0
    plain_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    rewind_s: float = 0.0
    other_s: float = 0.0
    """Templates, tokenizing, marks, emitting: what is in no phase above."""
    router_sync_s: float = 0.0
    """Waiting for the router's choice: the computation up to it included."""
    ssd_wait_s: float = 0.0
    """Waiting for experts that were not there yet."""
    rows_wait_s: float = 0.0
    """Waiting for n-gram rows."""
    output_sync_s: float = 0.0
    """Waiting for logits and states at the end of a forward."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Everything the engine measures, as one value."""

    throughput: ThroughputStats = ThroughputStats()
    drafts: DraftStats = DraftStats()
    mtp: MtpStats = MtpStats()
    experts: ExpertStats = ExpertStats()
    draft_experts: ExpertStats = ExpertStats()
    ssd: SsdStats = SsdStats()
    memory: MemoryStats = MemoryStats()
    context: ContextStats = ContextStats()
    timing: TimingStats = TimingStats()


S = TypeVar("S")


def minus(later: S, earlier: S) -> S:
    """What was counted between two copies of the same stats dataclass; gauges are the later copy's."""
    changed: dict[str, Any] = {}
    for f in fields(later):  # type: ignore[arg-type]
        if f.metadata.get("gauge"):
            continue
        a, b = getattr(later, f.name), getattr(earlier, f.name)
        if isinstance(a, Histogram):
            changed[f.name] = a.minus(b)
        elif isinstance(a, tuple):
            changed[f.name] = tuple(x - y for x, y in zip(a, b, strict=True))
        elif isinstance(a, (int, float)):
            changed[f.name] = a - b
        else:
            changed[f.name] = minus(a, b)
    return replace(later, **changed)  # type: ignore[type-var]
