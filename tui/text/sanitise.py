"""The one sanitiser: turns any outside text into text that a terminal can be given.

Everything that was not written in this program goes through here once: replies, thoughts, pastes, titles, file names,
config values, error messages. What comes out holds no escape byte, no C0/C1 control but newline and tab, no bidi
control and no lone surrogate; joiners, variation selectors and tags, which make one emoji of several characters, stay.
It knows nothing about Markdown, and nothing here or later parses markup.
"""

from __future__ import annotations

__all__ = ["Sanitiser", "clean", "one_line"]

_TABLE: dict[int, str | None] = {c: chr(0x2400 + c) for c in range(0x20) if c not in (0x09, 0x0A, 0x0D)}
_TABLE[0x7F] = "\u2421"
_TABLE.update(dict.fromkeys(range(0x80, 0xA0), "\ufffd"))
_TABLE.update(dict.fromkeys((0x0B, 0x0C, 0x85, 0x2028, 0x2029), "\n"))
_TABLE.update(dict.fromkeys((0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF), None))
_TABLE.update(dict.fromkeys(range(0xD800, 0xE000), "\ufffd"))
_TABLE.update(dict.fromkeys(range(0xFFF9, 0xFFFC), None))
_ONE_LINE = _TABLE | {0x09: " ", 0x0A: " ", 0x0D: " ", 0x0B: " ", 0x0C: " ", 0x85: " ", 0x2028: " ", 0x2029: " "}


class Sanitiser:
    """The same for text that comes in pieces: each character is judged alone, but for CR LF across a border."""

    __slots__ = ("_after_cr",)

    def __init__(self) -> None:
        self._after_cr = False

    def feed(self, text: str) -> str:
        if text.isprintable() and not self._after_cr and text.isascii():
            return text
        if self._after_cr and text.startswith("\n"):
            text = text[1:]
        if text:
            self._after_cr = text.endswith("\r")
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        return text.translate(_TABLE)


def clean(text: object) -> str:
    """A whole text, safe to show over several lines."""
    return Sanitiser().feed(str(text))


def one_line(text: object, most: int = 200) -> str:
    """A title, path or message on one line; white space runs become one space, longer texts end in an ellipsis."""
    flat = " ".join(str(text)[: most * 8].translate(_ONE_LINE).split())
    return flat if len(flat) <= most else flat[: most - 1] + "…"
