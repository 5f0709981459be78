"""Markdown into blocks of styled text. Raw HTML stays visible, nothing becomes clickable, nothing here knows a width.

A parser of our own output instead of one widget a paragraph: a reply of any length stays one list of plain values, so
memory, theme switches and resizing do not grow with the number of widgets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from textual.content import Content

from .sanitise import clean, one_line

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

__all__ = ["Block", "Code", "Prose", "Rule", "Table", "blocks_of"]

CODE_INLINE = "$text-accent"
HEADING = ("bold underline $text-primary", "bold $text-primary", "bold")
QUOTE_BAR = "▏ "


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    first: str = ""
    """What stands before its first line: bullets and quote bars."""
    rest: str = ""
    """What stands before its other lines; as wide as `first`."""
    gap: str | None = None
    """What stands on the blank line before it; None for no such line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prose(Block):
    content: Content


@dataclass(frozen=True, slots=True, kw_only=True)
class Code(Block):
    language: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Block):
    header: tuple[Content, ...]
    rows: tuple[tuple[Content, ...], ...]
    align: tuple[str, ...]
    """"left", "center" or "right" a column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Block):
    pass


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


def blocks_of(text: str) -> list[Block]:
    """The blocks of a Markdown text that went through the sanitiser before."""
    return _Builder().build(_parser().parse(text))


_INLINE_OPEN = {"strong_open": "bold", "em_open": "italic", "s_open": "strike"}


def _inline(tokens: Sequence[Token]) -> Content:
    """Inline tokens as one Content; entities are decoded by the parser, so the text is sanitised again."""
    parts: list[tuple[str, str]] = []
    styles: list[str] = []
    href = ""
    for t in tokens:
        if t.type in _INLINE_OPEN:
            styles.append(_INLINE_OPEN[t.type])
        elif t.type == "link_open":
            href = one_line(t.attrs.get("href", ""), 500)
            styles.append("underline")
        elif t.type.endswith("_close") and styles:
            styles.pop()
            shown = "".join(p for p, _ in parts)
            if t.type == "link_close" and href and not shown.endswith(href.removeprefix("mailto:")):
                parts.append((f" ({href})", "$text-muted"))
        elif t.type == "code_inline":
            parts.append((clean(t.content), " ".join([*styles, CODE_INLINE])))
        elif t.type in ("softbreak", "hardbreak"):
            parts.append(("\n", ""))
        elif t.type == "image":
            parts.append((f"[image: {clean(t.content)}] ({one_line(t.attrs.get('src', ''), 500)})", "italic"))
        elif t.content:
            parts.append((clean(t.content), " ".join(styles)))
    return Content.assemble(*parts)


@dataclass(slots=True)
class _Container:
    first: str
    rest: str
    fresh: bool = True
    """Nothing in it was drawn yet, so its `first` is still to come."""
    tight: bool = False


@dataclass(slots=True)
class _Builder:
    blocks: list[Block] = field(default_factory=list)
    stack: list[_Container] = field(default_factory=list)
    lists: list[tuple[int | None, bool]] = field(default_factory=list)
    """(next number or None, tight) of each list that is open."""
    gap: bool = False

    def place(self) -> dict[str, Any]:
        """The prefixes and the gap of the next block."""
        first = "".join(c.first if c.fresh else c.rest for c in self.stack)
        rest = "".join(c.rest for c in self.stack)
        gap = "".join(c.rest for c in self.stack if not c.fresh).rstrip() if self.gap and self.blocks else None
        for c in self.stack:
            c.fresh = False
        self.gap = not (self.lists and self.lists[-1][1])
        return {"first": first, "rest": rest, "gap": gap}

    def build(self, tokens: Sequence[Token]) -> list[Block]:
        i = 0
        while i < len(tokens):
            t = tokens[i]
            if t.type == "table_open":
                i = self.table(tokens, i)
            else:
                self.one(tokens, i)
            i += 1
        return self.blocks

    def one(self, tokens: Sequence[Token], i: int) -> None:
        t = tokens[i]
        if t.type in ("bullet_list_open", "ordered_list_open"):
            start = int(t.attrs.get("start", 1)) if t.type.startswith("ordered") else None
            self.lists.append((start, _is_tight(tokens, i)))
        elif t.type in ("bullet_list_close", "ordered_list_close"):
            self.lists.pop()
            self.gap = not (self.lists and self.lists[-1][1])
        elif t.type == "list_item_open":
            number, tight = self.lists[-1]
            mark = "• " if number is None else f"{number}. "
            self.stack.append(_Container(mark, " " * len(mark)))
            if number is not None:
                self.lists[-1] = (number + 1, tight)
        elif t.type == "blockquote_open":
            self.stack.append(_Container(QUOTE_BAR, QUOTE_BAR))
        elif t.type in ("list_item_close", "blockquote_close"):
            if self.stack[-1].fresh:
                self.blocks.append(Prose(content=Content(""), **self.place()))
            self.stack.pop()
        elif t.type == "inline":
            content = _inline(t.children or ())
            before = tokens[i - 1]
            if before.type == "heading_open":
                content = content.stylize(HEADING[min(int(before.tag[1]), 3) - 1])
                self.gap = True
            self.blocks.append(Prose(content=content, **self.place()))
        elif t.type in ("fence", "code_block"):
            language = one_line(t.info.split()[0], 30) if t.info.split() else ""
            self.blocks.append(Code(language=language, text=clean(t.content).rstrip("\n"), **self.place()))
        elif t.type == "hr":
            self.blocks.append(Rule(**self.place()))

    def table(self, tokens: Sequence[Token], i: int) -> int:
        rows: list[list[Content]] = []
        align: list[str] = []
        while tokens[i].type != "table_close":
            t = tokens[i]
            if t.type == "tr_open":
                rows.append([])
            elif t.type in ("th_open", "td_open"):
                if t.type == "th_open":
                    align.append(str(t.attrs.get("style", "left")).rpartition(":")[2])
                rows[-1].append(_inline(tokens[i + 1].children or ()))
            i += 1
        header, *body = rows
        self.gap = True
        self.blocks.append(
            Table(header=tuple(header), rows=tuple(tuple(r) for r in body), align=tuple(align), **self.place())
        )
        self.gap = True
        return i


def _is_tight(tokens: Sequence[Token], i: int) -> bool:
    """Whether the list that opens at `i` has no blank line between its items."""
    level = tokens[i].level
    for t in tokens[i + 1 :]:
        if t.level == level:
            break
        if t.level == level + 2 and t.type == "paragraph_open":
            return t.hidden
    return True
