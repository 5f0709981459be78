"""Mends for Textual 8.2.8, each guarded by its version and by a test that fails once upstream has mended it.

`apply()` is idempotent. Knows nothing of this program.
"""

from __future__ import annotations

import re

__all__ = ["apply"]

_PASTE_START, _PASTE_END = "\x1b[200~", "\x1b[201~"
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b")
_BAD_MOUSE = re.compile(r"\x1b\[<[0-9;]*NaN[0-9;NaN]*[Mm]")
_applied = False


def apply() -> None:
    """Patch the input parser once."""
    global _applied  # noqa: PLW0603
    if _applied:
        return
    _applied = True
    from textual._xterm_parser import XTermParser

    plain_feed = XTermParser.feed

    def feed(self: XTermParser, data: str):
        # Alt+Enter comes as ESC CR and would be taken for Enter, which sends a half-written prompt (textual#6378).
        if "\x1b\r" in data:
            data = data.replace("\x1b\r", "\x1b[13;3u")
        # Malformed mouse reports of some terminals would be typed into the prompt.
        if "NaN" in data:
            data = _BAD_MOUSE.sub("", data)
        # Escape sequences in a paste would be played as keys: a BEL would be Ctrl+G, a CR would send (textual 8.2.8).
        guard = self.__dict__.setdefault("_paste_guard", _PasteGuard())
        cleaned = guard.clean(data) if data else data
        return () if data and not cleaned else plain_feed(self, cleaned)

    XTermParser.feed = feed  # type: ignore[method-assign]


class _PasteGuard:
    """Takes the escape sequences out of what is pasted, and out of nothing else."""

    def __init__(self) -> None:
        self._pasting = False
        self._seen = ""  # the end of what was passed on: a start marker may be cut in two
        self._held = ""  # what may be the beginning of the end marker

    def clean(self, data: str) -> str:
        parts: list[str] = []
        data, self._held = self._held + data, ""
        while data:
            if self._pasting:
                text, marker, rest = data.partition(_PASTE_END)
                if not marker:
                    cut = next((n for n in range(len(_PASTE_END) - 1, 0, -1) if text.endswith(_PASTE_END[:n])), 0)
                    text, self._held = text[: len(text) - cut], text[len(text) - cut :]
                parts += (_ESCAPES.sub("", text), marker)
                self._pasting, data, self._seen = not marker, rest, ""
                continue
            both = self._seen + data
            start = both.find(_PASTE_START)
            taken = len(data) if start < 0 else start + len(_PASTE_START) - len(self._seen)
            parts.append(data[:taken])
            self._pasting, self._seen = start >= 0, "" if start >= 0 else both[1 - len(_PASTE_START) :]
            data = data[taken:]
        return "".join(parts)
