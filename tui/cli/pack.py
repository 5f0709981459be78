"""Rewrite a model so that every expert is one aligned read, with fewer bits if you like; continue after a break.

The new folder holds all that is needed to run and is opened with --model like any other. Nothing in it can be opened
before everything is there.
"""

from __future__ import annotations

import argparse
import contextlib
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...engine.checkpoint.pack import Packed
    from ...engine.checkpoint.pack_manifest import PackManifest

_FORMS = ("mxfp4", "mxfp8", "affine8", "affine4", "bf16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="SRC", help='model folder to read, or "org/name" of one in the Hugging Face cache'
    )
    parser.add_argument(
        "target", metavar="DST", nargs="?",
        help="folder to write; a new one, or one of a run that was stopped; left out with --verify, which then checks SRC",
    )  # fmt: skip
    parser.add_argument(
        "--experts", choices=_FORMS, default="mxfp4",
        help="how experts are stored: 4 bits (mxfp4, affine4), 8 bits (mxfp8, affine8) or 16 (bf16), which doubles FP8 ones; "
        "default mxfp4",
    )  # fmt: skip
    parser.add_argument(
        "--resident", type=int, choices=(8, 16), default=16,
        help="bits of the large matrices that stay in memory; 16 (the default) leaves them as they are",
    )  # fmt: skip
    parser.add_argument(
        "--verify", action="store_true",
        help="afterwards read everything again and compare the hashes; with one folder alone: of what was packed before",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from ...engine.errors import UsageError
    from ._flags import refuse_empty

    refuse_empty(SRC=args.source, DST=args.target)
    if args.target is None and not args.verify:
        raise UsageError("The folder to write, DST, is missing.", "See `qwen-chat pack --help`.")
    folder = os.path.expanduser(args.source if args.target is None else args.target)
    done = None if args.target is None else _pack(args, folder)
    manifest = _verified(folder) if args.verify or done is None else done.manifest
    for line in _report(folder, manifest, done, verified=args.verify):
        print(line)
    return 0


def _pack(args: argparse.Namespace, folder: str) -> Packed:
    from ...engine.checkpoint.pack import pack
    from ..text.numbers import size
    from ..text.sanitise import one_line

    def planned(target: int, source: int) -> None:
        print(f"{one_line(folder)} takes {size(target)}, {_change(target, source)} than the source.", flush=True)

    with _progress("packing") as told:
        return pack(args.source, folder, experts=args.experts, resident=args.resident, planned=planned, progress=told)


def _verified(folder: str) -> PackManifest:
    from ...engine.checkpoint.pack import verify

    with _progress("verifying") as told:
        return verify(folder, told)


def _report(folder: str, manifest: PackManifest, done: Packed | None, *, verified: bool) -> list[str]:
    """What is in the folder; `done` is None where it was only looked at."""
    from ..text.sanitise import one_line

    e = manifest.experts
    how = "packed" if done is not None and not done.already else "was packed before"
    change = f", {_change(e.blob_bytes, done.source_expert_bytes)} than in the source" if done is not None else ""
    return [
        f"{one_line(folder)}: {how}, {manifest.total_bytes:,} bytes in {len(manifest.files)} files"
        + (", all of them verified" if verified else ""),
        f"experts: {len(e.layers)} layers x {e.count}, {e.form}, {e.blob_bytes:,} bytes a read{change}",
        f"open it with: qwen-chat --model {one_line(_as_argument(folder), 4096)}",
    ]


def _as_argument(folder: str) -> str:
    """How a shell is given a folder that --model takes for nothing else."""
    import shlex

    from ..models import DEMO

    return shlex.quote(f"./{folder}" if folder == DEMO else folder)


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
