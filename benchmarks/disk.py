"""The disk, raw and through the reader: `python benchmarks/disk.py [FILE]`. Without a file a temporary one is written.

Shows that the reader reaches at least 0.9 of a plain loop of equal direct reads in the same run.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from statistics import median

from measuring import Target, console, need_space, scratch_folder, size, verdict
from rich.table import Table

from qwen_chat_mlx.engine.bench.disk import ARMS, measure_disk

MIB = 1 << 20


def written(folder: Path, n_bytes: int) -> Path:
    """A file of random bytes, on the disk when this returns."""
    path = folder / "reads.bin"
    with path.open("wb") as file:
        for _ in range(n_bytes // MIB):
            file.write(os.urandom(MIB))
        file.flush()
        os.fsync(file.fileno())
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, help="a large file on the disk to measure, such as a shard")
    parser.add_argument("--folder", type=Path, help="where to write the temporary file")
    parser.add_argument("--file-mib", type=int, default=2048)
    parser.add_argument("--expert-bytes", type=int, default=2_654_208)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pass-mib", type=int, default=256)
    args = parser.parse_args()
    path, made = args.file, None
    if path is None:
        folder, ours = scratch_folder(args.folder)
        need_space(folder, args.file_mib * MIB)
        path = made = written(folder, args.file_mib * MIB)
    try:
        report = measure_disk(
            str(path), read_bytes=args.expert_bytes, total_bytes=args.pass_mib * MIB, workers=args.workers,
            rounds=args.rounds,
        )  # fmt: skip
    finally:
        if made is not None:
            made.unlink()
            if ours:
                folder.rmdir()
    table = Table(title=f"{size(report.read_bytes)} a read, {report.workers} threads", title_justify="left")
    for column in ("arm", "GB/s", "lowest", "highest", "× raw"):
        table.add_column(column)
    for arm in ARMS:
        rates = report.rates[arm]
        cells = [f"{x / 1e9:.2f}" for x in (median(rates), min(rates), max(rates))]
        table.add_row(arm, *cells, f"{report.ratio(arm):.2f}")
    console.print(table)
    console.print(f"one read alone: {report.alone_s * 1e3:.2f} ms; direct: {report.direct}")
    return verdict(
        [Target(f"{arm} / raw", f"{report.ratio(arm):.2f}", "≥ 0.9", report.ratio(arm) >= 0.9) for arm in ARMS[1:]]
    )


if __name__ == "__main__":
    sys.exit(main())
