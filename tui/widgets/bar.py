"""One row with something on the left and something on the right; draws only when what it shows has changed."""

from __future__ import annotations

from textual.content import Content
from textual.widget import Widget

__all__ = ["Bar", "Part", "parts"]

Part = tuple[str, str]
"""(text, style)"""


def parts(*given: Part | str) -> Content:
    return Content.assemble(*given)


NOTHING = Content("")


class Bar(Widget):
    DEFAULT_CSS = "Bar { height: 1; width: 1fr; padding: 0 1; }"

    def __init__(self, *, keep_right: bool = False, id: str | None = None) -> None:
        """`keep_right`: the left part gives way when both do not fit, else the right one does."""
        super().__init__(id=id, markup=False)
        self._keep_right = keep_right
        self._left = self._right = Content("")

    def show(self, left: Content, right: Content = NOTHING) -> None:
        if not (left.is_same(self._left) and right.is_same(self._right)):
            self._left, self._right = left, right
            self.refresh()

    @property
    def text(self) -> str:
        return f"{self._left.plain} {self._right.plain}".strip()

    def render(self) -> Content:
        width = self.content_size.width
        left, right = self._left, self._right
        if self._keep_right and right:
            room = width - right.cell_length - 1
            left = left.truncate(max(0, room), ellipsis=True) if left.cell_length > room >= 8 else left
        if right and left.cell_length + right.cell_length + 1 > width:
            room = width - left.cell_length - 1
            right = right.truncate(room, ellipsis=True) if room >= 8 else Content("")
        if left.cell_length > width:
            left = left.truncate(max(0, width), ellipsis=True)
        if not right:
            return left
        return left.pad_right(max(0, width - left.cell_length - right.cell_length)) + right
