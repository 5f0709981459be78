"""What the trunk itself writes: greedy continuations of training code and prose, for the draft layer to learn from.

python own_text.py DATA RUN --minutes 10        writes DATA/own.npz
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from batches import Documents
from bpe import END_OF_TEXT
from checkpoints import load_checkpoint
from generate import generate

ROWS, PROMPT, WRITTEN, SEED = 64, (16, 256), 320, 1
DOMAINS = ("code", "prose")


def write(model, data: Path, minutes: float) -> dict[str, np.ndarray]:
    """Documents of a prompt, which is only read, and the model's own greedy continuation, which is learned."""
    sources = [Documents.load(data, domain, "train") for domain in DOMAINS]
    ids, learned, ends, r, began = [], [], [], np.random.default_rng(SEED), time.monotonic()
    while time.monotonic() - began < 60 * minutes:
        length = int(r.integers(*PROMPT))
        prompts = []
        for row in range(ROWS):
            source = sources[row % len(sources)]
            start = int(r.integers(len(source.ids) - length))
            prompts.append(source.window(start, length)[0].tolist())
        for prompt, written in zip(prompts, generate(model, prompts, WRITTEN), strict=True):
            ids += [*prompt, *written, END_OF_TEXT]
            learned += [False] * len(prompt) + [True] * len(written) + [False]
            ends.append(len(ids))
        print(f"{len(ids):,} tokens, {time.monotonic() - began:.0f} s", flush=True)
    return {"train_ids": np.array(ids, np.uint16), "train_learned": np.array(learned), "train_ends": np.array(ends)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--minutes", type=float, default=10.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    np.savez_compressed(args.data / "own.npz", **write(load_checkpoint(args.run), args.data, args.minutes))


if __name__ == "__main__":
    main()
