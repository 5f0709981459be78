"""The texts of the benchmark: code and prose the demo model was not trained on, each a little over 32k of its tokens, and
the user's side of held-out conversations.

python bench_corpora.py CORPORA TOKENIZER OUT       writes code.txt, novel.txt, chat.txt; their NOTICE is kept by hand
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

import corpora
from bpe import load_tokenizer
from dialogues import Conversations
from dialogues.conversation import plain_text
from prepare import HELD_SEED, is_held

WANTED = 33_000
CONVERSATIONS, TURNS = 40, (4, 12)
"""So many conversations, each of so many turns: ones this long are not in the training set a second time."""


def code(folder: Path) -> Iterator[str]:
    for name, source in corpora.code_files(folder):
        if is_held(name):
            yield f"# {name}\n{source.strip()}\n"


def prose(folder: Path) -> Iterator[str]:
    for title, text in (("jargon", corpora.jargon_file(folder)), ("devil", corpora.devils_dictionary(folder))):
        for i, part in enumerate(corpora.split(text)):
            if is_held(f"{title}{i}"):
                yield part.strip() + "\n"
    for name, page in corpora.doc_pages(folder):
        if is_held(name):
            yield page.strip() + "\n"


def chats(folder: Path) -> Iterator[str]:
    """The user's messages of held-out conversations, one a line, a blank line behind each conversation."""
    source, r = Conversations(corpora.rare_nouns(folder)), Random(HELD_SEED)
    found = 0
    while found < CONVERSATIONS:
        text = plain_text(source.write(r))
        said = re.findall(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", text, re.DOTALL)
        if "<|im_start|>system" in text or "\n" in "".join(said) or not TURNS[0] <= len(said) <= TURNS[1]:
            continue
        found += 1
        yield "\n".join(said) + "\n"


def enough(texts: Iterator[str], tokenizer) -> str:
    """Whole texts while they fit; the last one is cut after the line that reaches the wanted number of tokens."""
    taken, count = [], 0
    for text in texts:
        size = len(tokenizer.encode(text).ids)
        if count + size < WANTED:
            taken.append(text)
            count += size
            continue
        lines = []
        for line in text.splitlines():
            lines.append(line)
            count += len(tokenizer.encode(line + "\n").ids)
            if count >= WANTED:
                return "\n".join([*taken, *lines]) + "\n"
    raise SystemExit(f"only {count} tokens of text")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    tokenizer = load_tokenizer(args.tokenizer)
    args.out.mkdir(parents=True, exist_ok=True)
    corpora.fetch(args.corpora)
    for name, texts in (("code", code(args.corpora)), ("novel", prose(args.corpora))):
        text = enough(texts, tokenizer)
        (args.out / f"{name}.txt").write_text(text, encoding="utf-8")
        print(f"{name}: {len(text)} characters, {len(tokenizer.encode(text).ids)} tokens")
    chat = "\n".join(chats(args.corpora))
    (args.out / "chat.txt").write_text(chat, encoding="utf-8")
    print(f"chat: {chat.count(chr(10) * 2) + 1} conversations, {len(chat)} characters")


if __name__ == "__main__":
    main()
