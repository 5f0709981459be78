"""How the figures grow with the prompt and with the budget for experts: `python benchmarks/growth.py --record FILE`.

Every run is `qwen-chat bench --json` on the code text in a process of its own, drafting as by default. Runs are added to
FILE, those that it has are not made again, and the tables of all are printed as Markdown; --minutes ends a call early, so
that the rest can be made by another. Bytes of keys, values and states are the memory plan's for the tokens of that run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measuring import size, with_room

from qwen_chat_mlx.engine.checkpoint.folder import find_model
from qwen_chat_mlx.engine.config import EngineConfig
from qwen_chat_mlx.engine.loader import survey

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
SHARES = ("12 %", "25 %", "50 %", "100 %")
FIXED_LENGTH, FIXED_SHARE = 2048, "25 %"


@dataclass(frozen=True)
class Point:
    """One run."""

    prompt_tokens: int
    budget: str


def columns(run: dict[str, Any], held: int) -> list[str]:
    """The cells of one run."""
    f = run["figures"]
    read = sum(f[f"{kind}_bytes_per_token"] or 0 for kind in ("plain", "verify", "draft"))
    share = ["–" if f[n] is None else f"{f[n]:.1%}" for n in ("hit_rate", "acceptance")]
    return [
        f"{f['ttft_s']:.1f} s", f"{f['prefill_tok_s']:.0f}", f"{f['decode_tok_s']:.1f}", size(f["read_bytes"]), size(read),
        size(held), size(f["peak_rss_bytes"]), f"{f['peak_rss_bytes'] / f['plan_bytes']:.2f}", *share,
    ]  # fmt: skip


HEADS = (
    "first token", "prefill, tok/s", "decode, tok/s", "experts read, prompt too", "read a token", "keys, values, states",
    "peak RSS", "÷ plan", "hits", "accepted",
)  # fmt: skip


def bench(model: str, point: Point, reply: int, context: int) -> dict[str, Any]:
    """One run of `qwen-chat bench`."""
    command = [
        sys.executable, "-m", "qwen_chat_mlx", "bench", "--json", "--model", model, "--workload", "code", "--runs", "1",
        "--context", str(context), "--prompt-tokens", str(point.prompt_tokens), "--max-tokens", str(reply),
        "--expert-cache", point.budget,
    ]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    run = json.loads(done.stdout)["reports"][0]["arms"][0]["runs"][0]
    return {"point": [point.prompt_tokens, point.budget], "fingerprint": run["model"]["checkpoint_fingerprint"],
            "figures": run["figures"]}  # fmt: skip


def table(head: str, rows: list[tuple[str, list[str]]]) -> str:
    lines = [[head, *HEADS], ["---", *("--:" for _ in HEADS)], *([name, *cells] for name, cells in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--max-tokens", type=int, default=96, help="of each reply")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no run after so long")
    args = parser.parse_args()
    begun, context = time.monotonic(), max(LENGTHS) + args.max_tokens
    with with_room(Path(find_model(args.model)), context) as model:
        found = survey(EngineConfig(model=model, context=context))
        needs, pool = found.needs, found.needs.experts
        least = str(pool.top_k * pool.slot_bytes)
        lines = args.record.read_text("utf-8").splitlines() if args.record.exists() else []
        runs = [r for r in map(json.loads, lines) if r["fingerprint"] == found.index.fingerprint]
        by_point: dict[Point, dict[str, Any]] = {Point(*r["point"]): r for r in runs}
        by_length = [Point(n, FIXED_SHARE) for n in LENGTHS]
        by_budget = [Point(FIXED_LENGTH, budget) for budget in (least, *SHARES)]
        for point in dict.fromkeys([*by_budget, *by_length]):
            if point not in by_point and time.monotonic() - begun < 60 * args.minutes:
                by_point[point] = bench(model, point, args.max_tokens, context)
                with args.record.open("a", encoding="utf-8") as file:
                    print(json.dumps(by_point[point]), file=file)

    def held(point: Point) -> int:
        return int(needs.kv_bytes_a_token * (point.prompt_tokens + args.max_tokens)) + needs.state_bytes

    def rows(points: list[Point], by: str) -> list[tuple[str, list[str]]]:
        names = {p: f"{p.prompt_tokens:,}" if by == "length" else p.budget for p in points}
        names = {p: f"{pool.top_k} experts" if n == least else n for p, n in names.items()}
        return [(names[p], columns(by_point[p], held(p))) for p in points if p in by_point]

    print(table(f"prompt tokens, experts {FIXED_SHARE}", rows(by_length, "length")), end="\n\n")
    print(table(f"experts in memory, {FIXED_LENGTH:,} prompt tokens", rows(by_budget, "budget")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
