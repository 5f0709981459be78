"""Mends for Textual 8.2.8, each guarded by its version and by a test that fails once upstream has mended it.

`apply()` is idempotent. Knows nothing of this program.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from textual._compositor import ChopsUpdate, Compositor
    from textual.strip import Strip

__all__ = ["apply"]

_PASTE_START, _PASTE_END = "\x1b[200~", "\x1b[201~"
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b")
_BAD_MOUSE = re.compile(r"\x1b\[<[0-9;]*NaN[0-9;NaN]*[Mm]")
_applied = False


def apply() -> None:
    """Patch the input parser and the painting once."""
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

    from textual._compositor import Compositor

    Compositor.render_partial_update = paint_changed  # type: ignore[method-assign]


def paint_changed(compositor: Compositor) -> ChopsUpdate | None:
    """What changed, as Compositor.render_partial_update makes it; that one has every widget between the first and the last
    change draw all its rows, which is most of the cost of a streaming reply."""
    from textual._compositor import ChopsUpdate
    from textual.geometry import Region

    regions = compositor._dirty_regions.copy()
    compositor._dirty_regions.clear()
    if not regions:
        return None
    cuts, spans = compositor.cuts, list(compositor._regions_to_spans(regions))
    chops: list[dict[int, Strip | None]] = [dict.fromkeys(row[:-1]) for row in cuts]
    wanted: dict[int, set[int]] = {}
    for y, x1, x2 in spans:
        wanted.setdefault(y, set()).update(c for c, end in zip(cuts[y], cuts[y][1:]) if c < x2 and end > x1)
    for widget, (region, clip) in compositor.visible_widgets.items():  # from front to back: the first one has a place
        shown = region.intersection(clip)
        left, right = shown.column_span
        rows = [y for y in shown.line_range if any(left <= c < right for c in wanted.get(y, ()))]
        if not rows:
            continue
        first, last = rows[0], rows[-1]
        drawn = widget.render_lines(Region(left - region.x, first - region.y, shown.width, last - first + 1))
        for y in rows:
            own = [c for c in cuts[y] if left <= c < right]
            for cut, part in zip(own, drawn[y - first].divide([c - left for c in (*own[1:], right)])):
                if cut in wanted[y]:
                    chops[y][cut] = part
            wanted[y].difference_update(own)
    return ChopsUpdate(chops, spans, [row[1:] for row in cuts])


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
