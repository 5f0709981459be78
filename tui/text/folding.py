"""Long lines for a terminal, broken at words: by itself it would break them in the middle of one. Files and pipes get them whole."""

from __future__ import annotations

import shutil
import textwrap
from typing import TextIO

__all__ = ["folded"]


def folded(text: str, stream: TextIO) -> str:
    """`text` as it is printed on `stream`; a word that is longer than a row stays whole."""
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(line if len(line) <= width else _broken(line, width) for line in text.split("\n"))


def _broken(line: str, width: int) -> str:
    return textwrap.fill(line, width, replace_whitespace=False, break_long_words=False, break_on_hyphens=False)
