"""Where panels are drawn: a column at the side, or one row under the chat. Draws when told to, never by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.content import Content
from textual.widget import Widget

if TYPE_CHECKING:
    from ..panels.base import Panel, View

__all__ = ["MetricsStrip", "SidePanel"]

MUTED = "$text-muted"


class SidePanel(Widget):
    """All panels in a column, as many as fit: those that must stay first, the others from the top."""

    DEFAULT_CSS = "SidePanel { width: 32; height: 1fr; padding: 0 1; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self.panels: Sequence[Panel] = ()
        self.view: View | None = None

    def show(self, view: View) -> None:
        self.view = view
        self.refresh()

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
                out.append(Content(""))
            out += rows
        return out[:height]

    def render(self) -> Content:
        size = self.content_size
        return Content("\n").join(self.rows(size.width, size.height))

    @property
    def text(self) -> str:
        return "\n".join(r.plain for r in self.rows(self.content_size.width, self.content_size.height))


class MetricsStrip(Widget):
    """All panels in one row: with graphs, as words and numbers, or as bare numbers, by the room there is."""

    DEFAULT_CSS = "MetricsStrip { height: 1; width: 1fr; padding: 0 1; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self.panels: Sequence[Panel] = ()
        self.view: View | None = None

    def show(self, view: View) -> None:
        self.view = view
        self.refresh()

    def render(self) -> Content:
        width = self.content_size.width
        if self.view is None or not width or not self.panels:
            return Content("")
        view, bar = self.view, Content.styled(" │ " if not self.view.ascii else " | ", MUTED)
        must = [p for p in self.panels if p.always]
        some = [p for p in self.panels if p.always or p.order == 0]
        dot = Content.styled(" · " if not view.ascii else " - ", MUTED)
        for panels, graph in ((self.panels, 10), (self.panels, 6), (some, 8), (some, 4), (must, 8), (must, 4)):
            row = bar.join(p.strip(view, graph) for p in panels)
            if row.cell_length <= width:
                return row
        for panels in (self.panels, some, must):
            row = dot.join(p.line(view) for p in panels)
            if row.cell_length <= width:
                return row
        return Content(" ").join(p.badge(view) for p in must).truncate(width)

    @property
    def text(self) -> str:
        return self.render().plain
