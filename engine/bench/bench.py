"""A benchmark: arms interleaved A B B A, one fresh process a run, and what comes of it as values. Prints nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from ..config import EngineConfig, settings_of
from ..errors import UsageError
from .arms import Arm
from .child import run_in_child
from .facts import commit, versions
from .figures import FIGURES
from .run import SEED, Now, RunResult, RunTask
from .workloads import Workload, prompt_for

__all__ = ["ArmReport", "Bench", "BenchReport", "Position", "Ratio", "Spread", "measure", "order_of", "ratio_of"]

Runner = Callable[[RunTask, Callable[[Now], None]], RunResult]
_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Bench:
    """What is to be measured."""

    arms: tuple[Arm, ...]
    workload: Workload
    prompt_tokens: int = 4096
    max_tokens: int = 256
    runs: int = 2
    """Of each arm."""
    drop_page_cache: bool = False

    def __post_init__(self) -> None:
        for name, least in (("prompt_tokens", 1), ("max_tokens", 1), ("runs", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"--{name.replace('_', '-')} must be at least {least}.")


@dataclass(frozen=True, slots=True)
class Position:
    """Which run of a benchmark is going on; numbers from 1."""

    number: int
    of: int
    arm: str


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over the runs of an arm."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """Speeds in pairs: the median of their ratios and a bootstrap interval; in a report, of neighbouring runs against the
    first arm's."""

    median: float
    low: float | None
    """2.5 % quantile of the resampled medians; None with fewer than three pairs."""
    high: float | None
    pairs: int


@dataclass(frozen=True, slots=True)
class ArmReport:
    """Everything about one arm."""

    name: str
    changes: dict[str, Any]
    """Settings that the arm sets."""
    config: dict[str, Any]
    """All settings in force, by "table.key"."""
    spreads: dict[str, Spread | None]
    """By the names of `figures.FIGURES`; None where no run had anything to count."""
    ratio: Ratio | None
    """None for the first arm, and where nothing was decoded."""
    depth_counts: tuple[int, ...]
    """Steps by drafts proposed, over all runs."""
    ids_sha256: str
    """Of the first run's output."""
    repeats: bool
    """Every run gave the same ids."""
    same_ids: bool
    """The first run gave the ids of the first arm's."""
    runs: tuple[RunResult, ...]


@dataclass(frozen=True, slots=True)
class BenchReport:
    """A finished benchmark."""

    workload: str
    prompt_tokens: int
    """0 where conversations were held."""
    max_tokens: int
    seed: int
    order: tuple[str, ...]
    """Names of the arms as they ran."""
    commit: str
    """Of the clone; "+" where tracked files differ from it; empty outside a clone."""
    versions: dict[str, str]
    arms: tuple[ArmReport, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def order_of(arms: int, runs: int) -> Iterator[int]:
    """Indices of arms: forwards, backwards, forwards, ... so that a drift meets all of them alike."""
    for r in range(runs):
        yield from range(arms) if r % 2 == 0 else range(arms - 1, -1, -1)


def measure(
    bench: Bench, tell: Callable[[Position, Now | None], None] = lambda *_: None, run: Runner = run_in_child
) -> BenchReport:
    """Carry a benchmark out; `tell` hears of every run as it starts (None) and how far it is.

    Raises UsageError for a text that is too short before anything runs, and what a run raises as soon as one does.
    """
    models = dict.fromkeys(a.config.model for a in bench.arms)
    workload, prompts = bench.workload, dict.fromkeys(models, "")
    tokens = 0 if workload.conversations else bench.prompt_tokens
    if not workload.conversations:
        prompts = {model: prompt_for(workload, model, tokens) for model in models}
    order = list(order_of(len(bench.arms), bench.runs))
    results: list[list[RunResult]] = [[] for _ in bench.arms]
    for number, i in enumerate(order, 1):
        arm = bench.arms[i]
        here = Position(number, len(order), arm.name)
        tell(here, None)
        task = RunTask(
            asdict(arm.config), prompts[arm.config.model], tokens, bench.max_tokens, bench.drop_page_cache,
            workload.conversations,
        )  # fmt: skip
        results[i].append(run(task, lambda now, here=here: tell(here, now)))
    return BenchReport(
        workload=bench.workload.name,
        prompt_tokens=tokens,
        max_tokens=bench.max_tokens,
        seed=SEED,
        order=tuple(bench.arms[i].name for i in order),
        commit=commit(),
        versions=versions(),
        arms=tuple(_report(arm, runs, results[0]) for arm, runs in zip(bench.arms, results)),
    )


def _report(arm: Arm, runs: Sequence[RunResult], first: Sequence[RunResult]) -> ArmReport:
    return ArmReport(
        name=arm.name,
        changes=arm.changes,
        config={s.name: getattr(arm.config, s.field) for s in settings_of(EngineConfig)},
        spreads={f.name: _spread([r.figures.get(f.name) for r in runs]) for f in FIGURES},
        ratio=None if runs is first else _against(runs, first),
        depth_counts=tuple(sum(counts) for counts in zip(*(r.depth_counts for r in runs))),
        ids_sha256=runs[0].ids_sha256,
        repeats=len({r.ids_sha256 for r in runs}) == 1,
        same_ids=runs[0].ids_sha256 == first[0].ids_sha256,
        runs=tuple(runs),
    )


def _spread(values: Sequence[float | None]) -> Spread | None:
    there = [v for v in values if v is not None]
    return Spread(median(there), min(there), max(there)) if there else None


def _against(runs: Sequence[RunResult], first: Sequence[RunResult]) -> Ratio | None:
    pairs = []
    for mine, theirs in zip(runs, first):
        a, b = mine.figures["decode_tok_s"], theirs.figures["decode_tok_s"]
        if a and b:
            pairs.append(a / b)
    return ratio_of(pairs) if pairs else None


def ratio_of(pairs: Sequence[float]) -> Ratio:
    """The median of paired ratios, at least one, with its bootstrap interval."""
    low = high = None
    if len(pairs) >= 3:
        draw = random.Random(SEED)
        medians = sorted(median(draw.choices(pairs, k=len(pairs))) for _ in range(_RESAMPLES))
        low, high = medians[int(0.025 * _RESAMPLES)], medians[int(0.975 * _RESAMPLES) - 1]
    return Ratio(median(pairs), low, high, len(pairs))
