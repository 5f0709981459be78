"""Blocks into lines of a given width. Wraps words with hanging indents; draws nothing and knows no widget."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from textual.content import Content

if TYPE_CHECKING:
    from .markdown import Block, Code, Table

__all__ = ["BLANK", "CODE_FILL", "Line", "Tail", "code_head", "lay_out", "plain_lines", "warm_up"]

MUTED = "$text-muted"
CODE_FILL = "on $surface"
_HIGHLIGHT_MOST = 40_000


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the transcript."""

    content: Content
    join: str = "\n"
    """What stands between this line and the next when text is copied: a newline, or what wrapping took away."""
    skip: int = 0
    """Characters at the start that are decoration and not copied."""
    fill: str = ""
    """Style of the row up to the right edge, such as "on $surface"."""
    action: tuple[str, int] | None = None
    """What a click on it does: a word and an index."""


BLANK = Line(Content(""))


def wrap(content: Content, width: int) -> list[tuple[Content, str]]:
    """Lines of at most `width` cells, each with what joined it to the next."""
    out: list[tuple[Content, str]] = []
    for source in content.split(allow_blank=True):
        lines = source.wrap(max(2, width))
        taken = 0
        for i, line in enumerate(lines):
            taken += len(line.plain)
            eaten = source.plain[taken : taken + 1] if i < len(lines) - 1 else ""
            spaces = len(source.plain[taken:]) - len(source.plain[taken:].lstrip(" ")) if eaten == " " else 0
            taken += spaces
            out.append((line, "\n" if i == len(lines) - 1 else " " * spaces))
    return out


def _prefixed(first: str, rest: str, lines: list[tuple[Content, str]], fill: str = "") -> list[Line]:
    out = []
    for i, (content, join) in enumerate(lines):
        prefix = first if i == 0 else rest
        marks = Content.styled(prefix, MUTED) if prefix else Content("")
        skip = 0 if i == 0 or prefix.strip(" ") else len(prefix)
        out.append(Line(marks + content if prefix else content, join, skip, fill))
    return out


@lru_cache(maxsize=128)
def _highlight(text: str, language: str) -> Content:
    if not language or len(text) > _HIGHLIGHT_MOST:
        return Content(text)
    from pygments.lexers import find_lexer_class_by_name
    from pygments.util import ClassNotFound
    from textual.highlight import highlight

    try:
        find_lexer_class_by_name(language)
    except ClassNotFound:
        return Content(text)
    shown = highlight(text, language=language)
    return shown if shown.plain == text else Content(text)


def code_head(language: str, width: int, hint: str = "copy") -> Content:
    """The row above a code block: its language, and what a click does."""
    label = language or "text"
    room = width - len(label) - len(hint) - 2
    if room < 1:
        return Content.styled(f" {label}", MUTED)
    return Content.styled(f" {label}{' ' * room}{hint} ", MUTED)


def _code(block: Code, width: int, index: int) -> list[Line]:
    inner = max(2, width - len(block.rest) - 2)
    head = Content.styled(block.first, MUTED) + code_head(block.language, width - len(block.first))
    lines = [Line(head, "", len(head.plain), CODE_FILL, ("copy_code", index))]
    for source in _highlight(block.text, block.language).split(allow_blank=True):
        parts = source.expand_tabs(4).fold(inner)
        for i, part in enumerate(parts):
            content = Content.assemble((block.rest, MUTED), " ", part)
            lines.append(Line(content, "\n" if i == len(parts) - 1 else "", len(block.rest) + 1, CODE_FILL))
    return lines


