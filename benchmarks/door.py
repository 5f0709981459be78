"""Does the engine's door cost speed? `python benchmarks/door.py --model FOLDER`: decode tokens a second of a request that
goes through the door, as the chat and `qwen-chat bench` do it, over those of a bare session, in fresh processes by turns.
CPU time is shown too; it moves less where other programs keep the machine busy.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from statistics import median
from typing import Any

from measuring import Target, console, run_child, send_result, verdict

from qwen_chat_mlx.engine.bench.run import RunTask, run_here
from qwen_chat_mlx.engine.bench.workloads import load_workload, prompt_for
from qwen_chat_mlx.engine.checkpoint.folder import find_model
from qwen_chat_mlx.engine.checkpoint.index import open_checkpoint
from qwen_chat_mlx.engine.config import EngineConfig
from qwen_chat_mlx.engine.session import Session
from qwen_chat_mlx.engine.tokenizer import Tokenizer


def through_the_door(task: RunTask) -> dict[str, Any]:
    found = run_here(task)
    return {"rate": found.figures["decode_tok_s"], "cpu_s": found.figures["cpu_s"], "ids": found.token_ids}


def by_session(task: RunTask) -> dict[str, Any]:
    config = EngineConfig(**task.settings)
    index = open_checkpoint(find_model(config.model))
    prompt = Tokenizer.load(index.folder, index.config, index.generation_config).encode(task.prompt)
    session = Session.open(config)
    try:
        ids: list[int] = []
        first, last, cpu = 0.0, 0.0, time.process_time()
        for step in session.generate(prompt, task.max_tokens):
            last = time.perf_counter()
            first = first or last
            ids += step.tokens
        cpu_s = time.process_time() - cpu
    finally:
        session.close()
    return {"rate": (len(ids) - 1) / (last - first), "cpu_s": cpu_s, "ids": ids}


WAYS = {"door": through_the_door, "session": by_session}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--expert-cache", default="auto")
    parser.add_argument("--mtp", default="auto")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        task = json.loads(args.child)
        send_result(task, WAYS[task["way"]](RunTask(**task["run"])))
        return 0
    config = EngineConfig(model=args.model, expert_cache=args.expert_cache, mtp=args.mtp)
    prompt = prompt_for(load_workload("code"), args.model, args.prompt_tokens)
    run = asdict(RunTask(asdict(config), prompt, args.prompt_tokens, args.max_tokens))
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    cpu: dict[str, list[float]] = {way: [] for way in WAYS}
    texts = set()
    for pair in range(args.pairs):
        for way in WAYS if pair % 2 == 0 else reversed(WAYS):
            found = run_child(__file__, {"way": way, "run": run})
            rates[way].append(found["rate"])
            cpu[way].append(found["cpu_s"])
            texts.add(tuple(found["ids"]))
            console.print(f"{way}: {found['rate']:.2f} tok/s, {found['cpu_s']:.2f} s of CPU for the request")
    console.print(f"CPU time through the door / by a bare session: {_ratio('', cpu).measured}")
    return verdict(
        [
            _ratio("tokens a second through the door / by a bare session", rates),
            Target("different texts", str(len(texts)), "1", len(texts) == 1),
        ]
    )


def _ratio(name: str, values: dict[str, list[float]]) -> Target:
    ratios = [a / b for a, b in zip(values["door"], values["session"])]
    shown = f"{median(ratios):.3f} ({min(ratios):.3f} - {max(ratios):.3f})"
    return Target(name, shown, "0.95 - 1.05", 0.95 <= median(ratios) <= 1.05)


if __name__ == "__main__":
    sys.exit(main())
