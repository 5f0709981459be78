"""The console that verbs print tables on: plain words only, folded on a terminal alone, and a reader that leaves early is no error of ours."""

from __future__ import annotations

import sys

from rich.console import Console

__all__ = ["TableConsole"]


class TableConsole(Console):
    """Knows no markup and no highlighting; passes a broken pipe on to `main`, where rich itself would exit with 1."""

    def __init__(self) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, soft_wrap=not sys.stdout.isatty())

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError
