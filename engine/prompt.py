"""A conversation to a prompt: the template's text, its ids, sampled ids replayed, and the turns' stable boundaries.

What a user typed can never become a special token: every character in a message that could begin one is followed by a
mark (a character that occurs in no message) while the template runs, special tokens are recognised only where no mark
follows, and the marks are removed before the text between special tokens is encoded.

Knows the codec and the template, no files and no model.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .codec import Codec
from .errors import RequestError, TemplateError, nearest
from .template import ChatTemplate
from .types import Message

__all__ = ["Prompt", "PromptWriter", "raw_prompt"]

_OWN_VARIABLES = frozenset({"messages", "add_generation_prompt", "enable_thinking", "tools", "documents"})


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered conversation."""

    text: str
    ids: tuple[int, ...]
    boundaries: tuple[int, ...] = ()
    """Ascending prefix lengths of `ids` at which a turn begins and that stay a prefix when the conversation goes on."""
    starts_thinking: bool = False
    """The prompt ends inside a think block, so the reply begins with thinking."""
    continues: bool = False
    """The prompt ends inside a text, so white space at the beginning of the reply belongs to that text."""
    replayed: tuple[int, ...] = ()
    """Indices of the assistant messages whose sampled ids stand in `ids` as they were sampled."""


class PromptWriter:
    """Turns conversations into prompts for one checkpoint."""

    def __init__(
        self,
        codec: Codec,
        template: ChatTemplate | None,
        constants: dict[str, str],
        fingerprint: str,
        stop_ids: Collection[int],
        vocab_size: int,
    ) -> None:
        """`constants` are the template variables such as eos_token; `vocab_size` is the model's."""
        self.codec, self.template, self.constants = codec, template, constants
        self.fingerprint, self.stop_ids, self.vocab_size = fingerprint, stop_ids, vocab_size
        self.openings: dict[Any, tuple[str, ...]] = {}

    def render(
        self,
        messages: Sequence[Message],
        think: bool | None = None,
        continue_last: bool = False,
        options: Sequence[tuple[str, str]] = (),
    ) -> Prompt:
        """The prompt of a conversation. `options` are further template variables ("true" and "false" become booleans).

        Sampled ids of an assistant message are used as they are where the template renders exactly their text; anywhere
        else (an edited message, a think block that the template drops) the template's text is encoded.
        Raises TemplateError, and RequestError for messages that make no prompt.
        """
        if not messages:
            raise RequestError("There is no message to answer.")
        if continue_last and messages[-1].role != "assistant":
            raise RequestError("Only an assistant message can be continued, and the last one is not.")
        if continue_last and not (messages[-1].text or messages[-1].thinking):
            messages, continue_last = messages[:-1], False
        checked = self._checked_options(options)
        if continue_last and (prompt := self._reopened(messages, think, checked)):
            return prompt
        return _Rendering(self, messages, think, continue_last, checked).prompt()

    def _reopened(self, messages: Sequence[Message], think: bool | None, options: dict[str, Any]) -> Prompt | None:
        """The prompt of the last reply followed by its sampled ids, stop id apart; None where these do not fit.

        It is what the model had before it, also where the template would move or drop a think block of the past.
        """
        *before, last = messages
        ids = self.usable_ids(last)
        ids = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        tags = self.codec.decode(ids)
        head, closed, answer = tags.rpartition("</think>")
        if not closed and last.thinking:  # cut off while thinking
            head, answer = tags, ""
        thinking = head.rpartition("<think>")[2]
        if not ids or not before or (thinking.strip(), answer.strip()) != (last.thinking.strip(), last.text.strip()):
            return None
        began_thinking = "<think>" not in tags and bool(last.thinking or closed)
        for variant in dict.fromkeys((think, True, False, None)):
            try:
                prompt = _Rendering(self, before, variant, False, options).prompt()
            except TemplateError:
                continue
            if prompt.starts_thinking == began_thinking:
                thinks = _in_block(tags) if "think>" in tags else began_thinking
                return replace(
                    prompt,
                    text=prompt.text + tags,
                    ids=(*prompt.ids, *ids),
                    starts_thinking=thinks,
                    continues=_in_text(tags),
                    replayed=(*prompt.replayed, len(before)),
                )
        return None

    def _checked_options(self, options: Sequence[tuple[str, str]]) -> dict[str, Any]:
        if self.template is None:
            raise TemplateError(
                "This model has no chat template, so it can only continue a text.", "Use --raw, or an instruct model."
            )
        known = self.template.variables - _OWN_VARIABLES
        for name, _ in options:
            if name not in known:
                near = nearest(name, known)
                hint = f"Did you mean {near[0]}?" if near else ("It knows: " + ", ".join(sorted(known)) + ".")
                raise TemplateError(f"The model's chat template has no option {name!r}.", hint if known else "")
        return {name: {"true": True, "false": False}.get(value.lower(), value) for name, value in options}

    def usable_ids(self, m: Message) -> tuple[int, ...]:
        """The sampled ids of a message; none when they are of another tokenizer."""
        fits = m.role == "assistant" and m.tokenizer_fingerprint == self.fingerprint
        return m.token_ids if fits and all(0 <= i < self.vocab_size for i in m.token_ids) else ()


