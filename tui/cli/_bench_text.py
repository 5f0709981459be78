"""A benchmark's report as a table on the terminal and as Markdown. Everything shown is in the report."""

from __future__ import annotations

from statistics import median

from ...engine.bench.bench import ArmReport, BenchReport, Spread
from ...engine.bench.figures import FIGURES, MOST_UNEXPLAINED, Unit
from ...engine.bench.io import ARMS as IO_ARMS
from ...engine.bench.io import IoReport
from ..text.numbers import percent, size
from ..text.sanitise import one_line

__all__ = ["as_markdown", "io_as_markdown", "show", "show_io"]

_IO_HEADS = ("in flight", *IO_ARMS, "one alone")

UNKNOWN = "page cache unknown"
_SIZES = ((2**30, " GiB"), (2**20, " MiB"), (2**10, " KiB"))


def show(report: BenchReport) -> None:
    """Print the report as a table."""
    from rich.table import Table

    from ._console import TableConsole

    console = TableConsole()
    console.print(_title(report))
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for arm in report.arms:
        table.add_column(f"{one_line(arm.name)}\n{_page_cache(arm)}", justify="right", overflow="fold")
    for row in _rows(report):
        table.add_row(*row)
    console.print(table)
    for note in _notes(report):
        console.print(note)
    console.print()


def as_markdown(report: BenchReport) -> str:
    """The same as Markdown."""
    heads = ["", *(f"`{one_line(a.name)}` ({_page_cache(a)})" for a in report.arms)]
    lines = [f"### {_title(report)}", "", _cells(heads), _cells(["---", *("--:" for _ in report.arms)])]
    lines += [_cells([row[0].strip(), *row[1:]]) for row in _rows(report)]
    return "\n".join([*lines, "", *(f"* {note}" for note in _notes(report)), "", ""])


def show_io(report: IoReport) -> None:
    """Print what the disk gave as a table."""
    from rich.table import Table

    from ._console import TableConsole

    console = TableConsole()
    console.print(_io_title(report))
    table = Table(box=None, pad_edge=False)
    for head in _IO_HEADS:
        table.add_column(head, justify="right")
    for row in _io_rows(report):
        table.add_row(*row)
    console.print(table)


def io_as_markdown(report: IoReport) -> str:
    """The same as Markdown."""
    table = [list(_IO_HEADS), ["--:"] * len(_IO_HEADS), *_io_rows(report)]
    return "\n".join([f"### {_io_title(report)}", "", *map(_cells, table), ""])


def _io_title(report: IoReport) -> str:
    how = "past the page cache" if all(d.direct for d in report.depths) else "through the page cache"
    return f"{one_line(report.path)}: reads of {size(report.expert_bytes)}, {how}; MB/s, in brackets the share of raw"


def _io_rows(report: IoReport) -> list[list[str]]:
    found = []
    for d in report.depths:
        cells = [f"{median(d.rates[arm]) / 1e6:,.0f}" for arm in IO_ARMS]
        shares = ["", *(f" ({d.ratio(arm):.2f})" for arm in IO_ARMS[1:])]
        found.append([str(d.workers), *(c + s for c, s in zip(cells, shares)), f"{d.alone_s * 1e3:.2f} ms"])
    return found


def _rows(report: BenchReport) -> list[list[str]]:
    """Label and one cell an arm: every figure that some arm has, the ratio, the depths, the hash of the ids."""
    found = []
    for f in FIGURES:
        spreads = [arm.spreads.get(f.name) for arm in report.arms]
        if any(s is not None for s in spreads):
            found.append([f.label, *(_spread(s, f.unit) for s in spreads)])
        if f.name == "decode_tok_s" and len(report.arms) > 1:
            found.append(["  ratio to the first arm", *(_ratio(a) for a in report.arms)])
    if any(sum(a.depth_counts[1:]) for a in report.arms):
        found.append(["steps by drafts: 0, 1, ...", *(_depths(a.depth_counts) for a in report.arms)])
    found.append(["tokens", *(_tokens(a) for a in report.arms)])
    found.append(["sha256 of the ids", *(_hash(a, i) for i, a in enumerate(report.arms))])
    return found


