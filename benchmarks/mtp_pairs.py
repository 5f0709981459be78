"""Does drafting pay? `python benchmarks/mtp_pairs.py --workload chat [--expert-cache "25 %" --throttle] --record FILE`.

Plain decoding, `mtp = "auto"` and fixed depths 1, 2 and 3 give the same text in one process, by turns of 32 tokens,
forwards and backwards, so that a pair has the same tokens and the same seconds of the machine. The text is greedy, or with
--temperature drawn with one seed in all arms, which is harder to foresee. A pair is at least 64 tokens
of each arm, a run at least --tokens of each. code and novel are continued behind four stretches a run; chat goes through
held-out conversations, every reply to its own end. Prompts are not timed.

Each call makes one run over texts of its own, adds it to FILE and shows all runs of its workload and setting; `--report`
shows everything in FILE and measures nothing. Speeds are medians of paired ratios with a 95 % bootstrap interval.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import mlx.core as mx
from measuring import Target, console, verdict
from rich.table import Table
from throttled import Throttle, open_throttled

from qwen_chat_mlx.engine.bench.bench import Ratio, ratio_of
from qwen_chat_mlx.engine.bench.workloads import Workload, cut, load_workload
from qwen_chat_mlx.engine.cache.base import arrays_of
from qwen_chat_mlx.engine.config import EngineConfig
from qwen_chat_mlx.engine.sampling import Sampler
from qwen_chat_mlx.engine.session import Session
from qwen_chat_mlx.engine.tokenizer import Tokenizer
from qwen_chat_mlx.engine.types import Message, Sampling

ARMS: dict[str, dict[str, Any]] = {
    "off": {"mtp": "off"}, "auto": {"mtp": "auto"}, "1 draft": {"mtp": "fixed", "max_draft": 1},
    "2 drafts": {"mtp": "fixed", "max_draft": 2}, "3 drafts": {"mtp": "fixed", "max_draft": 3},
}  # fmt: skip
FIXED = ("1 draft", "2 drafts", "3 drafts")
STRETCH, PAIR = 32, 64
MOST = 256
"""Tokens of a reply in a chat."""
PASSAGES, PROMPT_TOKENS, TEXT_RUNS = 4, 192, 8
"""Stretches of a text that a run continues, their length, and how many runs a text serves before it starts again."""

Piece = tuple[float, int]
"""Seconds and tokens of one arm's turn."""


class Arm:
    """A session and the reply it is giving."""

    def __init__(self, session: Session, sampling: Sampling) -> None:
        self.session, self.sampling = session, sampling
        self.reply: list[int] = []

    def begin(self, ids: Sequence[int], boundaries: Sequence[int], most: int, stops: frozenset[int]) -> None:
        logits, _ = self.session.prompt(ids, boundaries)
        sampler = Sampler(self.sampling, self.session.loaded.survey.shape.vocab, ids)
        self.steps = self.session.steps(logits, sampler, most, stops)
        self.reply = list(next(self.steps).tokens)

    def advance(self, until: int) -> Piece:
        begun, made = time.perf_counter(), len(self.reply)
        while len(self.reply) < until and (step := next(self.steps, None)) is not None:
            self.reply += step.tokens
        mx.eval(arrays_of(self.session.caches))
        return time.perf_counter() - begun, len(self.reply) - made

    def ended(self) -> None:
        self.steps.close()


def by_turns(arms: dict[str, Arm], until: int, turn: int) -> dict[str, Piece]:
    """Every arm advances its reply; the next turn goes the other way round."""
    order = list(arms.items())
    return {name: arm.advance(until) for name, arm in (order if turn % 2 == 0 else order[::-1])}


