"""One list to choose from, with a filter above it: commands, conversations, models, themes and choices all use it.

It knows nothing about what it lists; `dismiss` gets what was chosen, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, Static

from ..keys import key_label
from ..text.sanitise import one_line

if TYPE_CHECKING:
    from ..looks import ConfiguredApp

__all__ = ["NOTHING", "Item", "Picked", "Picker", "SafeInput"]

MUTED = "$text-muted"
MOVES = {"up": -1, "ctrl+p": -1, "down": 1, "ctrl+n": 1, "pageup": -10, "pagedown": 10}


@dataclass(frozen=True, slots=True)
class Item:
    id: str
    label: str
    detail: str = ""
    """Muted, at the right end."""
    below: str = ""
    """Muted, on a row of its own."""
    marked: bool = False
    """The one in force."""
    disabled: bool = False


NOTHING = Item("", "", disabled=True)


@dataclass(frozen=True, slots=True)
class Picked:
    item: Item
    """NOTHING for an extra key on an empty list."""
    action: str = ""
    """The extra key's word, or empty for Enter."""
    filter: str = ""


Source = Callable[[str], Sequence[Item]]
"""filter text -> items, best first."""


class SafeInput(Input):
    """A field whose pastes go through the sanitiser."""

    def __init__(self, value: str = "", placeholder: str = "", *, id: str | None = None) -> None:
        super().__init__(value, placeholder, id=id, compact=True, select_on_focus=False)
        self.cursor_blink = False

    def _on_paste(self, event: events.Paste) -> None:
        event.text = one_line(event.text, 10_000)  # Input's own handler follows and puts it in


class Filter(SafeInput):
    """The field above a list. The list's keys act here, so that each comes after what was typed before it."""

    def __init__(self, value: str, placeholder: str, act: Callable[[str], bool]) -> None:
        super().__init__(value, placeholder, id="filter")
        self._act = act

    def on_key(self, event: events.Key) -> None:
        if self._act(event.key):
            event.stop()
            event.prevent_default()


class Rows(Widget):
    """The list itself: draws only the rows in view."""

    DEFAULT_CSS = "Rows { height: auto; padding: 0 1; }"

    @dataclass
    class Clicked(Message):
        index: int

    def __init__(self) -> None:
        super().__init__(markup=False)
        self.items: Sequence[Item] = ()
        self.at = 0
        self.first = 0

    def show(self, items: Sequence[Item], at: int) -> None:
        self.items, self.at = items, max(0, min(at, len(items) - 1))
        self.refresh(layout=True)

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        return max(1, sum(1 + bool(i.below) for i in self.items))

    def page(self) -> int:
        return max(1, self.content_size.height // (2 if any(i.below for i in self.items) else 1))

    def render(self) -> Content:
        width, page = self.content_size.width, self.page()
        self.first = min(max(self.first, self.at - page + 1, 0), self.at)
        if not self.items:
            return Content.styled("nothing fits", MUTED)
        out: list[Content] = []
        for i in range(self.first, min(len(self.items), self.first + page)):
            item = self.items[i]
            left = Content.assemble(("✓ " if item.marked else "  "), item.label)
            room = width - left.cell_length - len(item.detail)
            row = left + Content.assemble(" " * room, (item.detail, MUTED)) if room > 1 and item.detail else left
            row = row.truncate(width, ellipsis=True)
            if item.disabled:
                row = row.stylize(MUTED)
            if i == self.at:
                row = Content(row.plain).pad_right(max(0, width - row.cell_length)).stylize("reverse")
            out.append(row)
            if item.below:
                out.append(Content.styled(f"    {item.below}", MUTED).truncate(width, ellipsis=True))
        return Content("\n").join(out)

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is not None:
            two = any(i.below for i in self.items)
            self.post_message(self.Clicked(self.first + offset.y // (2 if two else 1)))


class Picker(ModalScreen["Picked | None"]):
    BINDINGS = [  # noqa: RUF012
        Binding("escape,ctrl+c", "cancel", "Close", show=False, priority=True)
    ]

    def __init__(
        self,
        title: str,
        source: Source,
        *,
        keys: Mapping[str, str] | None = None,
        placeholder: str = "type to filter",
        filter: str = "",
        note: str = "",
        on_move: Callable[[Item], None] | None = None,
        at: str = "",
    ) -> None:
        """`keys` are further keys and the words for what they do; `at` is the id that is highlighted first."""
        super().__init__()
        self._title, self._source, self._keys = one_line(title), source, dict(keys or {})
        self._placeholder, self._filter, self._note, self._on_move, self._at = placeholder, filter, note, on_move, at

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Static(Content.styled(self._title, "bold $text-primary"), id="dialog-title", markup=False)
            yield Filter(self._filter, self._placeholder, self._act)
            yield Rows()
            enter = key_label("enter", cast("ConfiguredApp", self.app).ui.ascii)
            words = [(enter, "choose"), *((key_label(k), w) for k, w in self._keys.items()), ("esc", "close")]
            said = Content("  ").join(Content.assemble((k, "bold"), (f" {w}", MUTED)) for k, w in words)
            yield Static(Content.styled(self._note + "\n", MUTED) + said if self._note else said, id="dialog-keys")

    def on_mount(self) -> None:
        self.rows, self.field = self.query_one(Rows), self.query_one(Filter)
        items = self._source(self._filter)
        ids = [i.id for i in items]
        self.rows.show(items, ids.index(self._at) if self._at in ids else 0)
        self.field.focus()
        self.field.cursor_position = len(self.field.value)

    def on_resize(self) -> None:
        """The list takes what the rows around it leave of the screen."""
        keys = self.query_one("#dialog-keys").size.height or 1 + bool(self._note)
        self.rows.styles.max_height = max(2, int(self.app.size.height * 0.9) - keys - 7)

    @on(Input.Changed, "#filter")
    def _refilter(self) -> None:
        """The list is that of what stands in the field; a key may come before the message that it has changed."""
        if self.field.value != self._filter:
            self._filter = self.field.value
            self._move_to(self._source(self._filter), 0)

    def _move_to(self, items: Sequence[Item], at: int) -> None:
        self.rows.show(items, at)
        if self._on_move is not None and items:
            self._on_move(items[self.rows.at])

    def _act(self, key: str) -> bool:
        """Do what a key does to the list; False when it does nothing to it."""
        if key not in MOVES and key != "enter" and key not in self._keys:
            return False
        if not self.is_current:  # the key came behind the one that chose
            return True
        self._refilter()
        if key in MOVES:
            self._move_to(self.rows.items, self.rows.at + MOVES[key])
        else:
            self._pick(self._keys.get(key, ""))
        return True

    def _pick(self, action: str) -> None:
        item = self.rows.items[self.rows.at] if self.rows.items else NOTHING
        if action or not item.disabled:
            self.dismiss(Picked(item, action, self._filter))

    def action_cancel(self) -> None:
        self.dismiss(None)

    @on(Rows.Clicked)
    def _clicked(self, event: Rows.Clicked) -> None:
        if 0 <= event.index < len(self.rows.items):
            self.rows.show(self.rows.items, event.index)
            self._pick("")
