"""Measure speed, reads and memory of one or several settings on the same text, each run in a process of its own."""

from __future__ import annotations

import argparse
import sys

from ._flags import add_model_flags, load_settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...engine.bench.bench import Bench, Position
    from ...engine.bench.run import Now


_OF_RUNS = {
    "--arm": "arms", "--workload": "workloads", "--prompt-tokens": "prompt_tokens", "--max-tokens": "reply_tokens",
    "--runs": "runs", "--drop-page-cache": "drop_page_cache", "--trace": "trace",
}  # fmt: skip
"""Flags that only say how runs are made, and the names argparse gives them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "example: qwen-chat bench --arm mtp=off --arm mtp=auto --arm mtp=fixed,max_draft=2 --workload code --runs 4. "
        "Runs are greedy, begin without anything kept from another, and alternate between the arms: A B B A."
    )
    group = parser.add_argument_group("what is measured")
    group.add_argument(
        "--arm", metavar="NAME=VALUE,...", action="append", default=[], dest="arms",
        help="a configuration: settings to change; may be repeated, the first one is what others are compared with",
    )  # fmt: skip
    group.add_argument(
        "--workload", metavar="TEXT", action="append", default=[], dest="workloads",
        help="code, novel (both when none is given) or a text file, to be continued, or chat: conversations; may be repeated",
    )  # fmt: skip
    group.add_argument("--prompt-tokens", metavar="N", type=int, help="length of a text's prompt (4096)")
    group.add_argument(
        "--max-tokens",
        metavar="N",
        type=int,
        dest="reply_tokens",
        help="length of the reply, in a chat of all replies (256)",
    )
    group.add_argument("--runs", metavar="N", type=int, help="runs of each arm (2)")
    group.add_argument(
        "--drop-page-cache", action="store_true",
        help="before each prompt ask the system to forget the model's files, where it can",
    )  # fmt: skip
    group.add_argument(
        "--io", action="store_true",
        help="measure the disk instead: raw reads and the engine's own, at growing numbers of reads in flight",
    )  # fmt: skip
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print JSON, every run included")
    shown.add_argument("--markdown", action="store_true", help="print Markdown")
    add_model_flags(parser)


def run(args: argparse.Namespace) -> int:
    if not args.io:
        return _bench(args)
    for flag, field in _OF_RUNS.items():
        if getattr(args, field) not in (None, False, []):
            from ...engine.errors import UsageError

            raise UsageError(f"{flag} means nothing to --io, which measures the disk.", "Leave out one of them.")
    return _io(args)


def _bench(args: argparse.Namespace) -> int:
    from ...engine.bench.arms import parse_arms
    from ...engine.bench.bench import Bench, measure
    from ...engine.bench.workloads import BUNDLED, load_workload
    from ..config_text import parse_scalar
    from . import say
    from ._bench_text import as_markdown, show
    from ._flags import refuse_empty

    for name in args.workloads:
        refuse_empty(__workload=name)
    arms = parse_arms(args.arms, load_settings(args).engine, parse_scalar)
    given = {"prompt_tokens": args.prompt_tokens, "max_tokens": args.reply_tokens, "runs": args.runs}
    numbers = {name: n for name, n in given.items() if n is not None}
    benches = [
        Bench(arms, load_workload(name), **numbers, drop_page_cache=args.drop_page_cache)
        for name in dict.fromkeys(args.workloads or BUNDLED)
    ]
    _refuse_shared_trace(benches)
    progress = _Progress(len(benches))
    reports = []
    for bench in benches:
        progress.begin(bench.workload.name)
        try:
            reports.append(measure(bench, progress.tell))
        finally:
            progress.clear()
        for arm in reports[-1].arms:
            for warning in dict.fromkeys(w for r in arm.runs for w in r.warnings):
                say(f"{arm.name}: {warning}")
        if not args.json:
            sys.stdout.write(as_markdown(reports[-1])) if args.markdown else show(reports[-1])
            sys.stdout.flush()
    if args.json:
        import json

        print(json.dumps({"reports": [r.as_json() for r in reports]}, indent=2))
    return 0


def _refuse_shared_trace(benches: list[Bench]) -> None:
    """Raise UsageError where a run would replace the trace of one before."""
    traces = [a.config.trace for b in benches for a in b.arms for _ in range(b.runs) if a.config.trace]
    shared = next((t for t in traces if traces.count(t) > 1), None)
    if shared is not None:
        from ...engine.errors import UsageError

        raise UsageError(
            f"{traces.count(shared)} runs would write the trace {shared}, each over the one before.",
            "Measure one --workload with --runs 1, and name a file in every --arm: --arm mtp=off,trace=FILE",
        )


def _io(args: argparse.Namespace) -> int:
    from ...engine.bench.io import ARMS, measure_io
    from ._bench_text import io_as_markdown, show_io
    from ._talk import Progress

    progress = Progress()
    try:
        report = measure_io(load_settings(args).engine, lambda depth: progress.say(f"{depth} reads in flight"))
    finally:
        progress.clear()
    if args.json:
        import json
        from dataclasses import asdict

        found = asdict(report)
        for shown, d in zip(found["depths"], report.depths):
            shown["ratios"] = {arm: d.ratio(arm) for arm in ARMS}
        print(json.dumps(found, indent=2))
    elif args.markdown:
        print(io_as_markdown(report))
    else:
        show_io(report)
    return 0


class _Progress:
    """Where a benchmark is, as one line on stderr."""

    def __init__(self, benches: int) -> None:
        from ._talk import Progress

        self._line = Progress()
        self._workload, self._benches, self._number = "", benches, 0

    def begin(self, workload: str) -> None:
        self._workload, self._number = workload, self._number + 1

    def tell(self, here: Position, now: Now | None) -> None:
        workload = f"{self._workload} ({self._number} of {self._benches})" if self._benches > 1 else self._workload
        line = f"{workload}, run {here.number} of {here.of}, {here.arm}: "
        if now is None:
            self._line.say(line + "starting")
        else:
            amount = f" {now.done:,}/{now.total:,} {now.unit}" if now.total else ""
            self._line.say(line + now.phase + amount)

    def clear(self) -> None:
        self._line.clear()
