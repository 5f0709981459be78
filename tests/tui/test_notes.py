"""Notes that come and go: where they lie, and what they must never cover."""

from __future__ import annotations

from typing import Any

import pytest

from qwen_chat_mlx.tui.places import Places

LONG = (
    "A note of more words than fit a row: it names a file, /home/somebody/conversations/of/today.jsonl, and what to do."
)
SIZES = [(120, 36), (100, 30), (50, 14), (30, 8), (24, 6)]


@pytest.mark.parametrize("size", SIZES)
async def test_a_note_covers_neither_what_is_typed_nor_the_rows_below(stage: Any, size: tuple[int, int]) -> None:
    async with stage(size=size) as s:
        await s.press(*"words")
        y = s.chat.query_one("#bottom").region.y
        before = s.screen_text.splitlines()[y:]
        assert any("words" in row for row in before)
        for text in (LONG, "Short.", LONG):
            s.app.say(text)
        await s.pilot.pause()
        assert "A note of more" in s.screen_text
        assert s.screen_text.splitlines()[y:] == before


@pytest.mark.parametrize("key", ["f1", "ctrl+p", "f7"])
@pytest.mark.parametrize("size", [(100, 30), (50, 14)])
async def test_a_note_leaves_the_keys_of_a_dialog_in_view(stage: Any, key: str, size: tuple[int, int]) -> None:
    async with stage(size=size) as s:
        await s.press(key)
        s.app.say(LONG)
        await s.pilot.pause()
        assert "A note of more" in s.screen_text
        assert "esc close" in s.screen_text


async def test_the_note_on_a_deleted_conversation_goes_when_it_is_back(stage: Any) -> None:
    async with stage(places=Places.of()) as s:
        await s.ask("hello")
        await s.press("ctrl+s", "delete")
        assert "Deleted “hello”" in s.screen_text
        await s.press("ctrl+z")
        assert "Deleted" not in s.screen_text
        assert "hello" in s.screen_text
