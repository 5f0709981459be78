"""What a terminal shows after the bytes it was sent: enough of a terminal for what Textual writes."""

from __future__ import annotations

import re

from rich.cells import cell_len

_TOKEN = re.compile(
    r"\x1b\[([0-?]*)[ -/]*([@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1bP.*?\x1b\\|\x1b.|[\r\n\b]|[^\x1b\r\n\b]+", re.S
)


def screen(written: bytes, width: int, height: int) -> list[str]:
    """The rows, without trailing blanks."""
    rows = [[" "] * width for _ in range(height)]
    y = x = 0
    for token in _TOKEN.finditer(written.decode("utf-8", "replace")):
        text, numbers, command = token[0], token[1], token[2]
        if command == "H":
            parts = [int(n) if n.isdigit() else 1 for n in f"{numbers};1".split(";")[:2]]
            y, x = parts[0] - 1, parts[1] - 1
        elif command == "J" and numbers == "2":
            rows = [[" "] * width for _ in range(height)]
        elif text == "\r":
            x = 0
        elif text == "\n":
            y += 1
        elif not text.startswith("\x1b"):
            for character in text:
                cells = cell_len(character)
                if 0 <= y < height and 0 <= x < width and cells:
                    rows[y][x] = character
                    rows[y][x + 1 : x + cells] = [""] * (cells - 1)
                x += cells
    return ["".join(row).rstrip() for row in rows]
