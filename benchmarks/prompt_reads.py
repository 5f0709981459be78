"""What a long prompt reads, layer by layer and chunk by chunk: `python benchmarks/prompt_reads.py --model FOLDER`.

Bytes of experts that each order reads for one prompt with a share of the experts in slots, and the misses of the first
decoded tokens behind it: with the experts that the prompt left in the slots, and from empty slots (same state, same
tokens). Counts only: other programs on the machine change nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from copy import deepcopy
from typing import Any

import mlx.core as mx
import numpy as np
from measuring import Target, console, size, verdict

from qwen_chat_mlx.engine.bench.workloads import load_workload, prompt_for
from qwen_chat_mlx.engine.cache.base import arrays_of
from qwen_chat_mlx.engine.checkpoint.folder import find_model
from qwen_chat_mlx.engine.checkpoint.index import open_checkpoint
from qwen_chat_mlx.engine.config import EngineConfig
from qwen_chat_mlx.engine.session import Session
from qwen_chat_mlx.engine.tokenizer import Tokenizer

NEVER = 1 << 30


def decode(session: Session, logits: mx.array, tokens: int) -> tuple[int, list[int]]:
    """(misses, ids) of greedy tokens behind a prompt's last logits."""
    before, text = session.stats().experts.misses, []
    for _ in range(tokens):
        text.append(int(np.array(mx.argmax(logits))))
        logits = session.step(text[-1])
        mx.eval(logits, arrays_of(session.caches))
    return session.stats().experts.misses - before, text


def prompt(config: dict[str, Any], ids: list[int], threshold: int) -> tuple[Session, mx.array, int]:
    """(session behind the prompt, its last logits, bytes of experts that were read)."""
    session, begun = Session.open(EngineConfig(**config, layer_major_threshold=threshold)), time.perf_counter()
    logits, _ = session.prompt(ids)
    read = session.stats().experts.read_bytes
    order = "layer by layer" if threshold == 1 else "chunk by chunk"
    console.print(f"{order}: {size(read)} of experts read in {time.perf_counter() - begun:.1f} s")
    return session, logits, read


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--expert-cache", default="25 %")
    parser.add_argument("--workload", default="code")
    parser.add_argument("--prompt-tokens", type=int, default=8000)
    parser.add_argument("--tokens", type=int, default=32)
    args = parser.parse_args()
    config = {"model": args.model, "expert_cache": args.expert_cache, "mtp": "off", "context": args.prompt_tokens + 128}
    text = prompt_for(load_workload(args.workload), args.model, args.prompt_tokens)
    index = open_checkpoint(find_model(args.model))
    ids = Tokenizer.load(index.folder, index.config, index.generation_config).encode(text)
    session, logits, by_layer = prompt(config, ids, 1)
    here, table = session.point(), session.loaded.store.table
    known, handed_over = deepcopy(table.policy), table.residents()
    warm, first = decode(session, logits, args.tokens)
    session.rewind(here)
    session.loaded.store.clear()
    # The policy knows what it knew behind the prompt: it must not have seen these tokens before.
    for layer, expert, _ in handed_over:
        known.removed(layer * table.experts + expert)
    table.policy = known
    cold, second = decode(session, logits, args.tokens)
    session.close()
    session, logits, by_chunk = prompt(config, ids, NEVER)
    after_chunks, third = decode(session, logits, args.tokens)
    session.close()
    console.print(
        f"misses of the first {args.tokens} tokens: {warm} behind layer by layer, {after_chunks} behind chunk by chunk, "
        f"{cold} from empty slots"
    )
    return verdict([
        Target(
            "bytes read, chunk by chunk / layer by layer", f"{by_chunk / by_layer:.2f}", ">= 4", by_chunk >= 4 * by_layer
        ),
        Target(
            f"misses of {args.tokens} tokens, handed over / from empty slots", f"{warm / cold:.2f}", "<= 0.6",
            warm <= 0.6 * cold,
        ),
        Target("equal texts", str(first == second == third), "True", first == second == third),
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