def _columns(table: Table, width: int) -> list[int]:
    """Widths of the columns: what they need, the widest ones cut until all fit."""
    grid = (table.header, *table.rows)
    n = len(table.header)
    widths = [max([1, *(r[c].cell_length for r in grid if c < len(r))]) for c in range(n)]
    room = max(n * 3, width - 3 * (n - 1))
    while sum(widths) > room:
        c = widths.index(max(widths))
        others = sum(widths) - widths[c]
        second = max([w for w in widths if w < widths[c]], default=3)
        same = widths.count(widths[c])
        cut = max(1, min(widths[c] - second, -(-(others + widths[c] - room) // same)))
        widths = [w - cut if w == widths[c] else w for w in widths]
        if max(widths) <= 3:
            break
    return widths


def _table(block: Table, width: int) -> list[Line]:
    widths = _columns(block, width - len(block.rest))

    def cells(row: tuple[Content, ...], style: str) -> list[tuple[Content, str]]:
        wrapped = [[c for c, _ in wrap(row[i] if i < len(row) else Content(""), w)] for i, w in enumerate(widths)]
        lines = []
        for y in range(max(len(w) for w in wrapped)):
            parts: list[Content | tuple[str, str]] = []
            for i, w in enumerate(widths):
                cell = wrapped[i][y] if y < len(wrapped[i]) else Content("")
                left = max(0, w - cell.cell_length)
                before = left if block.align[i] == "right" else left // 2 if block.align[i] == "center" else 0
                cell = cell.stylize(style) if style else cell
                parts += [(" │ ", MUTED)] if i else []
                parts.append(cell.pad(before, left - before))
            lines.append((Content.assemble(*parts), "\n"))
        return lines

    rule = (Content.styled("─┼─".join("─" * w for w in widths), MUTED), "\n")
    body = [line for row in block.rows for line in cells(row, "")]
    return _prefixed(block.first, block.rest, [*cells(block.header, "bold"), rule, *body])


def lay_out(blocks: list[Block], width: int, code_from: int = 0) -> list[Line]:
    """The lines of the blocks at `width` cells; code blocks are numbered from `code_from`."""
    from .markdown import Code, Prose, Rule, Table

    out: list[Line] = []
    for block in blocks:
        if block.gap is not None:
            out.append(Line(Content.styled(block.gap, MUTED), skip=len(block.gap)) if block.gap else BLANK)
        if isinstance(block, Prose):
            out += _prefixed(block.first, block.rest, wrap(block.content, width - len(block.rest)))
        elif isinstance(block, Code):
            out += _code(block, width, code_from)
            code_from += 1
        elif isinstance(block, Table):
            out += _table(block, width)
        elif isinstance(block, Rule):
            out.append(Line(Content.styled(block.first + "─" * max(1, width - len(block.first)), MUTED)))
    return out


def warm_up() -> None:
    """Import what parses and colours, so that no reply waits for it: about 0.1 s each. For a thread of its own."""
    from .markdown import blocks_of

    lay_out(blocks_of("*a*\n\n```python\nx = 1\n```"), 80)


def plain_lines(text: str, width: int, style: str = "", prefix: str = "", fill: str = "") -> list[Line]:
    """Text as it is, wrapped, with `prefix` before every line."""
    content = Content.styled(text, style) if style else Content(text)
    return _prefixed(prefix, prefix, wrap(content, width - len(prefix)), fill)


class Tail:
    """The open end of a streaming reply, wrapped as it grows.

    Word wrap is greedy, so all but the last two lines of an unfinished source line are final: a token costs the same
    at the end of a long paragraph as at its start.
    """

    def __init__(self, width: int, style: str = "", prefix: str = "", fill: str = "") -> None:
        self._width, self._style, self._prefix, self._fill = width, style, prefix, fill
        self._done: list[Line] = []
        self._open = ""
        self._last: list[Line] = []

    def feed(self, text: str) -> None:
        *whole, rest = text.split("\n")
        for part in whole:
            self._open += part
            self._done += self._wrap(self._open)
            self._open = ""
        self._open += rest
        lines = self._wrap(self._open) if self._open else []
        if len(lines) > 8:
            kept = lines[:-2]
            used = sum(len(line.content.plain) - len(self._prefix) + len(line.join) for line in kept)
            self._done += kept
            self._open = self._open[used:]
            lines = lines[-2:]
        self._last = lines

    def _wrap(self, text: str) -> list[Line]:
        return plain_lines(text, self._width, self._style, self._prefix, self._fill)

    @property
    def lines(self) -> list[Line]:
        return self._done + self._last
