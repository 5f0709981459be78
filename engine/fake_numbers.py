"""The counters of the fake engine: plausible experts, reads, memory and times, made from a seed. Emits nothing."""

from __future__ import annotations

import math
import random

from .events import ModelReady
from .fake_script import FakeDisk
from .stats import (
    MAX_DRAFT,
    ContextStats,
    DraftStats,
    EngineStats,
    ExpertStats,
    HistogramRecorder,
    MemoryStats,
    MtpStats,
    SsdStats,
    ThroughputStats,
    TimingStats,
)
from .types import MtpMode, MtpState

__all__ = ["FakeCounters"]


class FakeCounters:
    """Mutable counters with the names of engine/stats; `copy` makes the frozen value."""

    def __init__(self, model: ModelReady, disk: FakeDisk, seed: int, limit: int) -> None:
        self.model, self.disk, self.limit = model, disk, limit
        self._random = random.Random(seed)
        self._latency = HistogramRecorder()
        self.requests = self.prompt_tokens = self.reused_tokens = self.prefill_tokens = self.generated_tokens = 0
        self.prefill_s = self.decode_s = self.ssd_wait_s = self.draft_s = self.verify_s = self.plain_s = 0.0
        self.ttft_s: float | None = None
        self.rounds = self.zero_rounds = self.proposed = self.accepted = self.committed = self.plain_steps = 0
        self.proposed_at, self.accepted_at = [0] * MAX_DRAFT, [0] * MAX_DRAFT
        self.depth_counts = [0] * (MAX_DRAFT + 1)
        self.fallbacks = self.streak = self.steps = 0
        self.mtp: tuple[MtpMode, MtpState, str, int] = ("off", "UNAVAILABLE", "", 0)
        self.hits = self.misses = self.verify_misses = self.evictions = self.read_bytes = self.reads = 0
        self.busy_s = 0.0
        self.context_used = 0
        total = max(1, model.layers * model.experts_per_layer)
        self.expert_bytes = model.expert_bytes_total // total
        self.slots = min(total, model.expert_cache_bytes // max(1, self.expert_bytes))
        self.resident = 0 if disk.warm_steps else int(self.slots * 0.91)

    @property
    def mtp_reason(self) -> str:
        return self.mtp[2]

    def set_mtp(self, mode: MtpMode, state: MtpState, reason: str, depth: int) -> None:
        self.mtp = (mode, state, reason, depth)

    def prefill(self, tokens: int, seconds: float) -> None:
        self.prefill_tokens += tokens
        self.prefill_s += seconds
        self._look_up(
            self.model.layers * min(self.model.experts_per_layer, tokens * self.model.top_k // 2 + 1), seconds
        )

    def step(self, proposed: int, accepted: int, seconds: float) -> None:
        """One round, or a plain step when nothing was proposed."""
        self.steps += 1
        self.decode_s += seconds
        self.depth_counts[proposed] += 1
        if proposed:
            self.rounds += 1
            self.proposed += proposed
            self.accepted += accepted
            self.committed += accepted + 1
            self.streak = 0 if accepted else self.streak + 1
            self.zero_rounds += not accepted
            for i in range(proposed):
                self.proposed_at[i] += 1
                self.accepted_at[i] += i < accepted
            self.draft_s += seconds * 0.1
            self.verify_s += seconds * 0.9
        else:
            self.plain_steps += 1
            self.plain_s += seconds
        rows = 1 + 0.7 * proposed
        before = self.misses
        self._look_up(int(self.model.layers * self.model.top_k * rows), seconds)
        self.verify_misses += self.misses - before if proposed else 0

    def _look_up(self, lookups: int, seconds: float) -> None:
        warm = min(1.0, self.steps / self.disk.warm_steps) if self.disk.warm_steps else 1.0
        rate = 1.0 if not self.disk.reads else self.disk.hit_rate * warm
        rate = min(1.0, max(0.0, rate + self._random.uniform(-0.02, 0.02))) if self.disk.reads else 1.0
        missed = round(lookups * (1 - rate))
        self.hits += lookups - missed
        self.misses += missed
        grown = min(self.slots, self.resident + missed)
        self.evictions += missed - (grown - self.resident)
        self.resident = grown
        self.read_bytes += missed * self.expert_bytes
        self.reads += missed
        median = self.disk.median_ms / 1e3
        for _ in range(min(missed, 64)):
            took = median * math.exp(self._random.gauss(0, self.disk.spread))
            self._latency.record(took)
        if missed:
            self.busy_s += min(seconds, missed * median * 0.8)
            self.ssd_wait_s += min(seconds, missed * median / 3)

    def copy(self) -> EngineStats:
        mode, state, reason, depth = self.mtp
        resident_bytes = self.resident * self.expert_bytes
        told = self.disk.cached_share
        wall = self.prefill_s + self.decode_s
        return EngineStats(
            ThroughputStats(
                self.requests, self.prompt_tokens, self.reused_tokens, self.prefill_tokens, self.prefill_s,
                self.generated_tokens, self.decode_s, self.ttft_s,
            ),
            DraftStats(
                self.rounds, self.zero_rounds, self.proposed, self.accepted, self.committed, self.plain_steps,
                tuple(self.proposed_at), tuple(self.accepted_at), tuple(self.depth_counts), self.fallbacks,
            ),
            MtpStats(mode, state, reason, depth, self.streak, self.limit),
            ExpertStats(
                self.hits, self.misses, self.evictions, self.read_bytes, slots=self.slots, resident=self.resident,
                resident_bytes=resident_bytes, budget_bytes=self.model.expert_cache_bytes,
                total=self.model.layers * self.model.experts_per_layer, syncs=self.steps * self.model.layers,
                plain_misses=self.misses - self.verify_misses, verify_misses=self.verify_misses,
            ),
            ExpertStats(),
            SsdStats(
                self.reads, self.read_bytes, self.busy_s,
                cached_bytes=int(self.read_bytes * (told or 0)), judged_bytes=self.read_bytes if told is not None else 0,
                latency=self._latency.copy(), direct_io=told is None,
            ),
            MemoryStats(
                active_bytes=resident_bytes + (6 << 30), peak_bytes=self.model.expert_cache_bytes + (7 << 30),
                rss_bytes=resident_bytes + (6 << 30) + (400 << 20), plan_bytes=self.model.expert_cache_bytes + (8 << 30),
                limit_bytes=32 << 30,
            ),
            ContextStats(self.context_used, self.model.context, 2, 64 << 20),
            TimingStats(
                wall, self.prefill_s, self.plain_s, self.draft_s, self.verify_s,
                router_sync_s=wall * 0.2, ssd_wait_s=self.ssd_wait_s, output_sync_s=wall * 0.1,
            ),
        )  # fmt: skip
