"""Where panels are drawn: a column at the side, or one row under the chat. Draws when told to, never by itself, and then only
the rows that changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from rich.segment import Segment
from textual.content import Content
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

if TYPE_CHECKING:
    from ..panels.base import Panel, View

__all__ = ["MetricsStrip", "SidePanel"]

MUTED = "$text-muted"
NOTHING = Content("")


class PanelRows(Widget):
    """Rows made of all panels; a subclass says which, for the room there is."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self.panels: Sequence[Panel] = ()
        self.view: View | None = None
        self._rows: list[Content] = []
        self._rows_size = Size(0, 0)

    def rows(self, width: int, height: int) -> list[Content]:
        raise NotImplementedError

    def show(self, view: View) -> None:
        self.view = view
        before = self._rows
        self._lay_out()
        changed = [y for y, (a, b) in enumerate(zip_longest(before, self._rows)) if not (a and b and a.is_same(b))]
        if changed:
            self.refresh(*(Region(0, y, self._rows_size.width, 1) for y in changed))

    def _lay_out(self) -> None:
        self._rows_size = self.content_size
        self._rows = self.rows(*self._rows_size) if self.view is not None and self.panels else []

    def render_line(self, y: int) -> Strip:
        if self._rows_size != self.content_size:
            self._lay_out()
        row = self._rows[y] if y < len(self._rows) else NOTHING
        base = self.visual_style
        segments = [Segment(text, s.rich_style) for text, s in row.render(base, "", parse_style=self._get_style)]
        return Strip(segments, row.cell_length).adjust_cell_length(self._rows_size.width, base.rich_style)

    @property
    def text(self) -> str:
        return "\n".join(row.plain for row in self._rows)


class SidePanel(PanelRows):
    """All panels in a column, as many as fit: those that must stay first, the others from the top."""

    DEFAULT_CSS = "SidePanel { width: 32; height: 1fr; padding: 0 1; }"

    def rows(self, width: int, height: int) -> list[Content]:
        if self.view is None or width < 8 or not self.panels:
            return []
        from ..panels.base import WINDOW_NOTE

        drawn = {p.id: p.side(self.view, width, "" if i else WINDOW_NOTE) for i, p in enumerate(self.panels)}
        shown = [p for p in self.panels if p.always]
        room = height - sum(len(drawn[p.id]) + 1 for p in shown) + 1
        for p in self.panels:
            if not p.always and len(drawn[p.id]) + 1 <= room:
                shown.append(p)
                room -= len(drawn[p.id]) + 1
        left_out = [p for p in self.panels if p not in shown]
        if left_out and room >= 2:
            for p in left_out:
                if room >= 1:
                    drawn[p.id] = [p.line(self.view)]
                    shown.append(p)
                    room -= 1
        out: list[Content] = []
        for p in sorted(shown, key=self.panels.index):
            rows = drawn[p.id]
            if out and (len(rows) > 1 or len(out) > 1):
                out.append(NOTHING)
            out += rows
        return out[:height]


class MetricsStrip(PanelRows):
    """All panels in one row: with graphs, as words and numbers, or as bare numbers, by the room there is."""

    DEFAULT_CSS = "MetricsStrip { height: 1; width: 1fr; padding: 0 1; }"

    def rows(self, width: int, height: int) -> list[Content]:
        return [self._row(self.view, width)] if self.view is not None and width and self.panels else []

    def _row(self, view: View, width: int) -> Content:
        bar = Content.styled(" │ ", MUTED)
        must = [p for p in self.panels if p.always]
        some = [p for p in self.panels if p.always or p.order == 0]
        dot = Content.styled(" · ", MUTED)
        for panels, graph in ((self.panels, 10), (self.panels, 6), (some, 8), (some, 4), (must, 8), (must, 4)):
            row = bar.join(p.strip(view, graph) for p in panels)
            if row.cell_length <= width:
                return row
        for panels in (self.panels, some, must):
            row = dot.join(p.line(view) for p in panels)
            if row.cell_length <= width:
                return row
        return Content(" ").join(p.badge(view) for p in must).truncate(width)
