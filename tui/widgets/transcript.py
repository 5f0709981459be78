"""The chat so far: one widget that draws the visible rows of all turns, whatever the length of the chat.

It keeps lines, not widgets: memory and every redraw are bounded by what is on the screen. Knows no engine.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from rich.segment import Segment
from textual import events
from textual.binding import Binding
from textual.content import Content
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBar
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style

from ..keys import ACTIONS, DEFAULT_KEYS, way
from ..state import ChatState, Turn
from ..text.layout import Line
from .turn_lines import Look, TurnLines

__all__ = ["Transcript"]

COLUMN_MOST = 100
STRIPS_MOST = 1000
WINDOW = 60
"""Turns laid out at first; earlier ones are added when the reader scrolls up to them."""


class Rail(ScrollBar):
    """A scrollbar one cell wide, of rows that are made once: Textual's own way costs as much as the text beside it."""

    def __init__(self, thickness: int) -> None:
        super().__init__(name="vertical", thickness=thickness)
        self._strips: dict[Segment, Strip] = {}

    def render_lines(self, crop: Region) -> list[Strip]:
        options = self.app.console_options.update(width=1, height=self.size.height)
        cells = [s for s in self.app.console.render(self.render(), options) if s.text != "\n"]
        rows = [self._strips.setdefault(s, Strip([s], 1)) for s in cells[crop.y : crop.bottom]]
        background = self.background_colors[1]
        for f in self.get_line_filters():
            rows = [row.apply_filter(f, background) for row in rows]
        return rows


