"""Whole-screen pages of text: help, the log, and all panels at full width. Esc closes each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, cast

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from ..commands import COMMANDS
from ..keys import ACTIONS, key_label
from ..panels.base import Panel, View

if TYPE_CHECKING:
    from ..looks import ConfiguredApp

__all__ = ["MetricsPage", "TextPage", "help_text"]

MUTED = "$text-muted"
WORDS = (
    ("acceptance", "accepted ÷ proposed drafts within the last 120 s; the bars are per position in a round"),
    ("round", "one draft and its verification; tokens per round count what was kept, corrections included"),
    ("WARM / ON", "fewer than 32 drafts were seen / drafting, k deep"),
    ("PARKED", "drafting would be slower here than plain steps; it is tried again"),
    (
        "FALLBACK",
        "the limit of rounds in a row without an accepted draft was reached; plain steps to the end of the reply",
    ),
    ("OFF (you)", "switched off by you, until you switch it on again"),
    ("hit", "share of routed experts that were in memory already"),
    (
        "of best",
        "those hits over the most that knowing the future would give, of the latest stretch that was looked back at",
    ),
    ("stall", "share of the time spent waiting for the SSD"),
    ("page cache", "share of the bytes that the system served from memory; n/a where it does not tell"),
    ("ttft", "time to first token, the prompt's way through the model included"),
)


class TextPage(ModalScreen[None]):
    BINDINGS = [  # noqa: RUF012
        Binding("escape,q,f1,f12,ctrl+c", "close", "Close", show=False, priority=True),
        Binding("up,k", "scroll(-1)", show=False),
        Binding("down,j", "scroll(1)", show=False),
        Binding("pageup", "scroll(-12)", show=False),
        Binding("pagedown,space", "scroll(12)", show=False),
    ]

    def __init__(self, title: str, text: Callable[[int], Content]) -> None:
        """`text` takes the columns that there are."""
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        with Vertical(id="page"):
            yield Static(Content.styled(self._title, "bold $text-primary"), id="dialog-title")
            with VerticalScroll(id="page-body"):
                yield Static(id="text", markup=False)
            arrows = "up, down" if cast("ConfiguredApp", self.app).ui.ascii else "↑↓"
            yield Static(Content.assemble(("esc", "bold"), (" close  ", MUTED), (arrows, "bold"), (" scroll", MUTED)))

    def on_mount(self) -> None:
        self.query_one("#page-body").focus()

    def on_resize(self) -> None:
        self.query_one("#text", Static).update(self._text(self.app.size.width - 3))  # space at both sides, scroll bar

    def action_scroll(self, rows: int) -> None:
        self.query_one("#page-body").scroll_relative(y=rows, animate=False)

    def action_close(self) -> None:
        self.dismiss(None)


def help_text(keys: Mapping[str, str], ascii_only: bool, width: int) -> Content:
    """Every key with its words, every command, and what the panels' words mean; made from the tables that act."""
    rows: list[tuple[str, str]] = []
    """What is explained and its meaning; a heading has none."""

    for scopes, title in (
        (("composer",), "Writing"),
        (("always", "app"), "Everywhere"),
        (("transcript",), "On a message (Tab goes there)"),
    ):
        rows.append((title, ""))
        for a in ACTIONS:
            if a.scope in scopes:
                labels = [key_label(k, ascii_only) for k in keys[a.id].split(",") if k and "\\r" not in k][:3]
                rows.append((" ".join(labels) or "–", a.what + (f"  {a.slash}" if len(a.slash) > 1 else "")))
    rows += [("Commands", ""), *((f"{c.name} {c.takes}".strip(), c.what) for c in COMMANDS)]
    rows += [("@path", "Attach a text file to the prompt"), ("Panels", ""), *WORDS]
    first = min(20, max(12, width * 2 // 5))
    out: list[Content] = []
    for left, right in rows:
        if not right:
            out += [*([Content("")] if out else []), Content.styled(left, "bold $text-primary")]
            continue
        lefts, rights = Content.styled(left, "bold").wrap(first), Content(right).wrap(max(8, width - first - 1))
        out += [
            a.pad_right(first + 1 - a.cell_length) + b for a, b in zip_longest(lefts, rights, fillvalue=Content(""))
        ]
    return Content("\n").join(out)


class MetricsPage(ModalScreen[None]):
    """All panels side by side, as many columns as fit."""

    BINDINGS = [  # noqa: RUF012
        Binding("escape,q,f2,f3,shift+f2,ctrl+c", "close", "Close", show=False, priority=True)
    ]

    def __init__(self, panels: Sequence[Panel], view: Callable[[], View]) -> None:
        super().__init__()
        self._panels, self._view = panels, view

    def compose(self) -> ComposeResult:
        with Vertical(id="page"):
            yield Static(Content.styled("Panels · 120 s", "bold $text-primary"), id="dialog-title")
            with VerticalScroll(id="page-body"):
                yield Static(id="all-panels")
            yield Static(Content.assemble(("esc", "bold"), (" close", MUTED)))

    def on_mount(self) -> None:
        self.call_after_refresh(self.show)

    def on_resize(self) -> None:
        self.call_after_refresh(self.show)

    def show(self) -> None:
        """Draw again; the app calls it as often as it draws the panels of the chat."""
        if not self.is_mounted:
            return
        width = self.query_one("#page-body").scrollable_content_region.width
        columns = max(1, width // 44)
        each = (width - 3 * (columns - 1)) // columns
        view = self._view()
        stacks: list[list[Content]] = [[] for _ in range(columns)]
        for panel in self._panels:
            shortest = min(stacks, key=len)
            shortest += [*panel.side(view, each), Content("")]
        height = max(len(s) for s in stacks)
        rows = []
        for y in range(height):
            cells = [s[y] if y < len(s) else Content("") for s in stacks]
            rows.append(Content("   ").join(c.pad_right(max(0, each - c.cell_length)) for c in cells))
        self.query_one("#all-panels", Static).update(Content("\n").join(rows))

    def action_close(self) -> None:
        self.dismiss(None)
