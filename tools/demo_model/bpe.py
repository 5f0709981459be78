"""The byte-level BPE tokenizer: its special tokens, how it is trained, how it is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEXT_MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Single tokens that belong to the text: decoding keeps them, as in the published tokenizer."""
RESERVED = tuple(f"<|reserved_{i}|>" for i in range(9))
END_OF_TEXT, IM_START, IM_END, THINK, END_THINK = range(5)
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _empty() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    marks = re.compile("|".join(map(re.escape, (*CONTROL, *TEXT_MARKS))))
    tokenizer = _empty()
    names = [*CONTROL, *TEXT_MARKS, *RESERVED]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(n, special=n not in TEXT_MARKS, normalized=False) for n in names],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((part for text in texts for part in marks.split(text)), trainer)
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.from_file(str(path))