def continued(arms: dict[str, Arm], codec: Tokenizer, name: str, run: int, tokens: int) -> Iterator[dict[str, Piece]]:
    """A text continued behind PASSAGES stretches of it, past every stop."""
    text, each = load_workload(name).text, -(-tokens // PASSAGES)
    for n in range(PASSAGES):
        place = (run % TEXT_RUNS + TEXT_RUNS * n) / (TEXT_RUNS * PASSAGES)
        prompt = codec.encode(cut(codec, Workload(name, text[int(len(text) * place) :]), PROMPT_TOKENS))
        for arm in arms.values():
            arm.begin(prompt, (), each + 1, frozenset())
        for turn, until in enumerate(range(1 + STRETCH, each + STRETCH, STRETCH)):
            yield by_turns(arms, min(until, each + 1), turn)
        _same_text(arms)


def chatted(arms: dict[str, Arm], tokenizer: Tokenizer, run: int, tokens: int) -> Iterator[dict[str, Piece]]:
    """Held-out conversations, thinking in every second one; each reply ends where the model ends it."""
    made, all_of_them = 0, load_workload("chat").conversations
    for number, lines in enumerate(islice(cycle(all_of_them), 9 * run, None)):
        messages: list[Message] = []
        for turn, line in enumerate(lines):
            messages.append(Message("user", line))
            prompt = tokenizer.render(messages, think=number % 2 == 0)
            for arm in arms.values():
                arm.begin(prompt.ids, prompt.boundaries, MOST, tokenizer.stop_ids)
            for stretch, until in enumerate(range(1 + STRETCH, MOST + STRETCH, STRETCH)):
                made_now = by_turns(arms, min(until, MOST), turn + stretch)
                yield made_now
                if not any(tokens for _, tokens in made_now.values()):
                    break
            _same_text(arms)
            reply = arms["off"].reply
            thought, _, answer = tokenizer.decode(
                [i for i in reply if i not in tokenizer.stop_ids]
            ).rpartition("</think>")  # fmt: skip
            messages.append(Message("assistant", answer.strip(), thought.strip(), tuple(reply), tokenizer.fingerprint))
            made += len(reply)
            if made >= tokens + 32:
                return


def _same_text(arms: dict[str, Arm]) -> None:
    for arm in arms.values():
        arm.ended()
    first = arms["off"].reply
    if any(arm.reply[: len(first)] != first[: len(arm.reply)] for arm in arms.values()):
        raise SystemExit("The arms gave different texts: strict checking is broken, or a tie fell another way.")


def paired(turns: Iterator[dict[str, Piece]]) -> list[dict[str, Piece]]:
    """Turns added up to pairs; what is left at the end joins the last."""
    pairs: list[dict[str, Piece]] = []
    open_pair: dict[str, Piece] = dict.fromkeys(ARMS, (0.0, 0))
    for turn in turns:
        open_pair = {n: (open_pair[n][0] + s, open_pair[n][1] + t) for n, (s, t) in turn.items()}
        if open_pair["off"][1] >= PAIR:
            pairs.append(open_pair)
            open_pair = dict.fromkeys(ARMS, (0.0, 0))
    if pairs and open_pair["off"][1]:
        pairs[-1] = {n: (pairs[-1][n][0] + s, pairs[-1][n][1] + t) for n, (s, t) in open_pair.items()}
    return pairs


def measure(args: argparse.Namespace, run: int) -> dict[str, Any]:
    """One run of all arms."""
    throttle = Throttle(args.latency_ms / 1e3, args.mb_s * 1e6)
    base = {"model": args.model, "expert_cache": args.expert_cache, "context": 4096}
    # A session opened later is up to 1 % slower with the very same settings, so every second run opens them the other way.
    opened = {
        n: open_throttled(EngineConfig(**base, **ARMS[n]), throttle, serial=False)
        for n in (list(ARMS) if run % 2 == 0 else reversed(ARMS))
    }
    sessions = {n: opened[n] for n in ARMS}
    throttle.on = args.throttle
    sampling = Sampling(temperature=args.temperature, seed=run)
    arms = {name: Arm(session, sampling) for name, session in sessions.items()}
    index = sessions["off"].loaded.survey.index
    tokenizer = Tokenizer.load(index.folder, index.config, index.generation_config)
    if args.workload == "chat":
        turns = chatted(arms, tokenizer, run, args.tokens)
    else:
        turns = continued(arms, tokenizer, args.workload, run, args.tokens)
    pairs = paired(turns)
    stats = {name: session.stats() for name, session in sessions.items()}
    for session in sessions.values():
        session.close()
    asked = stats["off"].experts
    return {
        "workload": args.workload, "setting": setting(args), "temperature": args.temperature, "model": index.fingerprint,
        "pairs": pairs,
        "hit_rate": asked.hit_rate, "why": f"{stats['auto'].mtp.state}: {stats['auto'].mtp.reason}",
        "drafts": {n: [s.drafts.proposed, s.drafts.accepted] for n, s in stats.items()},
        "depths": stats["auto"].drafts.depth_counts,
    }  # fmt: skip


def setting(args: argparse.Namespace) -> str:
    read = f", {args.latency_ms:g} ms + {args.mb_s:g} MB/s" if args.throttle else ""
    drawn = f", temperature {args.temperature:g}" if args.temperature else ""
    return f"experts {args.expert_cache}{read}{drawn}"


def speed(pairs: Sequence[dict[str, Piece]], arm: str, against: str) -> Ratio:
    return ratio_of([(p[against][0] / p[against][1]) / (p[arm][0] / p[arm][1]) for p in pairs])


def shown(r: Ratio) -> str:
    return f"{r.median:.3f}" if r.low is None or r.high is None else f"{r.median:.3f} ({r.low:.3f} – {r.high:.3f})"


def show(runs: Sequence[dict[str, Any]]) -> list[Target]:
    """The table of one workload and setting, and its targets."""
    workload, where, pairs = runs[0]["workload"], runs[0]["setting"], [p for r in runs for p in r["pairs"]]
    made = sum(p["off"][1] for p in pairs)
    table = Table(title=f"{workload}, {where}: {len(pairs)} pairs, {made:,} tokens an arm", title_justify="left")
    for column in ("arm", "tokens / s", "× off, median of pairs", "× off, all tokens", "accepted"):
        table.add_column(column, justify="right" if column != "arm" else "left")
    totals = {n: (sum(p[n][0] for p in pairs), sum(p[n][1] for p in pairs)) for n in ARMS}
    pace = {n: s / t for n, (s, t) in totals.items()}
    for name in ARMS:
        proposed, accepted = (sum(r["drafts"][name][i] for r in runs) for i in (0, 1))
        table.add_row(
            name, f"{1 / pace[name]:.1f}", "" if name == "off" else shown(speed(pairs, name, "off")),
            f"{pace['off'] / pace[name]:.3f}", f"{accepted / proposed:.1%}" if proposed else "",
        )  # fmt: skip
    console.print(table)
    depths = [sum(d) for d in zip(*(r["depths"] for r in runs))]
    console.print(
        f"auto: steps by drafts checked {depths}; at the end {runs[-1]['why']}; hits {runs[-1]['hit_rate']:.1%}"
    )
    best = max(FIXED, key=lambda n: speed(pairs, n, "off").median)
    off, fixed = speed(pairs, "auto", "off"), speed(pairs, "auto", best)
    wanted = 0.99 if workload == "novel" or runs[0].get("temperature") else 1.05
    return [
        Target(f"{workload}, {where}: auto / off", shown(off), f">= {wanted}", off.median >= wanted),
        Target(f"{workload}, {where}: auto / {best}", shown(fixed), ">= 0.97", fixed.median >= 0.97),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--workload", default="chat", choices=("novel", "code", "chat"))
    parser.add_argument("--expert-cache", default="100 %")
    parser.add_argument(
        "--throttle", action="store_true", help="reads of experts take --latency-ms and their share of --mb-s"
    )
    parser.add_argument("--latency-ms", type=float, default=0.5)
    parser.add_argument("--mb-s", type=float, default=200.0)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--record", type=Path, help="JSON lines that runs are added to")
    parser.add_argument("--report", action="store_true", help="show what --record holds and measure nothing")
    args = parser.parse_args()
    lines = args.record.read_text("utf-8").splitlines() if args.record and args.record.exists() else []
    runs: list[dict[str, Any]] = [json.loads(line) for line in lines]
    kinds = dict.fromkeys((r["workload"], r["setting"]) for r in runs)
    if not args.report:
        kinds = {(args.workload, setting(args)): None}
        found = measure(args, sum((r["workload"], r["setting"]) in kinds for r in runs))
        runs.append(json.loads(json.dumps(found)))
        if args.record:
            with args.record.open("a", encoding="utf-8") as file:
                print(json.dumps(found), file=file)
    return verdict([t for kind in kinds for t in show([r for r in runs if (r["workload"], r["setting"]) == kind])])


if __name__ == "__main__":
    sys.exit(main())
