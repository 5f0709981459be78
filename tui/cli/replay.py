"""Replay a trace against expert cache policies and sizes, with the best any policy could have done."""

from __future__ import annotations

import argparse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...engine.bench.replay import ReplayResult
    from ...engine.trace import Trace

BELADY = "belady"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", metavar="FILE", help="a file that --trace wrote")
    parser.add_argument(
        "--policy", metavar="NAME", action="append", default=[], dest="policies",
        help="a policy to replay: decay, lru, lfu or belady (all when none is given); may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--cycles", metavar="N,N,...", help="cache sizes in token cycles: one holds the experts that one token asks for"
    )
    parser.add_argument("--pool", choices=("trunk", "draft"), default="trunk", help="whose experts (trunk)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from ...engine.bench.replay import CYCLES, compare, slots_for
    from ...engine.trace import read_trace

    policies = _policies(args.policies)
    cycles = _cycles(args.cycles) if args.cycles is not None else CYCLES
    trace = read_trace(args.trace)
    _refuse_empty(args.trace, trace, args.pool)
    sizes = [slots_for(trace, c, args.pool) for c in cycles]
    rows = compare(trace, policies, sizes, args.pool)
    if args.json:
        print(_as_json(trace, args.pool, cycles, rows))
    else:
        _show(trace, args.pool, cycles, rows)
    return 0


def _policies(names: list[str]) -> list[str]:
    """The policies asked for, each once. Raises UsageError naming the nearest."""
    from ...engine.bench.replay import POLICIES
    from ...engine.errors import UsageError, nearest

    known = [*POLICIES, BELADY]
    for name in names:
        if name not in known:
            near = nearest(name, known, 1)
            meant = f"; did you mean {near[0]!r}?" if near else "."
            raise UsageError(f"There is no policy {name!r}{meant}", "Known are " + ", ".join(known) + ".")
    return list(dict.fromkeys(names or known))


def _cycles(text: str) -> list[float]:
    """Ascending sizes. Raises UsageError."""
    from ...engine.errors import UsageError

    try:
        found = sorted({float(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or not all(0 < c < 1e6 for c in found):
        raise UsageError(
            f"--cycles takes positive numbers with commas between them, not {text!r}.", "--cycles 0.75,1.5,3"
        )
    return found


def _refuse_empty(path: str, trace: Trace, pool: str) -> None:
    from ...engine.errors import UsageError

    if not any(r.pool == pool and r.kind != "prompt" for r in trace.routes):
        raise UsageError(
            f"The trace {path} has no decoding of the {pool}'s experts.",
            "Record a reply with --trace FILE" + (", with drafting on." if pool == "draft" else "."),
        )


def _as_json(trace: Trace, pool: str, cycles: Sequence[float], rows: list[list[ReplayResult]]) -> str:
    import json
    from dataclasses import asdict

    results = [{"cycles": c, **asdict(r), "hit_rate": r.hit_rate} for row in rows for c, r in zip(cycles, row)]
    return json.dumps({"header": asdict(trace.header), "pool": pool, "results": results}, indent=2)


def _show(trace: Trace, pool: str, cycles: Sequence[float], rows: list[list[ReplayResult]]) -> None:
    from rich.table import Table

    from ..text.sanitise import one_line
    from ._console import TableConsole

    h = trace.header
    console = TableConsole()
    layers = h.layers if pool == "trunk" else 1
    decoding = sum(1 for r in trace.routes if r.pool == pool and r.kind != "prompt")
    console.print(
        f"{pool}: {layers} layers x {h.experts} experts, {h.top_k} a token; {decoding // layers:,} forwards of decoding; "
        f"recorded with {h.slots if pool == 'trunk' else h.draft_slots:,} slots, policy {one_line(h.policy) or 'unknown'}"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("token cycles\nslots", no_wrap=True)
    for c, result in zip(cycles, rows[0]):
        table.add_column(f"{c:g}\n{result.slots:,}", justify="right")
    best = {row[0].policy: row for row in rows}
    for row in rows:
        cells = [_cell(r, best.get("lru", []), best.get(BELADY, []), i) for i, r in enumerate(row)]
        table.add_row(row[0].policy, *cells)
    console.print(table)
    console.print("Hits in % of lookups; in brackets the % of the way from lru to belady, which knows the future.")


def _cell(result: ReplayResult, lru: list[ReplayResult], belady: list[ReplayResult], i: int) -> str:
    """Hit rate, and how much of the way from LRU to the best possible it is, where both are there."""
    rate = result.hit_rate
    if rate is None:
        return "-"
    shown = f"{100 * rate:.1f}"
    if not lru or not belady or result.policy in ("lru", BELADY) or belady[i].hits == lru[i].hits:
        return shown
    gap = (result.hits - lru[i].hits) / (belady[i].hits - lru[i].hits)
    return f"{shown} ({100 * gap:.0f})"
