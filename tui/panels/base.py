"""What a panel is: it reads the state once and returns rows; this module draws them at the side, as a strip, as a line
and as a badge. A new panel is a new file in this folder with one subclass of Panel; its name in `[panels]` is the file's.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from textual.content import Content

from ...engine.stats import EngineStats
from ..state import ChatState
from ..window import SECONDS, Rate, Window
from .draw import bar, ramp, spark

__all__ = ["Bar", "Cell", "Counter", "Graph", "Judge", "Level", "Panel", "Reading", "Row", "View", "find_panels"]

Level = Literal["", "good", "fair", "bad", "muted"]
STYLES: dict[str, str] = {
    "": "bold $text", "good": "bold $text-success", "fair": "bold $text-warning", "bad": "bold $text-error",
    "muted": "$text-muted",
}  # fmt: skip
GRAPHS: dict[str, str] = {
    "": "$primary",
    "good": "$success",
    "fair": "$warning",
    "bad": "$error",
    "muted": "$text-muted",
}
MUTED = "$text-muted"
STALE_S = 3.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One number: label before, unit behind."""

    text: str
    unit: str = ""
    label: str = ""
    level: Level = ""
    detail: str = ""
    """Shown behind it only where there is room, such as the counts behind a share."""

    def draw(self, stale: bool = False, *, detail: bool = False) -> Content:
        gap = "" if not self.unit or self.unit[0] == "%" or (self.unit[0] == "/" and self.unit[1:2] != " ") else " "
        return Content.assemble(
            (f"{self.label} " if self.label else "", MUTED),
            (self.text, MUTED if stale else STYLES[self.level]),
            (f"{gap}{self.unit}" if self.unit else "", MUTED),
            (f" {self.detail}" if detail and self.detail else "", MUTED),
        )

    @property
    def plain(self) -> str:
        return self.draw().plain


@dataclass(frozen=True, slots=True)
class Row:
    """Cells from the left, and cells that end at the right edge."""

    left: tuple[Cell, ...]
    right: tuple[Cell, ...] = ()


@dataclass(frozen=True, slots=True)
class Graph:
    """120 seconds of one value between fixed ends."""

    value: Rate
    low: float
    high: float
    log: bool = False
    level: Level = ""


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    share: float | None
    text: str
    level: Level = ""


@dataclass(frozen=True, slots=True)
class Counter:
    """A count on its way to a limit."""

    n: int
    limit: int
    level: Level = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a panel says now."""

    key: Cell
    """The one number that stays when there is room for one: in the strip, the line and the badge."""
    rows: tuple[Row | Graph | Bar | Counter, ...] = ()
    head: Cell | None = None
    """At the right end of the title: a state, or nothing."""
    graph: Graph | None = None
    """Goes beside the key in the strip."""
    absent: str = ""
    """Why there is nothing to show: "n/a: this model has no MTP layer"; the rows are then left out."""


class Judge:
    """good, fair or bad against two thresholds, with 5 % of hysteresis so that a value on the edge does not flicker."""

    def __init__(self, low: float, high: float, *, more_is_better: bool = True) -> None:
        self._low, self._high, self._more = low, high, more_is_better
        self._last: Level = ""

    def level(self, value: float | None) -> Level:
        if value is None:
            return ""
        lower, upper = ("bad", "good") if self._more else ("good", "bad")
        slack = 0.05 * (self._high - self._low)
        low = self._low + (slack if self._last == lower else 0.0)
        high = self._high - (slack if self._last == upper else 0.0)
        self._last = lower if value < low else upper if value >= high else "fair"  # type: ignore[assignment]
        return self._last


@dataclass(frozen=True)
class View:
    """What panels read: the state, and the statistics of the last 120 s, made once for all of them."""

    state: ChatState
    now: float
    ascii: bool = False
    limits: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Thresholds by the field names of UiConfig."""

    @property
    def window(self) -> Window:
        return self.state.window

    @cached_property
    def stats(self) -> EngineStats | None:
        """The latest sample."""
        return self.state.stats

    @cached_property
    def recent(self) -> EngineStats:
        """What was counted within the window; all zero before the first sample."""
        return self.window.recent() or EngineStats()

    @cached_property
    def worked_s(self) -> float:
        """Seconds of prompt and decoding within the window; counted as they pass, unlike a request's whole time."""
        return self.recent.throughput.prefill_s + self.recent.throughput.decode_s

    @cached_property
    def age_s(self) -> float | None:
        """Seconds since the latest sample while something runs, if that is too long ago; else None."""
        last = self.window.last_at_s
        if last is None or self.state.running is None or self.now - last < STALE_S:
            return None
        return self.now - last

    @cached_property
    def graph_now(self) -> float:
        """Right edge of the graphs: now while something runs, else where the samples end."""
        last = self.window.last_at_s
        return self.now if self.state.running is not None or last is None else last


