"""Sampled ids to what a reader sees: whole characters, thinking apart from the answer, and an end at a stop string.

ReplyReader joins three machines that can be used alone: StreamDecoder (ids → text), ReplySplitter (text and think tags →
thinking | answer) and StopMatcher (held back until certain). Knows no tokenizer class, no model, no MLX. The cost of a
token does not grow with the reply.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from .errors import RequestError
from .types import TextKind

__all__ = ["Fragment", "Piece", "ReplyReader", "ReplySplitter", "StopMatcher", "StreamDecoder"]

_OPEN, _CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Fragment:
    """Text on its way through the machines, and for each character the number of the token in which it begins."""

    kind: TextKind
    text: str
    tokens: Sequence[int]

    def cut(self, start: int, end: int) -> Fragment:
        return Fragment(self.kind, self.text[start:end], self.tokens[start:end])

    def join(self, other: Fragment) -> Fragment:
        return Fragment(other.kind, self.text + other.text, [*self.tokens, *other.tokens])


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that is certain. `tokens`: how many tokens it stands for; over a reply they sum to the committed tokens."""

    kind: TextKind
    text: str
    tokens: int


class StreamDecoder:
    """Ids to text, piece by piece: never half a character, and in sum exactly what decoding all ids at once gives."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        """`token_bytes` gives the bytes of one id; none for an id without a token, or without text."""
        self._token_bytes = token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that this id completes; bytes of an unfinished character (at most three) wait for the next id."""
        return self._utf8.decode(self._token_bytes(token))

    @property
    def inside(self) -> bool:
        """The last id ended inside a character."""
        return bool(self._utf8.getstate()[0])

    def finish(self) -> str:
        """U+FFFD for a character that was never finished, else nothing. The decoder starts afresh."""
        return self._utf8.decode(b"", final=True)


class ReplySplitter:
    """Text of a reply, in chunks cut anywhere, to fragments of thinking and of the answer.

    The first </think> ends a think block, however many <think> came; a </think> outside one is dropped; a <think> in
    the answer begins another block. White space is dropped around thinking: after a tag up to the last newline before
    the text (indentation stays), in front of </think> all of it, and before a <think> that begins the reply. All other
    text comes out as it came in. A block without an end stays thinking.
    """

    def __init__(self, starts_thinking: bool = False, text_tags: bool = True, continues: bool = False) -> None:
        """`text_tags` False: tags come by `tag` (they are special ids), and "<think>" in the text is text. `continues`:
        the text before the reply has begun, so that white space at the reply's beginning is part of it."""
        self.kind: TextKind = "thinking" if starts_thinking else "answer"
        self._text_tags = text_tags
        self._lead: Literal["", "keep", "drop"] = "" if continues else "drop" if starts_thinking else "keep"
        """No text yet in this place; the white space before it is held, and kept or dropped when text comes."""
        self._space = self._partial = Fragment(self.kind, "", ())

    @property
    def held(self) -> Fragment:
        """What came in and may still turn out to be text."""
        return self._space.join(self._partial)

    def push(self, text: str, tokens: Sequence[int] = ()) -> list[Fragment]:
        """The fragments that are certain now; `tokens` are those of Fragment, all 0 where left out."""
        rest = self._partial.join(Fragment(self.kind, text, tokens or [0] * len(text)))
        self._partial = rest.cut(0, 0)
        out: list[Fragment] = []
        while self._text_tags and (found := [(i, t) for t in (_OPEN, _CLOSE) if (i := rest.text.find(t)) >= 0]):
            at, tag = min(found)
            out += self._plain(rest.cut(0, at))
            out += self.tag("open" if tag == _OPEN else "close")
            rest = rest.cut(at + len(tag), len(rest.text))
        sure = len(rest.text) - (_overlap(rest.text, (_OPEN, _CLOSE)) if self._text_tags else 0)
        out += self._plain(rest.cut(0, sure))
        self._partial = rest.cut(sure, len(rest.text))
        return out

    def tag(self, which: Literal["open", "close"]) -> list[Fragment]:
        """A think tag at this place of the text."""
        out = self._plain(self._partial)
        self._partial = self._partial.cut(0, 0)
        if (which == "open") == (self.kind == "answer"):
            self.kind = "thinking" if which == "open" else "answer"
            self._lead, self._space = "drop", Fragment(self.kind, "", ())
        return out

    def finish(self) -> list[Fragment]:
        """What was held back and is text after all."""
        out = self._plain(self._partial)
        space, self._space, self._partial = self._space, self._space.cut(0, 0), self._partial.cut(0, 0)
        return [*out, space] if space.text and self._lead != "drop" else out

    def _plain(self, new: Fragment) -> list[Fragment]:
        text = self._space.join(Fragment(self.kind, new.text, new.tokens))
        start, end = 0, len(text.text)
        if self._lead:
            start = end - len(text.text.lstrip())
            if start == end:
                self._space = text
                return []
            start = text.text.rfind("\n", 0, start) + 1 if self._lead == "drop" else 0
            self._lead = ""
        if self.kind == "thinking":
            end = len(text.text.rstrip())
        self._space = text.cut(end, len(text.text))
        return [text.cut(start, end)] if end > start else []


