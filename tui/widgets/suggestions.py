"""The list above the composer while a command or a path is typed. The composer moves in it; it never takes the focus."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widget import Widget

__all__ = ["Suggestion", "Suggestions"]

Suggestion = tuple[str, str]
"""(what is inserted, words about it)"""

MOST_ROWS = 6


class Suggestions(Widget):
    DEFAULT_CSS = "Suggestions { height: auto; display: none; padding: 0 1; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self.items: Sequence[Suggestion] = ()
        self.at = 0
        self._first = 0

    @property
    def open(self) -> bool:
        return bool(self.items) and self.display

    @property
    def chosen(self) -> str:
        return self.items[self.at][0] if self.open else ""

    def show(self, items: Sequence[Suggestion]) -> None:
        if list(items) != list(self.items):
            self.items, self.at, self._first = items, 0, 0
            self.display = bool(items)
            self.refresh(layout=True)

    def move(self, step: int) -> None:
        self.at = (self.at + step) % len(self.items)
        self.refresh()

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        return min(MOST_ROWS, len(self.items))

    def render(self) -> Content:
        width = self.content_size.width
        self._first = min(max(self._first, self.at - MOST_ROWS + 1), self.at)
        wide = max((len(i[0]) for i in self.items), default=0) + 2
        rows = []
        for i in range(self._first, min(len(self.items), self._first + MOST_ROWS)):
            name, what = self.items[i]
            row = Content.assemble((f"  {name:<{wide}}", "bold"), (what, "$text-muted"))
            row = row.truncate(width, ellipsis=True)
            if i == self.at:
                row = Content(row.plain).pad_right(max(0, width - row.cell_length)).stylize("reverse")
            rows.append(row)
        return Content("\n").join(rows)
