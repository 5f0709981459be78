"""All figures of the model card, from the exported folders.

python evaluate.py CORPORA DATA OUT.json BF16_FOLDER [--fp8 FP8_FOLDER] [--each 12] [--quick]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import corpora
import torch
from bpe import load_tokenizer
from checkpoints import load_export
from dialogues import Conversations
from evaluation import drafts, locality, losses, tasks
from indexer import SparseMasks

BUDGETS = (256, 128, 64)


class Figures:
    """Results by name, written to disk after each, so that an interrupted evaluation keeps what it has."""

    def __init__(self, path: Path):
        self.path, self.values = path, {}

    def add(self, name: str, measure) -> None:
        began = time.monotonic()
        self.values[name] = measure()
        print(f"{name} ({time.monotonic() - began:.0f} s): {json.dumps(self.values[name])[:600]}", flush=True)
        self.path.write_text(json.dumps(self.values, indent=1) + "\n", encoding="utf-8")


def accuracies(figures: Figures, model, tokenizer, source: Conversations, each: int) -> None:
    for thinking, name in ((False, "without thinking"), (True, "with thinking")):

        def both(thinking=thinking) -> dict:
            right, missed = tasks.accuracy(model, tokenizer, source, each, thinking)
            return {"right": right, "misses": missed}

        figures.add(f"tasks {name}", both)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("bf16", type=Path)
    parser.add_argument("--fp8", type=Path)
    parser.add_argument("--each", type=int, default=12)
    parser.add_argument("--quick", action="store_true", help="a third of the text")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = 4 if args.quick else 12
    model, figures = load_export(args.bf16), Figures(args.out)
    tokenizer = load_tokenizer(args.data / "tokenizer.json")
    figures.add("loss", lambda: losses.losses(model, args.data, 2 * rows, 512))
    if args.fp8:
        shipped = load_export(args.fp8)
        figures.add("loss as fp8", lambda: losses.losses(shipped, args.data, 2 * rows, 512))
    accuracies(figures, model, tokenizer, Conversations(corpora.rare_nouns(args.corpora)), args.each)
    figures.add("drafts, teacher-forced", lambda: drafts.teacher_forced(model, args.data, rows, 512))
    figures.add("drafts, free-running", lambda: drafts.free_running(model, args.data, 2 * rows, 80))
    figures.add("loss at 2048, dense", lambda: losses.losses(model, args.data, rows, 2048))
    for budget in BUDGETS:
        masks = SparseMasks(budget)
        figures.add(
            f"loss at 2048, budget {budget}", lambda masks=masks: losses.losses(model, args.data, rows, 2048, masks)
        )
    figures.add("expert cache", lambda: locality.hit_rates(model, args.data, rows, 60))


if __name__ == "__main__":
    main()
