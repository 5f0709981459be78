"""What stands in for each drawing character under `--ascii`, one cell for one cell, so that nothing moves."""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

__all__ = ["AsciiOnly"]

_TABLE = str.maketrans(
    "·•▏▌▸▾▴┊│─┼■…↓↑❯⏎◐◓◑◒●○▲‖–—×÷“”‘’✓█░▁▂▃▄▅▆▇▉▊▋▍▎▐▔▀▛▜▙▟╭╮╰╯┌┐└┘├┤┬┴",
    '-*||>v^||-+#.v^>>~~~~*o!=--x/""\'\'*#.._-=+*#||||||-"++++++++++++++++',
)


class AsciiOnly(LineFilter):
    """Every row as it is painted, whoever draws it: borders, scroll bars and notes too. Letters stay what they are."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(text.translate(_TABLE), style, control) for text, style, control in segments]
