"""Cuts streamed Markdown where a top-level block can no longer change. Knows no widget and renders nothing.

Closed blocks are parsed once; the open tail is shown as it is, so the cost of a token does not grow with the reply.
"""

from __future__ import annotations

import re

__all__ = ["BlockSplitter"]

_FENCE = re.compile(r"(\s*)(`{3,}|~{3,})([^`\n]*|(?<=~).*)$")
_ITEM = re.compile(r" {0,3}(?:[-+*]|\d{1,9}[.)])(?:\s|$)")
_HEADING = re.compile(r" {0,3}#{1,6}(?:\s|$)")
_INDENTED = re.compile(r"(?: {4}|\t)")


class BlockSplitter:
    """`feed(text)` returns the blocks that the text closed; `tail` is what is still open."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._partial = ""
        self._fence = ""
        """The opening marks of the fence that is open, or empty."""
        self._blank = False
        """A blank line ended the block unless an indented line or a list item follows."""

    @property
    def tail(self) -> str:
        return "".join(self._lines) + self._partial

    @property
    def in_fence(self) -> bool:
        return bool(self._fence)

    def feed(self, text: str) -> list[str]:
        *whole, self._partial = (self._partial + text).split("\n") if "\n" in text else (self._partial + text,)
        closed: list[str] = []
        for line in whole:
            self._take(line, closed)
        return closed

    def finish(self) -> list[str]:
        """Everything that is left, closed."""
        closed: list[str] = []
        if self._partial:
            self._lines.append(self._partial)
        self._partial, self._fence = "", ""
        self._close(closed)
        return closed

    def _close(self, closed: list[str]) -> None:
        if any(line.strip() for line in self._lines):
            closed.append("".join(self._lines))
        self._lines, self._blank = [], False

    def _take(self, line: str, closed: list[str]) -> None:
        if self._fence:
            self._lines.append(line + "\n")
            mark = line.strip()
            if mark and not mark.strip(self._fence[0]) and len(mark) >= len(self._fence):
                self._fence = ""
                if not self._holds_list():
                    self._close(closed)
            return
        if not line.strip():
            self._blank = bool(self._lines)
            if self._lines and not self._waits():
                self._close(closed)
            elif self._lines:
                self._lines.append("\n")
            return
        if self._blank and not self._goes_on(line):
            self._close(closed)
        self._blank = False
        fence = _FENCE.match(line)
        inside = self._holds_list() and line[:2].isspace()
        if fence and (inside or len(fence[1]) < 4):
            if self._lines and not inside:
                self._close(closed)
            self._fence = fence[2]
        elif _HEADING.match(line) and not inside:
            self._close(closed)
            self._lines.append(line + "\n")
            self._close(closed)
            return
        self._lines.append(line + "\n")

    def _holds_list(self) -> bool:
        return bool(self._lines) and _ITEM.match(self._lines[0]) is not None

    def _waits(self) -> bool:
        """The block may go on after a blank line."""
        return self._holds_list() or _INDENTED.match(self._lines[0]) is not None

    def _goes_on(self, line: str) -> bool:
        if self._holds_list():
            return line[:2].isspace() or _ITEM.match(line) is not None
        return _INDENTED.match(line) is not None
