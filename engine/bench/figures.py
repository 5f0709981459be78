"""The figures of one run, derived from the engine's counters and the times of its events. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from ..stats import EngineStats

__all__ = ["FIGURES", "MOST_UNEXPLAINED", "Figure", "figures_of", "token_gaps"]

Unit = Literal["s", "share", "bytes", "bytes/s", "tok/s", "count"]

MOST_UNEXPLAINED = 0.03
"""The parts of a run's time must add up to its wall time this well."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that every run has, or None where there was nothing to count."""

    name: str
    unit: Unit
    label: str


FIGURES = (
    Figure("ttft_s", "s", "time to first token"),
    Figure("prefill_tok_s", "tok/s", "prefill, tok/s"),
    Figure("decode_tok_s", "tok/s", "decode, tok/s"),
    Figure("gap_p50_s", "s", "token gap p50"),
    Figure("gap_p95_s", "s", "token gap p95"),
    Figure("gap_max_s", "s", "token gap, longest"),
    Figure("acceptance", "share", "drafts accepted"),
    Figure("tokens_per_round", "count", "tokens per round"),
    Figure("hit_rate", "share", "expert hits"),
    Figure("draft_hit_rate", "share", "draft expert hits"),
    Figure("loads_per_token", "count", "experts loaded a token"),
    Figure("plain_bytes_per_token", "bytes", "read a token: plain"),
    Figure("verify_bytes_per_token", "bytes", "read a token: verify"),
    Figure("draft_bytes_per_token", "bytes", "read a token: draft"),
    Figure("ssd_p50_s", "s", "SSD read p50"),
    Figure("ssd_p95_s", "s", "SSD read p95"),
    Figure("ssd_p99_s", "s", "SSD read p99"),
    Figure("ssd_bytes_s", "bytes/s", "SSD throughput"),
    Figure("read_bytes", "bytes", "experts read, prompt too"),
    Figure("page_cache_share", "share", "  from the page cache"),
    Figure("peak_rss_bytes", "bytes", "peak resident memory"),
    Figure("plan_bytes", "bytes", "memory planned"),
    Figure("mlx_peak_bytes", "bytes", "peak of MLX arrays"),
    Figure("load_s", "s", "opening the model"),
    Figure("wall_s", "s", "whole request"),
    Figure("cpu_s", "s", "  CPU time of all threads"),
    Figure("prefill_s", "s", "  prefill"),
    Figure("plain_s", "s", "  plain steps"),
    Figure("draft_s", "s", "  draft"),
    Figure("verify_s", "s", "  verify"),
    Figure("rewind_s", "s", "  rewind"),
    Figure("other_s", "s", "  other"),
    Figure("unexplained_share", "share", "  in none of these"),
    Figure("router_sync_s", "s", "wait for routers"),
    Figure("ssd_wait_s", "s", "wait for experts"),
    Figure("rows_wait_s", "s", "wait for table rows"),
    Figure("output_sync_s", "s", "wait for outputs"),
)


def token_gaps(arrivals: Sequence[tuple[float, int]]) -> list[float]:
    """Seconds between neighbouring tokens, ascending, from (time, tokens) of every delta of a reply.

    Tokens that arrive together, as accepted drafts do, are 0 s apart.
    """
    times = [at for at, tokens in arrivals for _ in range(tokens)]
    return sorted(later - earlier for earlier, later in pairwise(times))


def figures_of(
    stats: EngineStats, replies: Sequence[Sequence[tuple[float, int]]], wall_s: float, outside: Mapping[str, float]
) -> dict[str, float | None]:
    """Every figure by name. `stats` are those of the replies, whose deltas' (time, tokens) are given; `outside` has
    peak_rss_bytes, load_s and cpu_s."""
    t, timing, ssd = stats.throughput, stats.timing, stats.ssd
    gaps = sorted(gap for arrivals in replies for gap in token_gaps(arrivals))
    made = t.generated_tokens
    parts = {n: getattr(timing, n) for n in ("prefill_s", "plain_s", "draft_s", "verify_s", "rewind_s", "other_s")}
    waits = {n: getattr(timing, n) for n in ("router_sync_s", "ssd_wait_s", "rows_wait_s", "output_sync_s")}
    pools = (stats.experts, stats.draft_experts)
    kinds = ("plain", "verify", "draft")
    by_kind = {
        f"{kind}_bytes_per_token": _ratio(sum(getattr(p, f"{kind}_bytes") for p in pools), made) for kind in kinds
    }
    return {
        "ttft_s": t.ttft_s,
        "prefill_tok_s": _ratio(t.prefill_tokens, t.prefill_s),
        "decode_tok_s": t.decode_rate,
        "gap_p50_s": _quantile(gaps, 0.5),
        "gap_p95_s": _quantile(gaps, 0.95),
        "gap_max_s": gaps[-1] if gaps else None,
        "acceptance": stats.drafts.acceptance,
        "tokens_per_round": stats.drafts.tokens_per_round,
        "hit_rate": stats.experts.hit_rate,
        "draft_hit_rate": stats.draft_experts.hit_rate,
        "loads_per_token": _ratio(sum(p.decode_misses for p in pools), made),
        **by_kind,
        "ssd_p50_s": ssd.latency.quantile_s(0.5),
        "ssd_p95_s": ssd.latency.quantile_s(0.95),
        "ssd_p99_s": ssd.latency.quantile_s(0.99),
        "ssd_bytes_s": _ratio(ssd.read_bytes, ssd.busy_s),
        "read_bytes": float(ssd.read_bytes),
        "page_cache_share": _ratio(ssd.cached_bytes, ssd.judged_bytes),
        "plan_bytes": float(stats.memory.plan_bytes),
        "mlx_peak_bytes": float(stats.memory.peak_bytes),
        "wall_s": wall_s,
        **parts,
        "unexplained_share": _ratio(wall_s - sum(parts.values()), wall_s),
        **waits,
        **outside,
    }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _quantile(ascending: Sequence[float], q: float) -> float | None:
    """The smallest value that at least a share `q` of the values do not exceed."""
    return ascending[max(0, -int(-q * len(ascending) // 1) - 1)] if ascending else None