class StopMatcher:
    """Ends a text before the stop string that is complete first; text that could still become one is held back.

    The result does not depend on how the text is cut into chunks. Of stop strings complete at the same character the
    longest counts.
    """

    def __init__(self, stops: Collection[str] = ()) -> None:
        """Raises RequestError for an empty stop string."""
        if not all(stops):
            raise RequestError("A stop string is empty, so it would end every reply at once.", "Leave it out.")
        self._stops = tuple(stops)
        self.held = Fragment("answer", "", ())
        self.matched: str | None = None
        self.matched_token = 0
        """Number of the token in which the stop string begins."""

    def push(self, new: Fragment) -> Fragment:
        """The text that is certain now: everything before the match once `matched` is set."""
        text = self.held.join(new)
        ends = [(at + len(s), -len(s), at, s) for s in self._stops if (at := text.text.find(s)) >= 0]
        if ends:
            _, _, at, self.matched = min(ends)
            self.matched_token = text.tokens[at]
            self.held = text.cut(0, 0)
            return text.cut(0, at)
        sure = len(text.text) - _overlap(text.text, self._stops)
        self.held = text.cut(sure, len(text.text))
        return text.cut(0, sure)

    def finish(self) -> Fragment:
        """What was held back."""
        held, self.held = self.held, self.held.cut(0, 0)
        return held


def _overlap(text: str, wanted: Collection[str]) -> int:
    """Length of the longest end of `text` that is a beginning, but not the whole, of one of the wanted strings."""
    most = min(len(text), max(map(len, wanted), default=1) - 1)
    return next((n for n in range(most, 0, -1) if any(len(w) > n and w.startswith(text[-n:]) for w in wanted)), 0)


class ReplyReader:
    """One reply, fed token by token. After a stop string `stopped` is True and further tokens must not be fed.

    Stop strings are looked for in the answer only, and never across thinking.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        *,
        think_ids: tuple[int, int] | None = None,
        starts_thinking: bool = False,
        continues: bool = False,
        stops: Collection[str] = (),
        hidden_ids: Collection[int] = frozenset(),
    ) -> None:
        """`think_ids`: ids of <think> and </think>, or None to find the tags in the text. `starts_thinking` and
        `continues` are the prompt's. `hidden_ids` have no text."""
        self._think_ids = think_ids
        self._hidden = frozenset(hidden_ids)
        self._decoder = StreamDecoder(token_bytes)
        self._splitter = ReplySplitter(starts_thinking, think_ids is None, continues)
        self._stops = StopMatcher(stops)
        self._fed = 0
        self._began = 0
        """The token in which the unfinished character began; 0 when there is none."""
        self._reported = 0
        self._last_shown = 0
        self._committed: int | None = None

    @property
    def stopped(self) -> bool:
        return self._stops.matched is not None

    @property
    def holds(self) -> bool:
        """Text is held back that may be the beginning of a stop string."""
        return bool(self._stops.held.text)

    @property
    def fed(self) -> int:
        """Tokens fed so far."""
        return self._fed

    @property
    def committed(self) -> int:
        """Tokens of the reply: all that were fed, or, after a stop string, those up to the last character before it."""
        return self._fed if self._committed is None else self._committed

    def feed(self, token: int) -> list[Piece]:
        """The next sampled id. Returns what became certain; often one piece, sometimes none or a change of kind."""
        if self.stopped:
            raise RuntimeError("fed a reply that has ended at a stop string")
        self._fed += 1
        if self._think_ids is not None and token in self._think_ids:
            out = self._split(self._decoder.finish())
            out += self._splitter.tag("open" if token == self._think_ids[0] else "close")
            return self._pieces(out)
        return self._pieces([] if token in self._hidden else self._split(self._decoder.push(token)))

    def finish(self) -> list[Piece]:
        """The reply is over (a stop id, a limit, a cancel): what was held back. A stop string may still be found."""
        if self.stopped:
            return []
        return self._pieces([*self._split(self._decoder.finish()), *self._splitter.finish()], last=True)

    def _split(self, text: str) -> list[Fragment]:
        """Through the splitter, with the tokens in which the characters of the decoder's text begin."""
        tokens = [self._began or self._fed] * bool(text) + [self._fed] * (len(text) - 1)
        if text or not self._began:
            self._began = self._fed if self._decoder.inside else 0
        return self._splitter.push(text, tokens) if text else []

    def _pieces(self, fragments: Sequence[Fragment], last: bool = False) -> list[Piece]:
        out: list[Fragment] = []
        for f in fragments:
            if f.kind == "thinking":
                out += [self._stops.finish(), f]
                continue
            out.append(self._stops.push(f))
            if self.stopped:
                break
        if last and not self.stopped:
            out.append(self._stops.finish())
        merged: list[Fragment] = []
        for f in out:
            if not f.text:
                continue
            if merged and merged[-1].kind == f.kind:
                merged[-1] = merged[-1].join(f)
            else:
                merged.append(f)
        return self._counted(merged)

    def _counted(self, fragments: Sequence[Fragment]) -> list[Piece]:
        """The fragments with the tokens that each completes; tokens without text go to the last piece."""
        if fragments:
            self._last_shown = fragments[-1].tokens[-1]
        if self.stopped:
            # A token that also holds text before the stop string belongs to the reply; one that begins with it does not.
            at = self._stops.matched_token
            self._committed = at if self._last_shown == at else at - 1
            done = self._committed
        else:
            held = self._stops.held if self._stops.held.text else self._splitter.held
            open_since = held.tokens[0] if held.text else self._began
            done = open_since - 1 if open_since else self._fed
        pieces: list[Piece] = []
        for i, f in enumerate(fragments):
            upto = min(done, f.tokens[-1]) if i < len(fragments) - 1 else done
            pieces.append(Piece(f.kind, f.text, max(0, upto - self._reported)))
            self._reported = max(self._reported, upto)
        if not pieces and done > self._reported:
            pieces.append(Piece(self._splitter.kind, "", done - self._reported))
            self._reported = done
        return pieces
