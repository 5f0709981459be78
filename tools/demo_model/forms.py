"""Does the shipped form say what the exported one says?  python forms.py BF16_FOLDER FP8_FOLDER   (needs qwen-chat installed)

Greedy replies of the engine to held-out conversations, and continuations of held-out code and prose, from both forms. Where ids
differ, the tokens are compared by the margin that the first form had between them: rounding may decide near-ties, nothing else.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice

import numpy as np

from qwen_chat_mlx.engine.bench.workloads import cut, load_workload
from qwen_chat_mlx.engine.config import EngineConfig
from qwen_chat_mlx.engine.session import Session
from qwen_chat_mlx.engine.tokenizer import Tokenizer
from qwen_chat_mlx.engine.types import Message

CHATS, REPLY = 40, 96
TEXTS = (("code", 400), ("novel", 400))


def prompts(tokenizer: Tokenizer) -> Iterator[tuple[str, list[int]]]:
    """(domain, ids): the first message of held-out conversations, every second one with thinking; one stretch of each text."""
    for number, lines in enumerate(islice(load_workload("chat").conversations, CHATS)):
        yield "chat", list(tokenizer.render([Message("user", lines[0])], think=number % 2 == 0).ids)
    for name, tokens in TEXTS:
        yield name, list(tokenizer.encode(cut(tokenizer, load_workload(name), tokens)))


def reply(session: Session, ids: list[int]) -> list[int]:
    return [token for step in session.generate(ids, REPLY) for token in step.tokens]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bf16")
    parser.add_argument("fp8")
    args = parser.parse_args()
    first, second = (
        Session.open(EngineConfig(model=f, mtp="off", expert_cache="100 %")) for f in (args.bf16, args.fp8)
    )
    index = first.loaded.survey.index
    tokenizer = Tokenizer.load(index.folder, index.config, index.generation_config)
    replies: dict[str, list[bool]] = {}
    same = positions = 0
    margins, moved = [], 0.0
    for domain, ids in prompts(tokenizer):
        mine = reply(first, ids)
        replies.setdefault(domain, []).append(mine == reply(second, ids))
        one, other = (session.score([*ids, *mine])[len(ids) - 1 : -1] for session in (first, second))
        moved = max(moved, float(np.abs(one - other).max()))
        chosen = other.argmax(-1)
        flipped = chosen != one.argmax(-1)
        same, positions = same + int((~flipped).sum()), positions + len(flipped)
        margins += list((one.max(-1) - np.take_along_axis(one, chosen[:, None], -1)[:, 0])[flipped])
    for domain, equal in replies.items():
        print(f"{domain}: {sum(equal)} of {len(equal)} replies of up to {REPLY} tokens have the same ids")
    print(
        f"along the first form's replies: same choice at {same} of {positions} positions, logits moved by at most {moved:.3f}"
    )
    if margins:
        print(f"margins of the choices that differ: median {np.median(margins):.4f}, largest {max(margins):.4f}")


if __name__ == "__main__":
    main()