def _notes(report: BenchReport) -> list[str]:
    """What ran where, and what to be careful with; a sentence each."""
    first, runs = report.arms[0].runs[0], len(report.arms[0].runs)
    figures = "Median of the runs, in brackets the lowest and highest." if runs > 1 else "One run of each arm."
    made = ", ".join(f"{name} {v}" for name, v in report.versions.items() if name != "qwen-chat-mlx")
    commit = f" at commit {report.commit}" if report.commit else ""
    found = [
        f"{one_line(first.model['name'])}, {first.model['dtype']}, context {first.model['context']:,}, "
        f"experts in memory: {size(first.model['expert_cache_bytes'])} of {size(first.model['expert_bytes_total'])}",
        f"qwen-chat {report.versions['qwen-chat-mlx']}{commit}; {made}",
        f"{figures} Order: " + " | ".join(map(one_line, report.order)),
        f"Page cache: {one_line(first.page_cache)}.",
    ]
    if any(_page_cache(arm) == UNKNOWN for arm in report.arms):
        found.append(f"{UNKNOWN.capitalize()}: the system does not tell which reads it served from memory.")
    pairs = next((a.ratio.pairs for a in report.arms if a.ratio is not None and a.ratio.low is not None), 0)
    if pairs:
        found.insert(
            3, f"Ratios are medians of {pairs} pairs of neighbouring runs; in brackets a 95% bootstrap interval."
        )
    for arm in report.arms:
        left = arm.spreads["unexplained_share"]
        if left is not None and max(left.high, -left.low) > MOST_UNEXPLAINED:
            found.append(
                f"{one_line(arm.name)}: up to {percent(left.high, 1)} of the time is in no part; these runs are too short, or "
                "the machine was busy."
            )
        if not arm.repeats:
            found.append(f"{one_line(arm.name)}: its runs did not all give the same tokens.")
    return found


def _page_cache(arm: ArmReport) -> str:
    """Where the reads came from, for the head of every column."""
    if all(r.direct_io for r in arm.runs):
        return "reads past the page cache"
    share, read = arm.spreads["page_cache_share"], arm.spreads["read_bytes"]
    if share is not None:
        return f"{_spread(share, 'share')} of reads cached"
    return "nothing read" if read is not None and read.high == 0 else UNKNOWN


def _title(report: BenchReport) -> str:
    begun = f"{report.prompt_tokens:,} prompt tokens, up to {report.max_tokens:,} more"
    held = f"conversations, {report.max_tokens:,} tokens of replies"
    return f"{one_line(report.workload)}: {begun if report.prompt_tokens else held}, greedy, seed {report.seed}"


def _spread(spread: Spread | None, unit: Unit) -> str:
    """Median, then lowest and highest in the same unit where they differ as shown."""
    if spread is None:
        return "-"
    factor, word = _scale(spread.median, unit)
    middle, low, high = (_number(v / factor, unit) for v in (spread.median, spread.low, spread.high))
    return f"{middle}{word}" if low == high else f"{middle}{word} ({low} - {high})"


def _scale(value: float, unit: Unit) -> tuple[float, str]:
    """What to divide by, and the word behind the number."""
    if unit == "s":
        return (1.0, " s") if value >= 1 else (1e-3, " ms")
    if unit == "share":
        return 0.01, "%"
    if unit == "bytes/s":
        return (1e9, " GB/s") if value >= 1e9 else (1e6, " MB/s")
    if unit == "bytes":
        return next(((f, w) for f, w in _SIZES if value >= f), (1.0, " B"))
    return 1.0, ""


def _number(value: float, unit: Unit) -> str:
    """Three digits or so."""
    if value == 0:
        return "0"
    if unit == "share" or 10 <= abs(value) < 100:
        return f"{value:.1f}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def _ratio(arm: ArmReport) -> str:
    r = arm.ratio
    if r is None:
        return "-"
    return f"{r.median:.3f}" if r.low is None else f"{r.median:.3f} ({r.low:.3f} - {r.high:.3f})"


def _depths(counts: tuple[int, ...]) -> str:
    last = max((i for i, n in enumerate(counts) if n), default=0)
    return ", ".join(f"{n:,}" for n in counts[: last + 1])


def _tokens(arm: ArmReport) -> str:
    run = arm.runs[0]
    return f"{len(run.token_ids):,}" + ("" if run.finish_reason == "length" else f" ({run.finish_reason})")


def _hash(arm: ArmReport, index: int) -> str:
    return arm.ids_sha256[:12] + ("" if index == 0 or arm.same_ids else " (differs)")


def _cells(cells: list[str]) -> str:
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"
