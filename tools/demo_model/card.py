"""Write the model card from the measured figures.   python card.py FIGURES.json RUN OUT.md

What was asked for and not reached is listed as such; nothing is rounded up.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from checkpoints import load_checkpoint

HEAD = """# The demo model

A tiny language model of the Qwen4-Exp architecture that ships inside qwen-chat, so that the program can be tried with no
download. It was trained from scratch by `tools/demo_model`. It chats about itself and this program, knows a few hundred
simple facts, adds small numbers, tells very short stories, writes small Python functions, and says politely that it does
not know the rest. It is not useful for anything else, and it is no measure of what the architecture can do.

Try: *What is the capital of France?* · *What is 17 + 8?* · *Tell me a story about a fox.* ·
*Write a Python function that checks if a number is prime.* · *How do I turn MTP off?*
"""

LIMITS = """## Limits

* English only. Sums: up to 20 + 20 and 10 x 10, with thinking also two-digit sums and differences. Nothing larger.
* It knows only what its dialogues say; a question that looks like a known one can get the known one's answer.
* Off-domain text gets a refusal or nonsense. Code and prose beyond its small functions and stories are babble of the right
  shape; they are there to exercise drafting, expert caches and long prompts.
* It was trained on contexts of up to 2,048 tokens. Longer prompts run, but mean little to it.
* Drafting looks better here than on a real model: much of its text is one of a few fixed answers, greedy code and prose
  soon repeat themselves, and the draft layer was trained on such text of the model's own.

## Data and licences

Our own templated dialogues; CPython 3.11 standard library and documentation (PSF licence); WordNet 3.0 (its own licence);
the Jargon File and The Devil's Dictionary (public domain). No copyleft text. `NOTICE` has the notices in full. Held-out
documents are whole source files that training never saw; held-out prompts are drawn from the generator with another seed, so
in a closed world like this many of them also occur in training. The 50 off-domain prompts were written by hand and never
trained on.
"""

ASKED = (
    ("tasks without thinking", ("small talk", "app", "fact", "animal", "color", "opposite", "python"), 0.95),
    ("tasks with thinking", ("small talk", "app", "fact", "animal", "color", "opposite", "python"), 0.95),
    ("tasks with thinking", ("small sum",), 0.9),
    ("tasks without thinking", ("name after 2 turns", "favourite after 2 turns", "off-domain refusals"), 0.8),
    ("tasks with thinking", ("name after 2 turns", "favourite after 2 turns", "off-domain refusals"), 0.8),
)


def share(text: str) -> float:
    right, asked = map(int, text.split("/"))
    return right / asked


def missing(figures: dict) -> list[str]:
    """What the project asked of the model and it does not reach."""
    short = []
    for table, names, wanted in ASKED:
        for name in names:
            got = figures[table]["right"][name]
            if share(got) < wanted:
                short.append(f"* {name}, {table.removeprefix('tasks ')}: {got}, wanted {wanted:.0%}")
    return short


def table(header: list[str], rows: list[list]) -> Iterator[str]:
    yield "| " + " | ".join(header) + " |"
    yield "| " + " | ".join(["---"] * len(header)) + " |"
    yield from ("| " + " | ".join(map(str, row)) + " |" for row in rows)
    yield ""


def training(run: Path) -> Iterator[str]:
    model = load_checkpoint(run)
    lines = (run / "log.jsonl").read_text(encoding="utf-8").splitlines()
    total = sum(p.numel() for p in model.parameters())
    experts = sum(p.numel() for n, p in model.named_parameters() if ".experts." in n)
    c = model.config
    yield "## The model"
    yield ""
    yield (
        f"{total / 1e6:.1f} M parameters, {experts / 1e6:.1f} M of them in {c.num_experts} experts a layer "
        f"({c.experts_per_token} per token). {c.num_layers} layers, hidden size {c.hidden_size}, {c.streams} streams, "
        f"n-gram embeddings on layer id {c.ple_layer_id}, sparse attention budget {c.index_budget} tokens in blocks of "
        f"{c.index_ratio}, one draft layer trained for two steps, {c.vocab_size} tokens of vocabulary."
    )
    yield ""
    last = json.loads(lines[-1])
    yield f"Trained on {last['tokens'] / 1e6:.2f} M tokens on one thread of a CPU."
    if "draft_tokens" in last:
        yield f"The draft layer was then trained alone, on {last['draft_tokens'] / 1e6:.2f} M tokens, to foresee the trunk."
    yield ""


def measured(f: dict) -> Iterator[str]:
    yield "## Figures"
    yield ""
    yield "Loss per learned token on held-out text (chat: what the assistant writes)."
    yield ""
    kinds = [n for n in f if n.startswith("loss")]
    yield from table(["", "chat", "code", "prose"], [[n, *(f[n][d] for d in ("chat", "code", "prose"))] for n in kinds])
    yield "Right answers on fresh prompts, greedy, by exact rules."
    yield ""
    plain, thinking = f["tasks without thinking"]["right"], f["tasks with thinking"]["right"]
    names = list(dict.fromkeys([*plain, *thinking]))
    yield from table(
        ["task", "without thinking", "with thinking"], [[n, plain.get(n, ""), thinking.get(n, "")] for n in names]
    )
    yield "Drafts. Teacher-forced: share of held-out positions where the draft is the trunk's own choice, by depth."
    yield ""
    forced = f["drafts, teacher-forced"]
    yield from table(["", "1", "2", "3"], [[d, *v] for d, v in forced.items()])
    yield "Free-running greedy text: tokens per round and share accepted at each depth."
    yield ""
    rows = [
        [domain, drafts, v["tokens_per_round"], ", ".join(map(str, v["accepted_by_depth"]))]
        for domain, by_depth in f["drafts, free-running"].items()
        for drafts, v in by_depth.items()
    ]
    yield from table(["", "drafts", "tokens per round", "accepted"], rows)
    yield "Expert cache: hit rate of an LRU per layer that holds this share of the experts."
    yield ""
    rows = [[d, *v["hit_rate"].values(), v["experts_per_layer_and_reply"]] for d, v in f["expert cache"].items()]
    shares = list(next(iter(f["expert cache"].values()))["hit_rate"])
    yield from table(["", *shares, "experts used per layer and reply"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    figures = json.loads(args.figures.read_text(encoding="utf-8"))
    short = missing(figures) or ["Nothing that was asked for."]
    parts = [HEAD, *training(args.run), *measured(figures), "## Missing", "", *short, "", LIMITS]
    args.out.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
