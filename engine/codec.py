"""Text to token ids and back for byte-level BPE, with exact control over what may become a special token.

Knows no files, no templates, no model. `tokenizers` is imported by whoever makes the backend.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers

__all__ = ["Codec", "clean"]

_SURROGATES = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """The text with U+FFFD for halves of surrogate pairs, which no encoding can hold."""
    return _SURROGATES.sub("\ufffd", text)


@dataclass(frozen=True, slots=True)
class _Special:
    """A token that is found in text before any other tokenization."""

    id: int
    lstrip: bool
    rstrip: bool


class Codec:
    """A byte-level BPE tokenizer. Not for use by two threads at a time."""

    vocab_size: int
    """Tokens that exist. The model's vocabulary may be larger; ids without a token yield no text."""
    think_ids: tuple[int, int] | None
    """Ids of <think> and </think>, where both are single tokens."""
    added_ids: frozenset[int]
    """Tokens that are found in text before any other tokenization."""
    special_ids: frozenset[int]
    """Those of them that are control tokens, which are no part of an answer's text."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        added = backend.get_added_tokens_decoder()
        self._added = {t.content: _Special(i, t.lstrip, t.rstrip) for i, t in added.items() if t.content}
        self.added_ids = frozenset(s.id for s in self._added.values())
        self.special_ids = frozenset(i for i, t in added.items() if t.special)
        pair = backend.token_to_id("<think>"), backend.token_to_id("</think>")
        self.think_ids = None if pair[0] is None or pair[1] is None else (pair[0], pair[1])
        # "<" always counts, so that think tags in a message are text even where they are no tokens.
        firsts = "".join(sorted({"<", *(content[0] for content in self._added)}))
        self._first_of_special = re.compile(f"[{re.escape(firsts)}]")
        self._bytes: dict[int, bytes] = {}

    def encode(self, text: str) -> list[int]:
        """Ids of a text; special tokens written in it become special tokens. Adds none of its own."""
        return self.encode_marked(clean(text), "", (), ())[0]

    def encode_plain(self, text: str) -> list[int]:
        """Ids of a text in which nothing is a special token."""
        return self._plain(clean(text))

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """The text of ids; invalid UTF-8 becomes U+FFFD, ids without a token become nothing."""
        skip = self.special_ids if skip_special else frozenset()
        return b"".join(self.token_bytes(i) for i in ids if i not in skip).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token; empty for an id without a token."""
        known = self._bytes.get(token)
        if known is None:
            text = self._backend.id_to_token(token) if 0 <= token < 1 << 32 else None
            known = self._bytes[token] = b"" if text is None else _to_bytes(text)
        return known

    def id_of(self, token: str) -> int | None:
        """The id of one token, None where there is no such token."""
        return self._backend.token_to_id(token)

    def mark(self, text: str, mark: str) -> str:
        """The text with a mark after every character that could begin a special token."""
        return self._first_of_special.sub(lambda m: m[0] + mark, clean(text))

    def special_pattern(self, mark: str) -> re.Pattern[str]:
        """Special tokens, the longest first as the tokenizer itself prefers, where no mark says "typed by a user"."""
        longest_first = sorted(self._added, key=len, reverse=True)
        if not longest_first:
            return re.compile("(?!)")
        return re.compile(f"(?:{'|'.join(map(re.escape, longest_first))})" + (f"(?!{mark})" if mark else ""))

    def encode_marked(
        self, text: str, mark: str, spans: Sequence[tuple[int, int, Sequence[int]]], wanted: Iterable[int]
    ) -> tuple[list[int], list[int]]:
        """Ids of a marked text, with given ids in place of the spans (start, end, ids); and for each wanted offset at
        which a special token stands, the number of ids before it."""
        pattern, places = self.special_pattern(mark), set(wanted)
        ids: list[int] = []
        found: list[int] = []
        at = 0
        for start, end, sampled in (*spans, (len(text), len(text), ())):
            for m in pattern.finditer(text, at, start):
                special = self._added[m[0]]
                before = text[at : m.start()]
                ids += self._plain((before.rstrip() if special.lstrip else before).replace(mark, ""))
                if m.start() in places:
                    found.append(len(ids))
                ids.append(special.id)
                at = m.end()
                if special.rstrip:
                    at += len(text[at:start]) - len(text[at:start].lstrip())
            ids += self._plain(text[at:start].replace(mark, ""))
            ids += sampled
            at = end
        return ids, found

    def _plain(self, text: str) -> list[int]:
        """Ids of a text without looking for special tokens."""
        if not text:
            return []
        ids = self._backend.encode(text, add_special_tokens=False).ids
        if self.added_ids.isdisjoint(ids):
            return ids
        backend = self._backend
        normal = backend.normalizer.normalize_str(text) if backend.normalizer else text
        pieces = [p for p, _ in backend.pre_tokenizer.pre_tokenize_str(normal)] if backend.pre_tokenizer else [normal]
        ids = []
        for piece in pieces:
            found = [t.id for t in backend.model.tokenize(piece)]
            if not self.added_ids.isdisjoint(found):  # the vocabulary itself holds the special token as a word
                found = [t.id for char in piece for t in backend.model.tokenize(char)]
            ids += found
        return ids


_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_BYTE_OF = {chr(b): b for b in _PRINTABLE} | {
    chr(256 + n): b for n, b in enumerate(b for b in range(256) if b not in set(_PRINTABLE))
}
"""The byte that each letter of a byte-level vocabulary stands for."""


def _to_bytes(token: str) -> bytes:
    """Bytes of a vocabulary entry; an added token that is not spelled in byte letters stands for itself."""
    try:
        return bytes(_BYTE_OF[c] for c in token)
    except KeyError:
        return token.encode("utf-8")
