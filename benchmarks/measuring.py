"""What the benchmark scripts share: fresh child processes, their peak memory, targets and tables. Knows no engine."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

__all__ = [
    "Target", "arguments", "bf16_bits", "console", "memory_status", "need_space", "plan_table", "run_child",
    "scratch_folder", "send_result", "size", "verdict", "with_room",
]  # fmt: skip

console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 130)


@dataclass(frozen=True)
class Target:
    """One thing that a benchmark must show."""

    name: str
    measured: str
    wanted: str
    met: bool


def size(n_bytes: float) -> str:
    """Bytes for people, in binary units."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(n_bytes) >= factor:
            return f"{n_bytes / factor:,.2f} {unit}"
    return f"{int(n_bytes)} B"


def memory_status() -> dict[str, int]:
    """Bytes of this process: `rss` now and `peak` since it began (VmHWM); on systems without /proc both are the peak."""
    with suppress(OSError):
        fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text("ascii").splitlines())
        return {key: int(fields[name].split()[0]) * 1024 for key, name in (("rss", "VmRSS"), ("peak", "VmHWM"))}
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"rss": peak, "peak": peak}


def run_child(script: str, task: dict[str, Any], under: Sequence[str] = ()) -> dict[str, Any]:
    """Run `script --child TASK` in a fresh process and return what it sent; its prints go where ours do.

    `under` is a command that runs it. Raises SystemExit(1) when the child fails: it has said why.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [*under, sys.executable, script, "--child", json.dumps(task | {"result": str(result)})]
        code = subprocess.run(command, check=False).returncode
        if code or not result.exists():
            console.print(f"The measuring process ended with status {code} and no result.", style="red")
            raise SystemExit(1)
        return json.loads(result.read_text("utf-8"))


def send_result(task: dict[str, Any], found: dict[str, Any]) -> None:
    """The child's answer to `run_child`."""
    Path(task["result"]).write_text(json.dumps(found), "utf-8")


def arguments(doc: str | None, *, shards: int) -> argparse.ArgumentParser:
    """The arguments of every benchmark that writes checkpoints; `shards` is how many files one has by default."""
    ap = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("folder", type=Path, nargs="?", help="where to write (default: a temporary folder)")
    ap.add_argument("--shards", type=int, default=shards, help="files of a checkpoint")
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--tiny", action="store_true", help="a small model instead, to test this script")
    ap.add_argument("--keep", action="store_true", help="leave what was written where it is")
    ap.add_argument("--child", help=argparse.SUPPRESS)
    return ap


def scratch_folder(asked: Path | None) -> tuple[Path, bool]:
    """(folder to write into, whether it is ours to remove): the one asked for, or a new temporary one."""
    if asked is not None:
        asked.mkdir(parents=True, exist_ok=True)
        return asked, False
    return Path(tempfile.mkdtemp(prefix="qwen-chat-bench-")), True


@contextmanager
def with_room(folder: Path, tokens: int) -> Iterator[str]:
    """Inside, the path of the same model whose config allows contexts of `tokens`: links to its files, and that config."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    part = config.get("text_config", config)
    part["max_position_embeddings"] = max(tokens, part["max_position_embeddings"])
    with tempfile.TemporaryDirectory(prefix="qwen-chat-bench-") as made:
        for file in folder.iterdir():
            if file.name != "config.json":
                Path(made, file.name).symlink_to(file.resolve())
        Path(made, "config.json").write_text(json.dumps(config), "utf-8")
        yield made


def need_space(folder: Path, n_bytes: int) -> None:
    """SystemExit with one sentence unless the folder's disk has room for `n_bytes` and 2 GiB more."""
    free = shutil.disk_usage(folder).free
    if free < n_bytes + (2 << 30):
        console.print(
            f"{folder} has {size(free)} free; {size(n_bytes)} and 2 GiB to spare are needed. "
            "Name a folder on another disk.", style="red",
        )  # fmt: skip
        raise SystemExit(1)


def bf16_bits(values: np.ndarray) -> np.ndarray:
    """float32 as BF16 bits uint16, rounded to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def plan_table(title: str, terms: Iterable[Sequence[Any]], total_bytes: int, peak_bytes: int) -> Table:
    """A memory plan, term by term, above what was measured."""
    table = Table(title=title, title_justify="left")
    table.add_column("term")
    table.add_column("bytes", justify="right")
    table.add_column("", justify="right")
    for name, n in terms:
        table.add_row(name, f"{n:,}", size(n))
    table.add_section()
    table.add_row("plan", f"{total_bytes:,}", size(total_bytes))
    table.add_row(
        "peak resident set", f"{peak_bytes:,}", f"{size(peak_bytes)}  ({peak_bytes / total_bytes:.3f} × plan)"
    )
    return table


def verdict(targets: Sequence[Target]) -> int:
    """Print the targets; the exit status: 0 when all are met."""
    table = Table(title="targets", title_justify="left")
    for column in ("what", "measured", "wanted", ""):
        table.add_column(column)
    for t in targets:
        table.add_row(t.name, t.measured, t.wanted, "[green]met[/]" if t.met else "[red]MISSED[/]")
    console.print(table)
    return 0 if all(t.met for t in targets) else 1