class Panel:
    """One subject. Subclasses set the names and write `read`."""

    id = ""
    title = ""
    short = ""
    """One word for the strip and the line; empty where the unit says it."""
    tag = ""
    """A shorter one for the badge, or none."""
    order = 50
    always = False
    """Kept as long as anything is shown."""

    def read(self, view: View) -> Reading:
        raise NotImplementedError

    # ---- the four sizes

    def side(self, view: View, width: int, note: str = "") -> list[Content]:
        """Rows for the side panel, the title first; `note` goes beside it where there is room."""
        reading = self.read(view)
        title = Content.styled(self.title, "bold $text-primary")
        age = f"· {view.age_s:.0f} s ago" if view.age_s is not None else ""
        head = Content.styled(age, MUTED) if age else reading.head.draw() if reading.head else Content("")
        if note and not head:
            head = Content.styled(note, MUTED)
        out = [_ends(title, head, width)]
        if reading.absent:
            return [*out, *(line.pad_left(1) for line in Content.styled(reading.absent, MUTED).wrap(width - 1))]
        stale = view.age_s is not None
        for row in reading.rows:
            out += [line.pad_left(1) for line in self._row(row, view, width - 1, stale)]
        return out

    def _row(self, row: Row | Graph | Bar | Counter, view: View, width: int, stale: bool) -> list[Content]:
        """One line where there is room for it, else as many as its numbers need: none is ever cut."""
        if isinstance(row, Row):
            for gap, detail in (("  ", True), ("  ", False), (" ", False)):
                space = Content(gap)
                left = space.join(c.draw(stale, detail=detail) for c in row.left)
                right = space.join(c.draw(stale, detail=detail) for c in row.right)
                if left.cell_length + bool(right) + right.cell_length <= width:
                    return [_ends(left, right, width)]
            return [line for cells in (row.left, row.right) for line in _broken(cells, width, stale)]
        if isinstance(row, Graph):
            return [self._graph(row, view, width)]
        if isinstance(row, Counter):
            cells = max(4, min(8, width - 16))
            left = Content.styled(f"{row.label} " if row.label else "", MUTED)
            left += ramp(row.n / max(1, row.limit), cells, style=STYLES[row.level], ascii_only=view.ascii)
            return [_ends(left, Cell(f"{row.n}", f"/{row.limit}", level=row.level).draw(stale), width)]
        cells = width - len(row.label) - len(row.text) - 2
        text = Content.styled(row.text, MUTED if stale else STYLES[row.level])
        if cells < 4:
            return _broken((Cell(row.text, label=row.label, level=row.level),), width, stale)
        drawn = bar(row.share, cells, style=GRAPHS[row.level], ascii_only=view.ascii)
        return [Content.assemble((row.label + " ", MUTED), drawn, " ", text)]

    def _graph(self, graph: Graph, view: View, width: int) -> Content:
        values = view.window.series(graph.value, width, view.graph_now)
        ticks = [Window.column_of(t.at_s, width, view.graph_now) for t in view.state.ticks]
        return spark(
            values, graph.low, graph.high, log=graph.log, ticks=[t for t in ticks if t is not None],
            style=GRAPHS[graph.level], ascii_only=view.ascii,
        )  # fmt: skip

    def strip(self, view: View, graph_width: int) -> Content:
        """For one row shared by all panels: the word, the number, a short graph."""
        reading = self.read(view)
        out = self._named(self.short, reading, view)
        if reading.graph is not None and graph_width >= 4 and not reading.absent:
            out += Content(" ") + self._graph(reading.graph, view, graph_width)
        return out

    def line(self, view: View) -> Content:
        return self._named(self.short, self.read(view), view)

    def badge(self, view: View) -> Content:
        reading = self.read(view)
        return self._named(self.tag, replace(reading, key=replace(reading.key, label="")), view)

    @staticmethod
    def _named(word: str, reading: Reading, view: View) -> Content:
        return Content.styled(f"{word} " if word else "", MUTED) + reading.key.draw(view.age_s is not None)


def _broken(cells: Sequence[Cell], width: int, stale: bool) -> list[Content]:
    """Cells over several lines; a cell wider than a line is broken between its words."""
    lines: list[Content] = []
    for cell in cells:
        drawn = cell.draw(stale)
        if lines and lines[-1].cell_length + 1 + drawn.cell_length <= width:
            lines[-1] = lines[-1] + Content(" ") + drawn
        else:
            lines += drawn.wrap(width)
    return lines


def _ends(left: Content, right: Content, width: int) -> Content:
    if not right:
        return left.truncate(width, ellipsis=True) if left.cell_length > width else left
    room = width - left.cell_length - right.cell_length
    if room < 1:
        return (left + Content(" ") + right).truncate(width, ellipsis=True)
    return left.pad_right(room) + right


def find_panels(order: Sequence[str] = (), hide: Sequence[str] = ()) -> list[Panel]:
    """One of each panel in this folder: those named in `order` first, then by their own order; `hide` left out."""
    found: list[Panel] = []
    package = importlib.import_module(__package__ or "")
    for info in pkgutil.iter_modules(package.__path__):
        if info.name in ("base", "draw"):
            continue
        module = importlib.import_module(f"{__package__}.{info.name}")
        kinds = [
            kind for _, kind in inspect.getmembers(module, inspect.isclass)
            if issubclass(kind, Panel) and kind.__module__ == module.__name__
        ]  # fmt: skip
        if len(kinds) != 1:
            raise TypeError(f"tui/panels/{info.name}.py must define one subclass of Panel, and defines {len(kinds)}.")
        panel = kinds[0]()
        panel.id = info.name
        found.append(panel)
    found.sort(key=lambda p: (order.index(p.id) if p.id in order else len(order), p.order, p.id))
    return [p for p in found if p.id not in hide]


WINDOW_NOTE = f"{SECONDS:.0f} s"