class Transcript(ScrollView, can_focus=True, inherit_bindings=False):
    ALLOW_SELECT = True
    BINDINGS = [  # noqa: RUF012
        Binding(a.keys, f"screen.{a.id}", a.what, id=a.id, show=False) for a in ACTIONS if a.scope == "transcript"
    ]

    @dataclass
    class Clicked(Message):
        """A row with an action was clicked."""

        turn: Turn
        action: str
        index: int

    @dataclass
    class Typed(Message):
        """A character that is no key of the transcript: the reader wants to write."""

        character: str

    def __init__(self, state: ChatState, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.state = state
        self.following = True
        self.narrow = False
        self.times = True
        """Show when a turn was written, where there is room."""
        self.ascii = False
        self.welcome: list[Line] = []
        """Shown while there is no turn."""
        self._welcomed: list[Line] = []
        self.missed = 0
        """Rows that came below the view while it was not following."""
        self.thoughts_open = False
        self._items: list[TurnLines] = []
        self._first = 0
        self._starts: list[int] = []
        self._total = 0
        self._adjusting = False
        self._focused: int | None = None
        """The selected turn; None unless the transcript has the focus."""
        self._drawn: list[Line | None] = []
        """The rows in view as they were last laid out, and where: (first row, rows, new lines)."""
        self._drawn_at: tuple[int, int, int] = (-1, 0, 0)
        self._strips: dict[int, tuple[Line, Strip]] = {}
        """By row of the chat: the line and what it looks like."""
        self._strips_look: tuple[object, ...] = ()

    @property
    def vertical_scrollbar(self) -> ScrollBar:
        if self._vertical_scrollbar is None:
            self._vertical_scrollbar = rail = Rail(self.scrollbar_size_vertical)
            rail.display = False
            self.app._start_widget(self, rail)
        return self._vertical_scrollbar

    # ---- what is shown

    @property
    def column(self) -> int:
        return max(10, min(COLUMN_MOST, self.scrollable_content_region.width))

    def sync(self) -> None:
        """Bring the rows up to date with the state; cheap when nothing changed."""
        turns = self.state.turns
        same = 0
        while same < min(len(turns), len(self._items)) and self._items[same].turn is turns[same]:
            same += 1
        del self._items[same:]
        for turn in turns[same:]:
            item = TurnLines(turn)
            item.thought_open = self.thoughts_open
            self._items.append(item)
        if self.following:
            self._first = max(0, len(turns) - WINDOW)
        self._first = min(self._first, max(0, len(turns) - 1))
        if self._focused is not None and self._focused >= len(turns):
            self._focused = len(turns) - 1 if turns else None
        if self.is_mounted and self.size.width:
            self._lay_out()

    def _lay_out(self) -> None:
        changed = False
        fold = way("toggle_thoughts", self._keys, self.ascii)
        for i in range(self._first, len(self._items)):
            look = Look(self.column, self.narrow, i == self._focused, times=self.times, fold=fold)
            changed |= self._items[i].update(look)
        starts, y = [], self._lead
        for item in self._items[self._first :]:
            starts.append(y)
            y += len(item.lines)
        if not self._items:
            y = len(self.welcome)
            changed |= self.welcome != self._welcomed
            self._welcomed = self.welcome
        grown, before = y - self._total, self._total
        if changed or starts != self._starts or grown:
            self._starts, self._total = starts, y
            if not self.following and grown > 0 and before:
                self.missed += grown
            if grown or self.virtual_size.width != self.scrollable_content_region.width:
                self._grow(Size(self.scrollable_content_region.width, y))
        if self.following:
            self._to_end()
        self._refresh_changed()

    def _refresh_changed(self) -> None:
        """Draw the rows again that are not what they were; while a row fills up that is one of them."""
        top, height = self.scroll_offset.y, self.scrollable_content_region.height
        rows = [self.line_at(y)[0] for y in range(top, top + height)]
        state = (top, height, self.missed)
        if state != self._drawn_at:
            self.refresh()
        else:
            width = self.size.width
            changed = [y for y, (old, new) in enumerate(zip(self._drawn, rows)) if old is not new]
            if changed:
                self.refresh(*(Region(0, y, width, 1) for y in changed))
        self._drawn, self._drawn_at = rows, state

    def _grow(self, size: Size) -> None:
        """Set the scrollable size without laying out the screen: the scrollbar always stands there, nothing else moves."""
        self._adjusting = True
        self.set_reactive(ScrollView.virtual_size, size)  # type: ignore[arg-type]
        self._scroll_update(size)
        self.scroll_y = self.validate_scroll_y(self.scroll_y)
        self._adjusting = False

    def _to_end(self) -> None:
        """Scroll to the last row without taking it for the reader's doing."""
        self.missed = 0
        if self.scroll_y != self.max_scroll_y:
            self._adjusting = True
            self.scroll_to(y=self.max_scroll_y, animate=False, immediate=True)
            self._adjusting = False

    @property
    def _lead(self) -> int:
        """Rows before the first turn laid out: one that says how many there are."""
        return 1 if self._first else 0

    def line_at(self, y: int) -> tuple[Line | None, TurnLines | None]:
        """The row `y` of all rows, and the turn it belongs to."""
        if not self._items:
            return (self.welcome[y] if y < len(self.welcome) else None), None
        if y < self._lead:
            return Line(Content.styled(f"▴ {self._first:,} earlier turns: scroll up", "$text-muted")), None
        i = bisect_right(self._starts, y) - 1
        if i < 0:
            return None, None
        item = self._items[self._first + i]
        row = y - self._starts[i]
        return (item.lines[row], item) if row < len(item.lines) else (None, None)

    def render_lines(self, crop: Region) -> list[Strip]:
        """The rows with the space around them. Textual's own way goes through every style that a widget can have, for each
        row and each time; here a row is made once, as long as it stays where it is in the chat."""
        whole, inner = self.outer_size.width, self.scrollable_content_region.width
        base, left = self.visual_style, self.styles.gutter.left
        look = (whole, inner, base)
        if look != self._strips_look or len(self._strips) > STRIPS_MOST:
            self._strips, self._strips_look = {}, look
        filters, background = self.get_line_filters(), self.background_colors[1]
        top, last = self.scroll_offset.y, self.scrollable_content_region.height - 1
        before, after = Segment(" " * left, base.rich_style), Segment(" " * (whole - inner - left), base.rich_style)
        out: list[Strip] = []
        for y in crop.line_range:
            line = None if y == last and self.missed else self.line_at(top + y)[0]
            kept = self._strips.get(top + y) if self.text_selection is None and line is not None else None
            if kept is not None and kept[0] is line:
                strip = kept[1]
            else:
                strip = Strip([before, *self.render_line(y), after], whole)
                if line is not None and self.text_selection is None:
                    self._strips[top + y] = line, strip
            for f in filters:
                strip = strip.apply_filter(f, background)
            out.append(strip if crop.column_span == (0, whole) else strip.crop(*crop.column_span))
        return out

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        at = self.scroll_offset.y + y
        base = self.visual_style
        if self.missed and y == self.scrollable_content_region.height - 1:
            noun = "line" if self.missed == 1 else "lines"
            follow = way("follow", self._keys, self.ascii)
            badge = Content.styled(f" ↓ {self.missed:,} new {noun} · {follow} to follow ", "reverse $text-primary")
            return self._strip(badge.pad_left(max(0, (self.column - badge.cell_length) // 2)), base, width)
        line, _ = self.line_at(at)
        if line is None:
            return Strip.blank(width, base.rich_style)
        content = line.content
        if line.fill:
            content = content.pad_right(max(0, self.column - content.cell_length)).stylize_before(line.fill)
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(at)) is not None:
            start, end = span
            style = Style.from_styles(self.screen.get_component_styles("screen--selection"))
            content = content.stylize(style, start, len(content.plain) if end == -1 else end)
        return self._strip(content, base, width).apply_offsets(0, at)

    def _strip(self, content: Content, base: Style, width: int) -> Strip:
        segments = [Segment(t, s.rich_style) for t, s in content.render(base, "", parse_style=self._get_style)]
        return Strip(segments, content.cell_length).adjust_cell_length(width, base.rich_style)

    # ---- selection

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        start, end = selection.start, selection.end
        first, last = (start.y if start else 0), (end.y if end else self._total - 1)
        out: list[str] = []
        for y in range(max(0, first), min(last, self._total - 1) + 1):
            line, _ = self.line_at(y)
            if line is None:
                continue
            text = line.content.plain
            stop = end.x if end and y == last else len(text)
            begin = start.x if start and y == first else 0
            out += [text[max(begin, line.skip) : stop], line.join if y < last else ""]
        return "".join(out), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()

    # ---- scrolling

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if self._adjusting:
            return
        following = new_value >= self.max_scroll_y
        if following != self.following:
            self.following = following
            self.missed = 0 if following else self.missed
            self.refresh()
        if new_value <= 0 and old_value > new_value and self._first:
            self._earlier()

    def _earlier(self) -> None:
        """Lay out more of the turns above, and stay where the reader is."""
        before = self._total
        self._first = max(0, self._first - WINDOW)
        missed = self.missed
        self._lay_out()
        self.missed = missed
        self.scroll_to(y=self._total - before, animate=False, immediate=True)

    def follow(self) -> None:
        self.following, self.missed = True, 0
        self.sync()
        self.refresh()

    def page(self, pages: float) -> None:
        self.scroll_relative(y=pages * max(1, self.scrollable_content_region.height - 2), animate=False)

    def on_resize(self) -> None:
        self._lay_out()

    # ---- one turn at a time

    @property
    def focused_turn(self) -> Turn | None:
        return None if self._focused is None else self._items[self._focused].turn

    def focus_turn(self, index: int | None) -> None:
        self._focused = None if index is None or not self._items else max(0, min(index, len(self._items) - 1))
        if self._focused is not None and self._focused < self._first:
            self._first = max(0, self._focused - 5)
        self._lay_out()
        if self._focused is not None:
            top = self._starts[self._focused - self._first]
            height = len(self._items[self._focused].lines)
            view = self.scrollable_content_region.height
            if top < self.scroll_offset.y or top + height > self.scroll_offset.y + view:
                self.scroll_to(y=max(0, top if height > view else top + height - view), animate=False, immediate=True)

    def move_focus(self, step: int) -> None:
        here = self._focused if self._focused is not None else len(self._items)
        self.focus_turn(here + step)

    def on_focus(self) -> None:
        self.focus_turn(len(self._items) - 1)

    def on_blur(self) -> None:
        self._focused = None
        self._lay_out()

    def codes(self, turn: Turn) -> list[str]:
        """The code blocks of a turn, as they can be copied."""
        item = next((i for i in self._items if i.turn is turn), None)
        if item is None:
            return []
        if not item.lines:
            item.update(Look(self.column, self.narrow))
        return item.codes

    def fold(self, turn: Turn | None = None) -> None:
        """Open or fold one thought, or all of them."""
        if turn is None:
            self.thoughts_open = not self.thoughts_open
            for item in self._items:
                item.thought_open = self.thoughts_open
        else:
            for item in self._items:
                if item.turn is turn:
                    item.thought_open = not item.thought_open
        self._lay_out()

    @property
    def _keys(self) -> Mapping[str, str]:
        return getattr(self.app, "keys", DEFAULT_KEYS)

    def _acts_on(self, event: events.Key) -> bool:
        keys = ",".join(self._keys[a.id] for a in ACTIONS if a.scope == "transcript").split(",")
        return event.key in keys or event.character in keys

    def on_key(self, event: events.Key) -> None:
        if event.is_printable and event.character and not self._acts_on(event):
            event.stop()
            self.post_message(self.Typed(event.character))

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        line, item = self.line_at(offset.y + self.scroll_offset.y)
        if line is not None and item is not None and line.action is not None:
            event.stop()
            self.post_message(self.Clicked(item.turn, *line.action))