class _Rendering:
    """One call of PromptWriter.render: the marks, the template's text, and where sampled ids stand in it."""

    def __init__(
        self,
        writer: PromptWriter,
        messages: Sequence[Message],
        think: bool | None,
        continue_last: bool,
        options: dict[str, Any],
    ) -> None:
        self.w, self.codec, self.messages, self.think, self.options = writer, writer.codec, messages, think, options
        self.continue_last = continue_last
        texts = [s for m in messages for s in (m.text, m.thinking)] + [
            v for v in options.values() if isinstance(v, str)
        ]
        self.sampled = {i: writer.usable_ids(m) for i, m in enumerate(messages)}
        texts += [self.codec.decode(ids) for ids in self.sampled.values()]
        self.mark, self.cut = _unused_characters(texts)
        self.specials = self.codec.special_pattern(self.mark)

    def prompt(self) -> Prompt:
        text = self._render(self.messages, not self.continue_last)
        if self.continue_last:
            text, found, _ = text.partition(self.cut)
            if not found:
                raise TemplateError("The model's chat template leaves out the last message, so it cannot be continued.")
        if not text:
            raise TemplateError(
                "The model's chat template is empty, or writes nothing for this conversation.",
                "Download the model's chat_template.jinja again, or use --raw.",
            )
        openings = self._openings()
        spans, replayed = self._replay(text, openings)
        ids, boundaries = self.codec.encode_marked(text, self.mark, spans, self._turn_starts(text, openings))
        return Prompt(
            text=text.replace(self.mark, ""),
            ids=tuple(ids),
            boundaries=tuple(b for b in boundaries if 0 < b < len(ids)),
            starts_thinking=_in_block(text),
            continues=self.continue_last and _in_text(text),
            replayed=replayed,
        )

    def _marked(self, text: str) -> str:
        return self.codec.mark(text, self.mark)

    def _marked_ids(self, ids: Sequence[int]) -> str:
        """The text of sampled ids as the template would hold it: special tokens bare, all other text marked."""
        parts: list[str] = []
        run: list[int] = []
        for i in (*ids, None):
            if i is None or i in self.codec.added_ids:
                parts.append(self._marked(self.codec.decode(run)))
                run = []
                if i is not None:
                    parts.append(self.codec.decode([i]))
            else:
                run.append(i)
        return "".join(parts)

    def _render(
        self, messages: Sequence[Message], add_generation_prompt: bool, think: bool | str | None = "own"
    ) -> str:
        """The template's text, marked. `think` "own" is the request's."""
        think = self.think if think == "own" else think
        turns = []
        for i, m in enumerate(messages):
            text, thinking = self._marked(m.text), self._marked(m.thinking)
            if self.continue_last and messages is self.messages and i == len(messages) - 1:
                text, thinking = (text + self.cut, thinking) if text else (text, thinking + self.cut)
            turns.append({"role": m.role, "content": text} | ({"reasoning_content": thinking} if thinking else {}))
        variables: dict[str, Any] = {
            **self.w.constants,
            **{k: self._marked(v) if isinstance(v, str) else v for k, v in self.options.items()},
            "messages": turns,
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        if think is not None:
            variables["enable_thinking"] = think
        assert self.w.template is not None
        size = sum(len(m.text) + len(m.thinking) + 16 for m in messages)
        return self.w.template.render(variables, size)

    def _openings(self) -> tuple[str, ...]:
        """What the template writes before a reply, with and without thinking, the bare header last; () if nothing."""
        key = (self.mark, self.think, tuple(sorted(self.options.items())))
        if key not in self.w.openings:
            found: list[str] = []
            probe = (Message("user", "x"),)
            for think in (self.think, None, True, False):
                try:
                    closed, opened = self._render(probe, False, think), self._render(probe, True, think)
                except TemplateError:
                    continue
                if opened.startswith(closed) and len(opened) > len(closed):
                    found.append(opened[len(closed) :])
            if found:
                header = found[0][: min(_common(found[0], other) for other in found)].split("<think>")[0]
                found.append(header)
            self.w.openings[key] = tuple(dict.fromkeys(found)) if found and found[-1] else ()
        return self.w.openings[key]

    def _replay(
        self, text: str, openings: tuple[str, ...]
    ) -> tuple[list[tuple[int, int, Sequence[int]]], tuple[int, ...]]:
        """Where in the text sampled ids stand for what they say, and the indices of their messages."""
        turns = [i for i, m in enumerate(self.messages) if m.role == "assistant"]
        if not openings or not any(self.sampled.values()):
            return [], ()
        heads = [m.start() for m in re.finditer(re.escape(openings[-1]), text)]
        if len(heads) != len(turns) + (not self.continue_last):  # the template joins or drops turns
            return [], ()
        spans: list[tuple[int, int, Sequence[int]]] = []
        replayed: list[int] = []
        for turn, head in zip(turns, heads):
            said = self._marked_ids(self.sampled[turn])
            for opening in openings:
                start = head + len(opening)
                end = start + len(said)
                if said and text.startswith(opening + said, head):
                    spans.append((start, end, self.sampled[turn]))
                    replayed.append(turn)
                    break
        return spans, tuple(replayed)

    def _turn_starts(self, text: str, openings: tuple[str, ...]) -> list[int]:
        """Offsets of the special token that begins each turn, as far as the text stays the same in the next turn."""
        first = self.specials.search(openings[-1]) if openings else None
        if first is None:
            return []
        more = (Message("assistant", "x", thinking="x"), Message("user", "x"))
        try:
            later = self._render((*self.messages[: len(self.messages) - self.continue_last], *more), True)
        except TemplateError:
            return []
        stable = _common(text, later)
        return [m.start() for m in self.specials.finditer(text) if m[0] == first[0] and m.start() <= stable]


def _in_block(text: str) -> bool:
    """A think block is open at the end of the text."""
    return text.rfind("<think>") > text.rfind("</think>")


def _in_text(text: str) -> bool:
    return not text.rstrip().endswith(("<think>", "</think>"))


def raw_prompt(codec: Codec, text: str) -> Prompt:
    """A text as the prompt, as it is: special tokens written in it are special tokens."""
    return Prompt(text, tuple(codec.encode(text)), starts_thinking=_in_block(text))


def _common(a: str, b: str) -> int:
    """Length of the common prefix."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _unused_characters(texts: Sequence[str]) -> tuple[str, str]:
    """Two characters that are in none of the texts: Unicode's noncharacters, or, if someone uses those, private ones."""
    used = set().union(*texts)
    free = (chr(c) for block in (range(0xFDD0, 0xFDF0), range(0xF0000, 0x10FFFE)) for c in block)
    unused = (c for c in free if c not in used)
    return next(unused), next(unused)
