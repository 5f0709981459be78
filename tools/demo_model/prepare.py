"""Corpora and dialogues -> tokenizer.json and one token file per domain (chat, code, prose), train and held-out apart.

    python prepare.py CORPORA DATA

A document is held out by the hash of its file's name, so a source file is never on both sides. Held-out conversations come
from another seed and never equal a training one.
"""

from __future__ import annotations

import argparse
import zlib
from pathlib import Path
from random import Random

import corpora
import numpy as np
from bpe import load_tokenizer, train_tokenizer
from dialogues import Conversations, Piece
from dialogues.conversation import plain_text

HELD_CONVERSATIONS = 1200
TRAIN_SEED, HELD_SEED, SAMPLE_SEED = 11, 999, 0


def is_held(name: str) -> bool:
    return zlib.crc32(name.encode()) % 25 == 0


class Texts:
    """Documents of one domain on their two sides, in the order of the files they come from."""

    def __init__(self) -> None:
        self.train: list[str] = []
        self.held: list[str] = []

    def add(self, name: str, text: str, size: int = 1700) -> None:
        side = self.held if is_held(name) else self.train
        side += [part for part in corpora.split(text, size) if len(part) >= 80]


def code_texts(folder: Path) -> Texts:
    texts = Texts()
    for name, source in corpora.code_files(folder):
        texts.add(name, source)
    return texts


def prose_texts(folder: Path) -> Texts:
    texts = Texts()
    for name, page in corpora.doc_pages(folder):
        texts.add(name, page)
    for title, text in (("jargon", corpora.jargon_file(folder)), ("devil", corpora.devils_dictionary(folder))):
        for i, part in enumerate(corpora.split(text)):
            texts.add(f"{title}{i}", part)
    nouns = corpora.glosses(folder)
    Random(SAMPLE_SEED).shuffle(nouns)
    for i in range(0, 24_000, 12):
        texts.add(f"wordnet{i}", "\n".join(nouns[i : i + 12]), 3000)
    return texts


def conversations(folder: Path, count: int) -> tuple[list[list[Piece]], list[list[Piece]]]:
    source = Conversations(corpora.rare_nouns(folder))
    r = Random(TRAIN_SEED)
    train = [source.write(r) for _ in range(count)]
    seen = {plain_text(pieces) for pieces in train}
    r = Random(HELD_SEED)
    held = [source.write(r) for _ in range(HELD_CONVERSATIONS)]
    return train, [pieces for pieces in held if plain_text(pieces) not in seen]


def _encode_texts(tokenizer, texts: list[str]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Every token of a text is learned; the cut token that ends a document is not."""
    ids = [np.array([*e.ids, 0], np.uint16) for e in tokenizer.encode_batch(texts)]
    return ids, [np.arange(len(x)) < len(x) - 1 for x in ids]


def _encode_conversations(tokenizer, all_pieces: list[list[Piece]]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The conversation is encoded as a whole, as the engine does; a token is learned if a learned piece holds its start."""
    ids, learned = [], []
    for encoded, pieces in zip(tokenizer.encode_batch([plain_text(p) for p in all_pieces]), all_pieces, strict=True):
        ends = np.cumsum([len(p.text) for p in pieces])
        starts = np.array([offset[0] for offset in encoded.offsets])
        flags = np.array([p.learned for p in pieces])[np.searchsorted(ends, starts, side="right")]
        ids.append(np.array([*encoded.ids, 0], np.uint16))
        learned.append(np.array([*flags, False]))
    return ids, learned


def save(path: Path, sides: dict[str, tuple[list[np.ndarray], list[np.ndarray]]]) -> None:
    arrays = {}
    for side, (ids, learned) in sides.items():
        arrays[f"{side}_ids"] = np.concatenate(ids)
        arrays[f"{side}_learned"] = np.concatenate(learned)
        arrays[f"{side}_ends"] = np.cumsum([len(x) for x in ids])
        tokens, counted = len(arrays[f"{side}_ids"]), int(arrays[f"{side}_learned"].sum())
        print(f"{path.stem} {side}: {len(ids)} documents, {tokens} tokens, {counted} learned")
    np.savez(path, **arrays)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--conversations", type=int, default=120_000)
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--keep-tokenizer", action="store_true", help="use DATA/tokenizer.json instead of training one")
    args = parser.parse_args()
    args.data.mkdir(parents=True, exist_ok=True)
    corpora.fetch(args.corpora)
    code, prose = code_texts(args.corpora), prose_texts(args.corpora)
    train, held = conversations(args.corpora, args.conversations)
    file = args.data / "tokenizer.json"
    if not args.keep_tokenizer:
        r = Random(SAMPLE_SEED)
        sample = [piece.text for pieces in r.sample(train, min(16_000, len(train))) for piece in pieces]
        sample += r.sample(code.train, 1500) + r.sample(prose.train, 1500)
        train_tokenizer(sample, args.vocab).save(str(file))
    tokenizer = load_tokenizer(file)
    save(
        args.data / "chat.npz",
        {"train": _encode_conversations(tokenizer, train), "held": _encode_conversations(tokenizer, held)},
    )
    for name, texts in (("code", code), ("prose", prose)):
        sides = {"train": _encode_texts(tokenizer, texts.train), "held": _encode_texts(tokenizer, texts.held)}
        save(args.data / f"{name}.npz", sides)


if __name__ == "__main__":
    main()
