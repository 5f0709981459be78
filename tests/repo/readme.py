"""The README's commands, by the heading they stand under: what CI and the tests run is what a reader would copy.

`python3 tests/repo/readme.py "Run the tests"` prints the steps of the first block there, one a line.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

__all__ = ["blocks", "steps"]

README = Path(__file__).parents[2] / "README.md"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


def blocks(heading: str | None = None, language: str = "sh") -> list[str]:
    """Bodies of the fenced blocks in `language` under `heading`, or of all of them. Raises KeyError without any."""
    text = README.read_text(encoding="utf-8")
    if heading is not None:
        section = re.search(rf"^##+ {re.escape(heading)}\n(.*?)(?=^##+ |\Z)", text, re.M | re.S)
        text = section.group(1) if section else ""
    found = [body for kind, body in _FENCE.findall(text) if kind == language]
    if not found:
        raise KeyError(f"README.md has no {language} block under {heading!r}.")
    return found


def steps(block: str) -> list[str]:
    """The commands of one block, in order: lines, and what `&&` joins."""
    joined = block.replace("\\\n", " ").replace("&&\n", "&& ")
    return [s.strip() for line in joined.splitlines() for s in line.split("&&") if s.strip() and line[:1] != "#"]


if __name__ == "__main__":
    print("\n".join(steps(blocks(sys.argv[1])[0])))
