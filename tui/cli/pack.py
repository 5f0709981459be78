"""Rewrite a model so that every expert is one aligned read, with fewer bits if you like; continue after a break.

The new folder holds all that is needed to run and is opened with --model like any other. Nothing in it can be opened
before everything is there.
"""

from __future__ import annotations

import argparse
import contextlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...engine.checkpoint.pack import Packed

_FORMS = ("mxfp4", "mxfp8", "affine8", "affine4", "bf16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="SRC", help='model folder to read, or "org/name" of one in the Hugging Face cache'
    )
    parser.add_argument("target", metavar="DST", help="folder to write; a new one, or one of a run that was stopped")
    parser.add_argument(
        "--experts", choices=_FORMS, default="mxfp4",
        help="how experts are stored: 4 bits (mxfp4, affine4), 8 bits (mxfp8, affine8) or 16 (bf16), which doubles FP8 ones; "
        "default mxfp4",
    )  # fmt: skip
    parser.add_argument(
        "--resident", type=int, choices=(8, 16), default=16,
        help="bits of the large matrices that stay in memory; 16 (the default) leaves them as they are",
    )  # fmt: skip
    parser.add_argument("--verify", action="store_true", help="afterwards read everything again and compare the hashes")


def run(args: argparse.Namespace) -> int:
    from ...engine.checkpoint.pack import pack, verify
    from ..text.numbers import size
    from ..text.sanitise import one_line
    from ._flags import refuse_empty

    refuse_empty(SRC=args.source, DST=args.target)

    def planned(target: int, source: int) -> None:
        print(f"{one_line(args.target)} takes {size(target)}, {_change(target, source)} than the source.", flush=True)

    with _progress("packing") as told:
        done = pack(
            args.source, args.target, experts=args.experts, resident=args.resident, planned=planned, progress=told
        )
    if args.verify:
        with _progress("verifying") as told:
            verify(args.target, told)
    for line in _report(done, verified=args.verify):
        print(line)
    return 0


def _report(done: Packed, *, verified: bool) -> list[str]:
    from ..text.sanitise import one_line

    e = done.manifest.experts
    first = f"{one_line(str(done.folder))}: " + ("was packed before" if done.already else "packed")
    return [
        f"{first}, {done.total_bytes:,} bytes in {len(done.manifest.files)} files"
        + (", all of them verified" if verified else ""),
        f"experts: {len(e.layers)} layers x {e.count}, {e.form}, {e.blob_bytes:,} bytes a read, "
        f"{_change(e.blob_bytes, done.source_expert_bytes)} than in the source",
        f"open it with: qwen-chat --model {one_line(str(done.folder))}",
    ]


def _change(now: int, before: int) -> str:
    share = 1 - now / before
    return f"{abs(share):.0%} {'smaller' if share >= 0 else 'larger'}"


@contextlib.contextmanager
def _progress(what: str) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr where that is a terminal; it shows the file, the bytes, the speed and the time left."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from ..text.sanitise import one_line

    console = Console(stderr=True, highlight=False, markup=False)
    bar = Progress(
        TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(binary_units=True),
        TransferSpeedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[file]}", markup=False),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    with bar:
        task = bar.add_task(what, total=None, file="")
        yield lambda name, done, total: bar.update(task, completed=done, total=total, file=one_line(name))
