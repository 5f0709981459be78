"""Exports: whole, harmless, and never over another file."""

import json
import stat
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from qwen_chat_mlx.engine.errors import StorageError
from qwen_chat_mlx.tui.conversation_records import SavedTurn
from qwen_chat_mlx.tui.export import file_name, save, to_json, to_markdown

TURNS = [
    SavedTurn("user", "Why `x`?\n\n```py\nx = 1\n```", at=1_800_000_000.0),
    SavedTurn(
        "assistant", "Because.\n\n```\nopen", "hm\n~~~~\nstill", 1_800_000_001.0, (1, 2), "tok", "cancelled", "Qwen"
    ),
    SavedTurn("user", "<b>raw</b> \x1b[2J"),
    SavedTurn("assistant", "Done.", finish_reason="stop"),
]


def test_markdown_has_a_heading_a_turn_even_after_a_fence_left_open():
    text = to_markdown("A\ntitle", TURNS)
    headings = [t for t in MarkdownIt().parse(text) if t.type == "heading_open"]
    assert [h.tag for h in headings] == ["h1", "h2", "h2", "h2", "h2"]
    assert text.startswith("# A title\n")
    assert "ended early: cancelled" in text
    assert text.count("ended early") == 1
    assert "Thoughts" in text
    assert "Thoughts" not in to_markdown("t", TURNS, thinking=False)
    assert "\x1b" not in text
    assert "<b>raw</b>" in text
    assert to_markdown("", []) == "# Conversation\n"


def test_json_holds_everything_and_escapes_it():
    text = to_json("id", "t", TURNS)
    found = json.loads(text)
    assert found["messages"][1]["token_ids"] == [1, 2]
    assert found["messages"][1]["thinking"] == TURNS[1].thinking
    assert found["messages"][2] == {"role": "user", "text": TURNS[2].text}
    assert text.isascii()
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Why is this so?", "why-is-this-so.md"),
        ("../../x", "x.md"),
        ("???", "conversation.md"),
        ("日本 語", "日本-語.md"),
    ],
)
def test_a_file_name_is_made_of_the_titles_words(title, name):
    assert file_name(title, "md") == name


def test_saving_never_overwrites_and_says_what_is_wrong(tmp_path):
    path = save(tmp_path / "a.md", "x\ud800")
    assert path.read_text() == "x?"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(StorageError, match="already there"):
        save(path, "y")
    with pytest.raises(StorageError, match="cannot be written"):
        save(tmp_path / "none" / "a.md", "y")
    with pytest.raises(StorageError, match="cannot be written"):
        save(Path("~nobody-of-this-name/a.md"), "y")
    assert path.read_text() == "x?"
