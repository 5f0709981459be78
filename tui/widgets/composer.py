"""Where the prompt is written: grows with its text, keeps a history, turns large pastes into one token.

What becomes of a prompt is decided by whoever sets `submit`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from textual import events
from textual.message import Message
from textual.widgets import TextArea

from ..attach import attachments
from ..keys import ACTIONS, DEFAULT_KEYS
from ..text.numbers import plural, size
from ..text.sanitise import clean
from .suggestions import Suggestion, Suggestions

__all__ = ["Composer"]

OWN = tuple(a.id for a in ACTIONS if a.scope == "composer")
PASTE_LINES, PASTE_CHARS = 50, 10_000
_TOKEN = re.compile(r"\[pasted [^\]\n]*\]")
_JOINERS = frozenset((0x200C, 0x200D, *range(0xFE00, 0xFE10), *range(0xE0020, 0xE0080)))
"""Parts of one character on the screen, such as an emoji of two people; Textual takes them for keys without a character."""


def _long(text: str) -> bool:
    return text.count("\n") >= PASTE_LINES or len(text) > PASTE_CHARS


class Composer(TextArea):
    class QuitAsked(Message):
        """Ctrl+D on an empty prompt."""

    suggestions: Suggestions | None = None
    """The list that the arrows move in while it is open."""

    suggest: Callable[[], Sequence[Suggestion]] = staticmethod(tuple)
    """What the list offers for the text and the cursor of now."""

    submit: Callable[[str], object] | None = None
    """What Enter does with the text. Called at once and not posted: keys behind Enter belong to the next prompt."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, soft_wrap=True, show_line_numbers=False, highlight_cursor_line=False, compact=True)
        self.cursor_blink = False
        self.prompts: list[str] = []
        self._at: int | None = None
        """Place in the history; None is the draft."""
        self._draft = ""
        self._suggested_for = ""
        self.pastes: dict[str, str] = {}
        """Token as shown -> the text it stands for; kept, because undoing brings tokens back."""
        self._foreign: set[str] = set()
        """Tokens of what was written elsewhere; the others stand for long texts that were written here."""

    # ---- sending

    @property
    def expanded(self) -> str:
        """The text with its pastes."""
        return self._expand(self.text)

    @property
    def written(self) -> str:
        """The text without its pastes, which stay tokens: only here does `@path` stand for a file."""
        return self._written(self.text)

    def put(self, text: str) -> None:
        """Replace what is written, undoable, with the cursor at the end; a long text becomes a token."""
        text = clean(text)
        self.replace(self._token(text) if _long(text) else text, (0, 0), self.document.end)
        self.move_cursor(self.document.end)
        self._at = None

    def put_edited(self, text: str) -> None:
        """Put what an editor made of `expanded`; pastes that it left as they were are tokens again."""
        for token in _TOKEN.findall(self.written):
            if token in self.pastes:
                text = text.replace(self.pastes[token], token)
        self.put(text)

    def take(self) -> str:
        """The text with its tokens, leaving the composer empty."""
        text = self.text
        self.put("")
        return text

    def word_at_cursor(self) -> str:
        """What stands between the last white space and the cursor."""
        row, column = self.cursor_location
        return self.document.get_line(row)[:column].rpartition(" ")[2]

    def list_open(self) -> Suggestions | None:
        """The list as it is for the text of now, which may be ahead of what was drawn; None while it is closed."""
        if self.suggestions is not None and self.text != self._suggested_for:
            self._suggested_for = self.text
            self.suggestions.show(self.suggest())
        return self.suggestions if self.suggestions is not None and self.suggestions.open else None

    def complete(self) -> bool:
        """Put the chosen suggestion in place of the word before the cursor; False when the list is closed."""
        offered = self.list_open()
        if offered is None:
            return False
        chosen, word = offered.chosen, self.word_at_cursor()
        row, column = self.cursor_location
        self.replace(chosen + ("" if chosen.endswith("/") else " "), (row, column - len(word)), (row, column))
        return True

    def action_send(self) -> None:
        offered = self.list_open()
        if offered is not None and offered.chosen != self.text.strip():
            self.complete()
        elif self.text.endswith("\\") and self.cursor_location == self.document.end:
            self.action_delete_left()
            self.insert("\n")
        elif self.submit is not None:
            self.submit(self.expanded)

    def action_newline(self) -> None:
        self.insert("\n")

    def remember(self, text: str) -> None:
        if text.strip() and (not self.prompts or self.prompts[-1] != text):
            self.prompts.append(text)
        self._at = None

    # ---- history

    @property
    def _row(self) -> int:
        """The cursor's row as the text is wrapped on the screen."""
        return self.wrapped_document.location_to_offset(self.cursor_location).y

    def action_history_prev(self) -> None:
        if (offered := self.list_open()) is not None:
            offered.move(-1)
        elif self._row > 0:
            self.action_cursor_up()
        elif self.prompts and self._at != 0:
            if self._at is None:
                self._draft, self._at = self.text, len(self.prompts)
            self._recall(self._at - 1)

    def action_history_next(self) -> None:
        if (offered := self.list_open()) is not None:
            offered.move(1)
        elif self._row < self.wrapped_document.height - 1:
            self.action_cursor_down()
        elif self._at is not None:
            self._recall(self._at + 1)

    def _recall(self, at: int) -> None:
        text = self._draft if at >= len(self.prompts) else self.prompts[at]
        self.put(text)
        self._at = None if at >= len(self.prompts) else at

    # ---- pastes

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.text = self.foreign(clean(event.text))  # TextArea's own handler follows and puts it in

    def foreign(self, text: str) -> str:
        """What stands here for a text that was written elsewhere: itself, unless it is long or an `@` in it names a file."""
        if not _long(text) and not attachments(text):
            return text
        token = self._token(self._expand(text))
        self._foreign.add(token)
        return token

    def _expand(self, text: str) -> str:
        return _TOKEN.sub(lambda m: self.pastes.get(m[0], m[0]), self._written(text))

    def _written(self, text: str) -> str:
        return _TOKEN.sub(lambda m: m[0] if m[0] in self._foreign else self.pastes.get(m[0], m[0]), text)

    def _token(self, text: str) -> str:
        """A short word for a text that is too long to edit at speed."""
        text, whole = self._written(text), self._expand(text)
        lines = whole.count("\n") + 1
        said = f"pasted {plural(lines, 'line')}, {size(len(whole.encode()))}"
        token, n = f"[{said}]", 1
        while self.pastes.get(token, text) != text:
            n += 1
            token = f"[{said}, {n}]"
        self.pastes[token] = text
        return token

    def action_delete_left(self) -> None:
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        for token in self.pastes:
            if self.selection.is_empty and before.endswith(token):
                self.delete((row, column - len(token)), (row, column))
                return
        super().action_delete_left()

    def action_delete_right(self) -> None:
        """Ctrl+D and Del; on an empty prompt Ctrl+D quits, as in a shell."""
        if self.text:
            super().action_delete_right()

    async def _on_key(self, event: events.Key) -> None:
        # Not bindings: those run ahead of characters that were typed before and still wait for this widget.
        keys = getattr(self.app, "keys", DEFAULT_KEYS)
        for action in OWN:
            if not {event.key, *event.aliases}.isdisjoint(keys[action].split(",")):
                event.stop()
                event.prevent_default()
                getattr(self, f"action_{action}")()
                return
        if event.key == "ctrl+d" and not self.text:
            event.stop()
            event.prevent_default()
            self.post_message(self.QuitAsked())
            return
        if event.character and not event.is_printable and ord(event.character[0]) in _JOINERS:
            event.stop()
            event.prevent_default()
            self.insert(event.character)
            return
        await super()._on_key(event)
