"""Every state of the interface as a picture that is compared, and the words that must stand in it."""

from __future__ import annotations

import re
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from pictures import PICTURES, Picture, text_of

from qwen_chat_mlx.tui import models
from qwen_chat_mlx.tui.places import Places

PINS = dict(
    line.split("==") for line in (Path(__file__).parents[1] / "constraints.txt").read_text().split() if "==" in line
)
OWNED = sys.version_info[:2] == (3, 11) and all(version(p) == PINS[p] for p in ("textual", "rich", "pygments"))
STORED = Path(__file__).parent / "__snapshots__" / "test_pictures"

pytestmark = pytest.mark.skipif(not OWNED, reason="the pictures belong to the versions in tests/constraints.txt")


def stored(name: str) -> str:
    return (STORED / f"test_picture[{name}].svg").read_text()


def drawn(name: str) -> Any:
    """A theme changes colours alone, which `test_theme_screens.py` judges in each: two of them stand for all."""
    quick = name in ("theme_ansi", "theme_paper") or not name.startswith("theme_")
    return name if quick else pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.parametrize("name", map(drawn, PICTURES))
def test_picture(name: str, snap_compare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture: Picture = PICTURES[name]
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(models, "DEMO_FOLDER", tmp_path)
    if picture.no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    app, before = picture.stage(Places.of())
    assert snap_compare(app, terminal_size=picture.size, run_before=before)


@pytest.mark.parametrize("name", PICTURES)
def test_the_words_of_a_state_stand_in_its_picture(name: str) -> None:
    shown = text_of(stored(name))
    for word in PICTURES[name].words:
        assert word in shown, f"{word!r} is not in\n{shown}"


def test_no_two_pictures_are_equal_and_none_is_left_over() -> None:
    files = {p.name for p in STORED.glob("*.svg")}
    assert files == {f"test_picture[{name}].svg" for name in PICTURES}
    assert max(Counter(p.read_text() for p in STORED.glob("*.svg")).values()) == 1
    plain = [n for n in PICTURES if not n.startswith("theme_")]
    assert max(Counter(text_of(stored(n)) for n in plain).values()) == 1


def test_no_picture_has_a_row_wider_than_its_terminal() -> None:
    from rich.cells import cell_len

    for name, picture in PICTURES.items():
        for row in text_of(stored(name)).split("\n"):
            assert cell_len(row.rstrip()) <= picture.size[0], (name, row)


def test_no_picture_shows_a_traceback_or_a_bare_none() -> None:
    for name in PICTURES:
        assert not re.search(r"Traceback|\bNone\b|\bnan\b", text_of(stored(name))), name
