"""The README's tour shows what the program shows: its pictures exist, say what they should, and are what the script draws."""

from __future__ import annotations

import importlib.util
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))
_spec = importlib.util.spec_from_file_location("tour", ROOT / "docs" / "tour.py")
assert _spec is not None
assert _spec.loader is not None
tour = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tour)

from pictures import PICTURES, text_of  # noqa: E402

PINS = dict(
    line.split("==") for line in (Path(__file__).parents[1] / "constraints.txt").read_text().split() if "==" in line
)
OWNED = sys.version_info[:2] == (3, 11) and all(version(p) == PINS[p] for p in ("textual", "rich", "pygments"))


def test_the_readme_shows_every_picture_of_the_tour_and_no_other() -> None:
    shown = re.findall(r"docs/pictures/([\w-]+)\.svg", (ROOT / "README.md").read_text("utf-8"))
    assert sorted(shown) == sorted(tour.TOUR)
    assert sorted(p.stem for p in tour.FOLDER.glob("*")) == sorted(tour.TOUR)


@pytest.mark.parametrize("name", tour.TOUR)
def test_the_words_of_a_state_stand_in_its_picture(name: str) -> None:
    svg = (tour.FOLDER / f"{name}.svg").read_text("utf-8")
    shown = text_of(svg)
    for word in PICTURES[tour.TOUR[name]].words:
        assert word in shown, f"{word!r} is not in\n{shown}"
    assert "url(" not in re.sub(r"url\(#[\w-]+\)", "", svg)


@pytest.mark.slow
@pytest.mark.skipif(not OWNED, reason="the pictures belong to the versions in tests/constraints.txt")
@pytest.mark.parametrize("name", tour.TOUR)
def test_the_picture_is_what_the_script_draws(name: str) -> None:
    assert (tour.FOLDER / f"{name}.svg").read_text("utf-8") == tour.draw(name)
