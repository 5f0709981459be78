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
    meaning: str


FIGURES = (
    Figure("ttft_s", "s", "from the request to the first token"),
    Figure("prefill_tok_s", "tok/s", "prompt tokens a second"),
    Figure("decode_tok_s", "tok/s", "tokens a second behind the first"),
    Figure("gap_p50_s", "s", "between two tokens, half of them at most"),
    Figure("gap_p95_s", "s", "between two tokens, 95 of 100 at most"),
    Figure("gap_max_s", "s", "between two tokens, the longest"),
    Figure("acceptance", "share", "drafts accepted of those proposed"),
    Figure("tokens_per_round", "count", "tokens out of a round with drafts"),
    Figure("hit_rate", "share", "experts that were in their slots when asked for"),
    Figure("draft_hit_rate", "share", "the same for the draft layer's experts"),
    Figure("plain_bytes_per_token", "bytes", "experts read by plain steps, per token generated"),
    Figure("verify_bytes_per_token", "bytes", "experts read by checking drafts, per token generated"),
    Figure("draft_bytes_per_token", "bytes", "experts read by drafting, per token generated"),
    Figure("ssd_p50_s", "s", "one read, half of them at most"),
    Figure("ssd_p95_s", "s", "one read, 95 of 100 at most"),
    Figure("ssd_p99_s", "s", "one read, 99 of 100 at most"),
    Figure("ssd_bytes_s", "bytes/s", "bytes read by time with a read in flight"),
    Figure("read_bytes", "bytes", "experts read in all, the prompt's included"),
    Figure("page_cache_share", "share", "bytes read that the page cache held already"),
    Figure("peak_rss_bytes", "bytes", "most memory of the process"),
    Figure("plan_bytes", "bytes", "what the memory plan allowed for"),
    Figure("mlx_peak_bytes", "bytes", "most memory in MLX arrays"),
    Figure("load_s", "s", "opening the model"),
    Figure("wall_s", "s", "the whole request, seen from outside"),
    Figure("prefill_s", "s", "of it: the prompt"),
    Figure("plain_s", "s", "of it: plain steps"),
    Figure("draft_s", "s", "of it: drafting"),
    Figure("verify_s", "s", "of it: checking drafts"),
    Figure("rewind_s", "s", "of it: taking back what was refused"),
    Figure("other_s", "s", "of it: tokenizing, marks, text"),
    Figure("unexplained_share", "share", "of it: in no part above"),
    Figure("router_sync_s", "s", "waited for routers, within the parts"),
    Figure("ssd_wait_s", "s", "waited for experts, within the parts"),
    Figure("rows_wait_s", "s", "waited for table rows, within the parts"),
    Figure("output_sync_s", "s", "waited for outputs, within the parts"),
)


def token_gaps(arrivals: Sequence[tuple[float, int]]) -> list[float]:
    """Seconds between neighbouring tokens, ascending, from (time, tokens) of every delta of a reply.

    Tokens that arrive together, as accepted drafts do, are 0 s apart.
    """
    times = [at for at, tokens in arrivals for _ in range(tokens)]
    return sorted(later - earlier for earlier, later in pairwise(times))


def figures_of(
    stats: EngineStats, arrivals: Sequence[tuple[float, int]], wall_s: float, outside: Mapping[str, float]
) -> dict[str, float | None]:
    """Every figure by name. `stats` are one request's; `outside` has peak_rss_bytes and load_s."""
    t, timing, ssd = stats.throughput, stats.timing, stats.ssd
    gaps = token_gaps(arrivals)
    made = t.generated_tokens
    parts = {n: getattr(timing, n) for n in ("prefill_s", "plain_s", "draft_s", "verify_s", "rewind_s", "other_s")}
    waits = {n: getattr(timing, n) for n in ("router_sync_s", "ssd_wait_s", "rows_wait_s", "output_sync_s")}
    pools = (stats.experts, stats.draft_experts)
    by_kind = {
        f"{kind}_bytes_per_token": _ratio(sum(getattr(p, f"{kind}_bytes") for p in pools), made)
        for kind in ("plain", "verify", "draft")
    }
    return {
        "ttft_s": t.ttft_s,
        "prefill_tok_s": _ratio(t.prefill_tokens, t.prefill_s),
        "decode_tok_s": _ratio(made - 1, t.decode_s),
        "gap_p50_s": _quantile(gaps, 0.5),
        "gap_p95_s": _quantile(gaps, 0.95),
        "gap_max_s": gaps[-1] if gaps else None,
        "acceptance": stats.drafts.acceptance,
        "tokens_per_round": stats.drafts.tokens_per_round,
        "hit_rate": stats.experts.hit_rate,
        "draft_hit_rate": stats.draft_experts.hit_rate,
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
