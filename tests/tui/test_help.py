"""The page behind F1."""

from __future__ import annotations

import pytest

from qwen_chat_mlx.tui.commands import COMMANDS
from qwen_chat_mlx.tui.keys import BY_ID, keymap
from qwen_chat_mlx.tui.screens.pages import help_text


def test_help_tells_every_key_and_command() -> None:
    shown = help_text(keymap({}), False, 200).plain
    for a in BY_ID.values():
        assert a.what in shown
    for c in COMMANDS:
        assert c.name in shown


@pytest.mark.parametrize("width", [27, 77, 117])
def test_every_explanation_of_the_help_stays_in_its_column(width: int) -> None:
    rows = help_text(keymap({}), False, width).plain.splitlines()
    column = next(r for r in rows if "Attach a" in r).index("Attach a")
    heads = {"Writing", "Everywhere", "On a message (Tab goes there)", "Commands", "Panels"}
    for row in rows:
        assert len(row) <= width or row in heads
        assert row in heads or row[column - 1 : column].strip() == "", row
    assert any(r.startswith("/model") and "Models" in r for r in rows)
