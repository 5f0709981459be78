"""Draws the pictures of the README's tour over the scripted engine: `python docs/tour.py [FOLDER]`.

The states are those of tests/tui/pictures; tests/tui/test_tour holds that the files are what this draws.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "tui"))
for _name in ("NO_COLOR", "COLORTERM", "TERM_PROGRAM", "TEXTUAL_THEME", "TEXTUAL_FILTERS"):
    os.environ.pop(_name, None)
os.environ["TEXTUAL_ANIMATIONS"] = "none"

from pictures import PICTURES, Picture  # noqa: E402  # pyright: ignore[reportAttributeAccessIssue]

TOUR = {
    "chat": "streaming_wide",
    "mtp-off": "mtp_off",
    "fallback": "mtp_fallback",
    "panels": "metrics_page",
    "small": "done_normal",
    "palette": "palette",
    "light": "theme_paper",
}
"""File name: state."""
FOLDER = HERE / "pictures"


async def _drawn(picture: Picture) -> str:
    app, before = picture.stage()
    async with app.run_test(size=picture.size) as pilot:
        await before(pilot)  # type: ignore[arg-type]
        svg = app.export_screenshot(title="qwen-chat")
    # A picture that fetches nothing: whoever looks at it has a font of fixed width.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def draw(name: str) -> str:
    """One picture of the tour as SVG."""
    return asyncio.run(_drawn(PICTURES[TOUR[name]]))


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOUR:
        (folder / f"{name}.svg").write_text(draw(name), "utf-8")
        print(folder / f"{name}.svg")


if __name__ == "__main__":
    main()
