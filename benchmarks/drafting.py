"""What drafting costs and brings beside plain decoding: sessions in one process take turns over the same greedy replies.

    python benchmarks/drafting.py --model PATH [--workload code] [--arms "off,strict,self-fed pairs kept"]

Arms that are compared get their stretches of tokens in turn, so that what slows the machine slows them alike. Ratios are
medians over stretches, of CPU seconds where the CPU computes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import mlx.core as mx
from measuring import Target, console, verdict
from rewind import clock
from rich.table import Table

STRETCH = 16
SWITCH_EVERY = 7


def row_by_row(session: Any) -> None:
    """As where no number of rows has the bits of single rows."""
    session.forward.prove_rows, session.forward._exact_rows = None, frozenset()


def keep_self_fed(session: Any) -> None:
    """Pairs of accepted drafts stay as the draft layer's own residual made them, instead of being made anew."""
    rounds, keep = session._rounds, session._rounds._keep

    def keeping(kept: int, ids: Sequence[int], wide: Any) -> float:
        rounds.drafter._self_fed -= max(0, min(kept - 1, rounds.drafter._self_fed))
        return keep(kept, ids, wide)

    rounds._keep = keeping


ARMS: dict[str, tuple[dict[str, Any], Callable[[Any], None] | None]] = {
    "no MTP layer": ({"mtp": "off"}, None),
    "off": ({"mtp": "off"}, None),
    "strict": ({}, None),
    "strict row by row": ({}, row_by_row),
    "batched": ({"verify": "batched"}, None),
    "self-fed pairs kept": ({}, keep_self_fed),
    f"switched every {SWITCH_EVERY}": ({}, None),
}
SWITCHED = list(ARMS)[-1]


class Arm:
    """One session and its replies."""

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        from qwen_chat_mlx.engine import loader
        from qwen_chat_mlx.engine.config import EngineConfig
        from qwen_chat_mlx.engine.models import qwen4_exp
        from qwen_chat_mlx.engine.session import Session

        self.name, (own, change) = name, ARMS[name]
        config = EngineConfig(**{**settings, **own})
        has_draft, unused = qwen4_exp.Config.has_draft, loader._UNUSED
        if name == "no MTP layer":
            qwen4_exp.Config.has_draft, loader._UNUSED = lambda *_: False, (*unused, "mtp.")
        try:
            self.session = Session.open(config)
        finally:
            qwen4_exp.Config.has_draft, loader._UNUSED = has_draft, unused
        if change is not None:
            change(self.session)
        self.ids: list[int] = []
        self.rates: list[float] = []
        """Seconds a token of every stretch."""

    def begin(self, prompt: Sequence[int], tokens: int) -> None:
        self.session.set_mtp(self.session.config.mtp)
        self.steps = self.session.generate(prompt, tokens, ignore_eos=True)
        self.made, self.turns = len(next(self.steps).tokens), 0

    def advance(self, until: int) -> None:
        begun, made = clock(), self.made
        while self.made < until and (step := next(self.steps, None)) is not None:
            self.ids += step.tokens
            self.made += len(step.tokens)
            if self.name == SWITCHED and self.made // SWITCH_EVERY > self.turns:
                self.turns = self.made // SWITCH_EVERY
                self.session.set_mtp("off" if self.turns % 2 else "fixed")
        mx.eval([a for c in self.session.caches for a in c.arrays()])
        if self.made > made:
            self.rates.append((clock() - begun) / (self.made - made))

    def acceptance(self) -> float:
        drafts = self.session.stats().drafts
        return drafts.accepted / max(1, drafts.proposed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--workload", default="code", help="code, novel or a text file")
    parser.add_argument("--prompts", type=int, default=2, help="so many stretches of the text are continued")
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--max-draft", type=int, default=2)
    parser.add_argument("--expert-cache", default="auto")
    parser.add_argument("--arms", default=",".join(ARMS))
    a = parser.parse_args()
    from qwen_chat_mlx.engine.bench.workloads import Workload, cut, load_workload
    from qwen_chat_mlx.engine.tokenizer import Tokenizer

    settings = {"model": a.model, "mtp": "fixed", "max_draft": a.max_draft, "expert_cache": a.expert_cache}
    arms = {name: Arm(name, settings) for name in a.arms.split(",")}
    index = next(iter(arms.values())).session.loaded.survey.index
    codec = Tokenizer.load(index.folder, index.config, index.generation_config)
    text = load_workload(a.workload).text
    for n in range(a.prompts):
        part = Workload(a.workload, text[len(text) * n // a.prompts :])
        prompt = codec.encode(cut(codec, part, a.prompt_tokens))
        for arm in arms.values():
            arm.begin(prompt, a.tokens)
        for until in range(STRETCH, a.tokens + STRETCH, STRETCH):
            for arm in arms.values():
                arm.advance(min(until, a.tokens))
    return report(arms)


def report(arms: dict[str, Arm]) -> int:
    first = next(iter(arms.values()))
    table = Table(title=f"{len(first.ids):,} tokens an arm; speeds against {first.name!r}")
    for column in ("arm", "tokens / s", "speed", "acceptance", "same ids"):
        table.add_column(column, justify="right" if column != "arm" else "left")
    speed = {}
    for name, arm in arms.items():
        speed[name] = median(b / o for b, o in zip(first.rates, arm.rates))
        accepted = "" if not arm.session.stats().drafts.proposed else f"{arm.acceptance():.1%}"
        same = "yes" if arm.ids == first.ids else "no"
        table.add_row(name, f"{1 / median(arm.rates):.1f}", f"{speed[name]:.3f}", accepted, same)
    console.print(table)
    targets = [Target(f"ids of {n!r}", "same" if a.ids == first.ids else "others", "same", a.ids == first.ids)
               for n, a in arms.items() if n != "batched"]  # fmt: skip
    if first.name == "no MTP layer" and "off" in arms:
        targets.append(Target("off / no MTP layer", f"{speed['off']:.3f}", "≥ 0.98", speed["off"] >= 0.98))
    if SWITCHED in arms and "strict" in arms:
        points = 100 * (arms[SWITCHED].acceptance() - arms["strict"].acceptance())
        targets.append(Target("acceptance, switched - never off", f"{points:+.1f} points", "≥ -5", points >= -5))
    for arm in arms.values():
        arm.session.close()
    return verdict(targets)


if __name__ == "__main__":
    raise SystemExit(main())
