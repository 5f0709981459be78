"""What stands in for each drawing character under `--ascii`, one cell for one cell, so that nothing moves."""

from __future__ import annotations

from textual.content import Content

__all__ = ["plain"]

_TABLE = str.maketrans(
    "·•▏▌▸▾▴┊│─┼■…↓↑❯⏎◐◓◑◒●○▲‖–—×“”✓█░",
    '-*||>v^||-+#.v^>~~~~~*o!=--x""*#.',
)


def plain(content: Content) -> Content:
    """The content with ASCII in place of drawing characters; its styles stay where they are."""
    return Content(content.plain.translate(_TABLE), spans=list(content.spans))
