"""How Python itself is set up for the full-screen chat. Knows no widget and no engine."""

from __future__ import annotations

import gc
import sys

__all__ = ["begin", "painted"]

SWITCH_S = 0.0001
"""Each step of a model that begins while the screen is drawn waits this long. Python's own 5 ms is as long as a step of a
small model."""


def begin() -> None:
    """To be called before anything is imported. Until the first paint nearly everything that is made stays: looking for
    garbage in it would cost a third of the start."""
    gc.disable()
    sys.setswitchinterval(SWITCH_S)


def painted() -> None:
    """The start is over. What it made is kept out of later collections, which take 0.1 s each going through it."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
