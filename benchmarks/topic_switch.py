"""Does memory stay within the plan when the topic changes? `python benchmarks/topic_switch.py --model FOLDER`.

A fresh process with drafting on and a context of 32k tokens takes a long prompt of code, replies, goes on with as much of
a novel until the context is full, and replies again. Its peak resident set (VmHWM) is compared with the declared plan. It
has to do so below a limit of 1.1 times the plan: in a control group where systemd can make one (`systemd-run --scope`, swap
forbidden) or where this user may make one in the first version's memory hierarchy, elsewhere below RLIMIT_DATA, which is a
substitute: it counts what the process may write to privately, touched or not, and no pages of files.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measuring import Target, console, memory_status, plan_table, run_child, send_result, verdict, with_room

TOPICS = ("code", "novel")
OVER_PLAN = 1.1
_HIERARCHY = Path("/sys/fs/cgroup/memory")
_SCOPE = ["systemd-run", "--scope", "--quiet", "-p", "MemorySwapMax=0"]


def child(task: dict[str, Any]) -> None:
    """One process's run."""
    if task["limit"] == "data":
        resource.setrlimit(resource.RLIMIT_DATA, (task["limit_bytes"], task["limit_bytes"]))
        # Stacks count whole, however little of them is used.
        threading.stack_size(1 << 20)
    elif task["limit"].startswith("/"):
        (Path(task["limit"]) / "cgroup.procs").write_text("0")
    from qwen_chat_mlx.engine.bench.workloads import load_workload, prompt_for
    from qwen_chat_mlx.engine.config import EngineConfig
    from qwen_chat_mlx.engine.session import Session
    from qwen_chat_mlx.engine.tokenizer import Tokenizer

    config = EngineConfig(**task["settings"])
    session = Session.open(config)
    index, plan = session.loaded.survey.index, session.loaded.survey.plan
    codec = Tokenizer.load(index.folder, index.config, index.generation_config)
    rest, reply = (plan.context - len(TOPICS) * task["reply"]) // len(TOPICS), task["reply"]
    held: list[set[int]] = []
    for topic in TOPICS:
        ids = [*session.tokens, *codec.encode(prompt_for(load_workload(topic), config.model, rest))]
        for _ in session.generate(ids, reply, ignore_eos=True):
            pass
        held.append(session.loaded.store.table.keys())
        console.print(
            f"{topic}: {session.position:,} tokens in the context, {memory_status()['peak'] / 2**20:,.1f} MiB"
        )
    stats = session.stats()
    send_result(task, {
        "peak": memory_status()["peak"], "used": stats.context.used, "drafted": stats.drafts.proposed, "evictions": stats.experts.evictions,
        "kept": len(held[0] & held[1]) / max(1, len(held[0])),
    })  # fmt: skip
    session.close()


def can_scope() -> bool:
    """Whether systemd gives this user control groups."""
    try:
        return subprocess.run([*_SCOPE, "true"], capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


@contextmanager
def group(limit_bytes: int) -> Iterator[Path | None]:
    """A control group with this limit of memory and none beyond it on swap; None where this user cannot make one."""
    folder = _HIERARCHY / f"qwen-chat-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "memory.swappiness").write_text("0")
        (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
    except OSError:
        yield None
        return
    try:
        yield folder
        charged = int((folder / "memory.max_usage_in_bytes").read_text())
        failures = int((folder / "memory.failcnt").read_text())
        console.print(f"control group: limit {limit_bytes:,} B, most charged {charged:,} B, reached {failures:,} times")
    finally:
        folder.rmdir()


def limited(task: dict[str, Any], limit_bytes: int) -> tuple[str, dict[str, Any] | None]:
    """(what the limit is, what the run found or None if it did not survive)."""
    scope = can_scope()
    with group(limit_bytes) as folder:
        kind = "scope" if scope else str(folder or "data")
        command = [*_SCOPE, "-p", f"MemoryMax={limit_bytes}"] if scope else []
        try:
            return kind, run_child(__file__, task | {"limit": kind, "limit_bytes": limit_bytes}, command)
        except SystemExit:
            return kind, None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--context", type=int, default=32768)
    parser.add_argument("--expert-cache", default="25 %")
    parser.add_argument("--mtp", default="auto", choices=("auto", "fixed"))
    parser.add_argument("--reply", type=int, default=128, help="tokens of each reply")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(json.loads(args.child))
        return 0
    from qwen_chat_mlx.engine.checkpoint.folder import find_model
    from qwen_chat_mlx.engine.config import EngineConfig
    from qwen_chat_mlx.engine.loader import survey

    with with_room(Path(find_model(args.model)), args.context) as model:
        settings = {"model": model, "context": args.context, "expert_cache": args.expert_cache, "mtp": args.mtp}
        plan = survey(EngineConfig(**settings)).plan
        kind, found = limited({"settings": settings, "reply": args.reply}, int(OVER_PLAN * plan.total_bytes))
    limit = "RLIMIT_DATA (a substitute for a control group)" if kind == "data" else "control group"
    targets = [Target(f"survives 1.1 x the plan, {limit}", str(found is not None), "True", found is not None)]
    if found is not None:
        ratio = found["peak"] / plan.total_bytes
        title = f"{args.context:,} tokens, experts {args.expert_cache}"
        console.print(plan_table(title, plan.terms, plan.total_bytes, found["peak"]))
        console.print(
            f"{found['used']:,} tokens of {plan.context:,} used, {found['drafted']:,} drafts, {found['evictions']:,} "
            f"experts evicted; {found['kept']:.0%} of those in slots behind the first topic were there behind the second"
        )
        targets += [
            Target("peak resident set / plan", f"{ratio:.3f}", "<= 1.03", ratio <= 1.03),
            Target("drafts made", f"{found['drafted']:,}", "> 0", found["drafted"] > 0),
        ]
    return verdict(targets)


if __name__ == "__main__":
    sys.exit(main())
