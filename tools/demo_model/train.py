"""Train the demo model on a CPU, at a constant rate for as long as there is time, then cool down from any checkpoint.

    python train.py DATA RUN                                    start, or resume exactly where RUN stopped
    python train.py DATA RUN --weights FOLDER --tokens 5.87e6   start from an export that saw this many tokens
    python train.py DATA COOL --from RUN --decay-minutes 25     fork RUN and let its rate fall to zero (by the clock)
    python train.py DATA COOL --from RUN --decay-tokens 2e6     the same, by tokens

RUN/checkpoint.pt holds weights, optimizer, data position and schedule; it is replaced atomically every few minutes and
when the process is told to stop (SIGTERM, SIGINT). RUN/log.jsonl grows; `tail -f` it to watch.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from batches import DOMAINS, LONG, LONG_EVERY, MICRO_TOKENS, SHORT, Documents, Mix, Sampler, shape
from checkpoints import load_export
from network import DemoModel, NetworkConfig
from optimizer import Optimizer

BALANCE_WEIGHT, DRAFT_WEIGHT = 0.01, 0.3
WARM_UP_STEPS = 30
SEED = 0


@dataclass
class Progress:
    """What the schedule and the data order depend on; saved with every checkpoint."""

    tokens: int = 0
    steps: int = 0
    micro_batches: int = 0
    row: int = 0
    seconds: float = 0.0
    decay_from: int | None = None
    decay_seconds: float = 0.0


@dataclass(frozen=True)
class Settings:
    rate: float = 0.6
    grow_at: int = 6_000_000
    """Tokens after which a step has twice the micro-batches."""
    draft_every: int = 4
    """One micro-batch in this many trains the draft layer, with both of its steps."""
    decay_tokens: float = 0.0
    decay_minutes: float = 0.0


class Trainer:
    def __init__(self, data: Path, run: Path, settings: Settings, mix: Mix):
        self.data, self.run, self.settings = data, run, settings
        torch.manual_seed(SEED)
        self.config = NetworkConfig()
        self.model = DemoModel(self.config)
        self.optimizer = Optimizer(self.model)
        self.progress = Progress()
        self.sampler = Sampler(data, SEED, mix, self.config.vocab_size)
        self.stopping = False

    def load(self, checkpoint: Path) -> None:
        state = torch.load(checkpoint, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])
        self.sampler.row = self.progress.row

    def start_from(self, folder: Path, tokens: int) -> None:
        """Take the weights of an export. Counters and data stand where a run of this many tokens would; the optimizer is new."""
        self.model.load_state_dict(load_export(folder, self.config).state_dict())
        short, long = SHORT[0] * (LONG_EVERY - 1), LONG[0]
        micro_batches = tokens // MICRO_TOKENS
        self.progress.tokens, self.progress.micro_batches = tokens, micro_batches
        self.sampler.row = self.progress.row = micro_batches * (short + long) // LONG_EVERY

    def save(self) -> None:
        """Write beside and replace, so that a checkpoint is always whole."""
        self.progress.row = self.sampler.row
        state = {
            "config": self.config.to_dict(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": asdict(self.progress),
        }
        scratch = self.run / "checkpoint.tmp"
        with open(scratch, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(self.run / "checkpoint.pt")

    def log(self, **values) -> None:
        line = json.dumps({"tokens": self.progress.tokens, "steps": self.progress.steps, **values})
        print(line, flush=True)
        with open(self.run / "log.jsonl", "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def decayed(self) -> float:
        """How far the decay has come, 0 to 1; 0 while the rate is constant."""
        p, s = self.progress, self.settings
        if p.decay_from is None:
            return 0.0
        by_tokens = (p.tokens - p.decay_from) / s.decay_tokens if s.decay_tokens else 0.0
        by_clock = p.decay_seconds / (60 * s.decay_minutes) if s.decay_minutes else 0.0
        return max(by_tokens, by_clock)

    def step(self) -> dict[str, float]:
        p, s = self.progress, self.settings
        began = time.monotonic()
        accumulate = 4 if p.tokens >= s.grow_at else 2
        losses = {"loss": 0.0, "draft": 0.0, "balance": 0.0}
        drafted = 0
        for _ in range(accumulate):
            rows, length = shape(p.micro_batches)
            # Drafting takes turns over the shapes: it meets the long one every LONG_EVERY-th time.
            drafts = (p.micro_batches // LONG_EVERY + p.micro_batches) % s.draft_every == 0
            ids, weights = self.sampler.batch(rows, length + 3)
            sums, balance = self.model.loss(ids, weights, draft_steps=2 if drafts else 0)
            count = float(weights[:, 1:].sum())
            total = sums[0] + (DRAFT_WEIGHT * (sums[1] + 0.5 * sums[2]) if drafts else 0.0)
            ((total / count + BALANCE_WEIGHT * balance) / accumulate).backward()
            losses["loss"] += sums[0].item() / count / accumulate
            losses["balance"] += float(balance.detach()) / self.config.num_layers / accumulate
            if drafts:
                losses["draft"] += sums[1].item() / count
                drafted += 1
            p.micro_batches += 1
        losses["draft"] = losses["draft"] / drafted if drafted else float("nan")
        warm = min(1.0, (self.optimizer.steps + 1) / WARM_UP_STEPS)
        losses["rate"] = s.rate * warm * max(0.0, 1 - self.decayed())
        self.optimizer.step(losses["rate"])
        spent = time.monotonic() - began
        p.steps += 1
        p.tokens += accumulate * MICRO_TOKENS
        p.seconds += spent
        p.decay_seconds += spent if p.decay_from is not None else 0.0
        losses["tokens_per_s"] = accumulate * MICRO_TOKENS / spent
        return losses

    @torch.no_grad()
    def held_out(self, rows: int = 8) -> dict[str, float]:
        """Loss per learned token of each domain, on a fixed small sample."""
        result = {}
        for domain in DOMAINS:
            documents, total, count = Documents.load(self.data, domain, "held"), 0.0, 0.0
            sample = documents.rows(SHORT[1] + 3, rows)
            for i in range(0, rows, SHORT[0]):
                ids = torch.stack([torch.from_numpy(row) for row, _ in sample[i : i + SHORT[0]]])
                weights = torch.stack([torch.from_numpy(learned).float() for _, learned in sample[i : i + SHORT[0]]])
                sums, _ = self.model.loss(ids, weights)
                total, count = total + sums[0].item(), count + weights[:, 1:-2].sum().item()
            result[domain] = round(total / count, 4)
        return result

    def stop(self, *_) -> None:
        self.stopping = True

    def train(self, save_every_s: float, evaluate_every_s: float) -> None:
        saved = evaluated = time.monotonic()
        smooth: dict[str, float] = {}
        while not self.stopping and self.decayed() < 1.0:
            for name, value in self.step().items():
                if not math.isnan(value):
                    smooth[name] = 0.9 * smooth.get(name, value) + 0.1 * value
            if self.progress.steps % 10 == 0 or self.progress.steps <= 3:
                self.log(**{name: round(value, 4) for name, value in smooth.items()})
            now = time.monotonic()
            if now - evaluated > evaluate_every_s:
                self.log(held_out=self.held_out())
                evaluated = time.monotonic()
            if now - saved > save_every_s:
                self.save()
                saved = time.monotonic()
        self.save()
        if self.decayed() >= 1.0:
            self.log(held_out=self.held_out(32), finished=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--from", dest="source", type=Path, help="fork this run; its checkpoint is only read")
    parser.add_argument("--weights", type=Path, metavar="FOLDER", help="start from this export, either layout")
    parser.add_argument("--tokens", type=float, default=0.0, help="how many tokens the export has seen")
    parser.add_argument("--decay-tokens", type=float, default=0.0)
    parser.add_argument("--decay-minutes", type=float, default=0.0)
    parser.add_argument("--draft-every", type=int, default=Settings.draft_every)
    parser.add_argument("--rate", type=float, default=Settings.rate)
    parser.add_argument("--threads", type=int, default=1, help="more than one only on an idle machine")
    parser.add_argument("--save-every", type=float, default=300.0, metavar="SECONDS")
    parser.add_argument("--evaluate-every", type=float, default=900.0, metavar="SECONDS")
    parser.add_argument("--eager", action="store_true", help="do not compile: slower, but starts at once")
    return parser.parse_args()


def main() -> None:
    args = parse()
    torch.set_num_threads(args.threads)
    args.run.mkdir(parents=True, exist_ok=True)
    settings = Settings(
        rate=args.rate,
        draft_every=args.draft_every,
        decay_tokens=args.decay_tokens,
        decay_minutes=args.decay_minutes,
    )
    trainer = Trainer(args.data, args.run, settings, Mix())
    mine = args.run / "checkpoint.pt"
    if mine.exists():
        trainer.load(mine)
    elif args.source:
        trainer.load(args.source / "checkpoint.pt")
    elif args.weights:
        trainer.start_from(args.weights, int(args.tokens))
    if trainer.progress.decay_from is None and (args.decay_tokens or args.decay_minutes):
        trainer.progress.decay_from = trainer.progress.tokens
    if not args.eager:
        trainer.model.compile_blocks()
    signal.signal(signal.SIGTERM, trainer.stop)
    signal.signal(signal.SIGINT, trainer.stop)
    trainer.train(args.save_every, args.evaluate_every)


if __name__ == "__main__":
    main()
