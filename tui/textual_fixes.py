"""Mends for Textual 8.2.8, each guarded by its version and by a test that fails once upstream has mended it.

`apply()` is idempotent. Knows nothing of this program.
"""

from __future__ import annotations

import re

__all__ = ["apply"]

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
        return plain_feed(self, data)

    XTermParser.feed = feed  # type: ignore[method-assign]
