"""Does drafting keep memory flat? MLX's active memory early and late in one reply, apart from the caches' own growth.

python benchmarks/drafting_memory.py --model PATH [--mtp off]
"""

from __future__ import annotations

import argparse

import mlx.core as mx
from measuring import Target, console, size, verdict

PROMPT = "def mean(values):\n    return sum(values) / len(values)\n\n\ndef median(values):\n"
WINDOW = 16
"""Steps over which the lowest value counts: what a step needs for itself comes and goes."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--mtp", default="fixed", choices=("auto", "fixed", "off"))
    parser.add_argument("--max-draft", type=int, default=2)
    parser.add_argument("--at", type=int, nargs=2, default=(500, 2000), help="tokens of the reply")
    a = parser.parse_args()
    from qwen_chat_mlx.engine.config import EngineConfig
    from qwen_chat_mlx.engine.session import Session
    from qwen_chat_mlx.engine.tokenizer import Tokenizer

    session = Session.open(EngineConfig(model=a.model, mtp=a.mtp, max_draft=a.max_draft))
    survey = session.loaded.survey
    index = survey.index
    prompt = Tokenizer.load(index.folder, index.config, index.generation_config).raw(PROMPT).ids
    drafter = session._rounds.drafter
    seen: dict[int, list[tuple[int, int]]] = {at: [] for at in a.at}

    def look() -> None:
        made = session.position - len(prompt)
        for at, found in seen.items():
            if made >= at and len(found) < WINDOW:
                held = sum(c.nbytes() for c in session.caches) + drafter.nbytes()
                found.append((mx.get_active_memory() - held, held))

    session.on_growth = look
    for _ in session.generate(prompt, a.at[1] + WINDOW * (1 + a.max_draft) + 1, ignore_eos=True):
        pass
    (rest, held), (rest_late, held_late) = (min(found) for found in seen.values())
    tokens = session.position
    planned = int(tokens * survey.needs.kv_bytes_a_token) + survey.needs.state_bytes
    console.print(f"held by caches at {a.at[0]:,} and {a.at[1]:,} tokens: {size(held)}, {size(held_late)}")
    console.print(f"everything else: {size(rest)}, {size(rest_late)}; drafts: {session.stats().drafts.proposed:,}")
    session.close()
    return verdict([
        Target("growth apart from the caches", size(rest_late - rest), "≤ 256 KiB", rest_late - rest <= 256 << 10),
        Target("held by caches", size(held_late), f"≤ 1.25 × plan = {size(1.25 * planned)}", held_late <= 1.25 * planned),
    ])  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
