"""Bars and graphs of a fixed range, as styled text. Nothing scales itself: 95 % looks like 95 %."""

from __future__ import annotations

import math
from collections.abc import Sequence

from textual.content import Content

__all__ = ["bar", "ramp", "spark"]

BLOCKS = "▁▂▃▄▅▆▇█"
BLOCKS_ASCII = "._-=+*#@"
EIGHTHS = " ▏▎▍▌▋▊▉█"


def spark(
    values: Sequence[float | None],
    low: float,
    high: float,
    *,
    log: bool = False,
    ticks: Sequence[int] = (),
    style: str = "$primary",
    ascii_only: bool = False,
) -> Content:
    """One cell a value; None stays empty, values outside of the range are drawn at its ends. `ticks` are columns."""
    glyphs = BLOCKS_ASCII if ascii_only else BLOCKS
    if log:
        values = [None if v is None else math.log10(max(v, low)) for v in values]
        low, high = math.log10(low), math.log10(high)
    cells: list[tuple[str, str]] = []
    for i, v in enumerate(values):
        if i in ticks:
            cells.append(("|" if ascii_only else "┊", "bold $text-accent"))
        elif v is None or not math.isfinite(v):
            cells.append((" ", ""))
        else:
            share = (v - low) / (high - low) if high > low else 0.0
            cells.append((glyphs[max(0, min(7, int(share * 8)))], style))
    return Content.assemble(*_joined(cells))


def bar(share: float | None, width: int, *, style: str = "$primary", ascii_only: bool = False) -> Content:
    """A bar of `width` cells, filled to `share` (0..1) in eighths of a cell; empty for None."""
    full = max(0.0, min(1.0, share or 0.0)) * width
    if ascii_only:
        n = round(full)
        return Content.assemble(("#" * n, style), ("." * (width - n), "$text-muted"))
    whole, rest = int(full), int((full - int(full)) * 8)
    text = "█" * whole + (EIGHTHS[rest] if rest and whole < width else "")
    return Content.assemble((text, style), " " * (width - len(text)))


def ramp(share: float, cells: int, *, style: str, ascii_only: bool = False) -> Content:
    """A counter that fills toward its limit: ▮▮▮▯▯."""
    full, empty = ("#", ".") if ascii_only else ("▮", "▯")
    n = min(cells, math.ceil(max(0.0, share) * cells)) if share > 0 else 0
    return Content.assemble((full * n, style), (empty * (cells - n), "$text-muted"))


def _joined(cells: list[tuple[str, str]]) -> list[tuple[str, str]]:
    out: list[tuple[str, str]] = []
    for text, style in cells:
        if out and out[-1][1] == style:
            out[-1] = (out[-1][0] + text, style)
        else:
            out.append((text, style))
    return out
