"""Writing a prompt: suggestions at the speed of typing, pastes, rows, the queued prompt."""

from __future__ import annotations

from typing import Any

import pytest
from textual import events

from qwen_chat_mlx.engine.fake import FakeReply, FakeScript
from qwen_chat_mlx.tui.attach import attachments, suggest

LONG = FakeScript(replies=(FakeReply("word " * 400),), step_s=0.01)
NAMES = {"/": "slash", " ": "space"}


async def burst(s: Any, text: str) -> None:
    """Keys that all wait in the queue before the first one is handled, Enter last."""
    for character in text:
        s.app.post_message(events.Key(NAMES.get(character, character), character))
    s.app.post_message(events.Key("enter", None))
    for _ in range(6):
        await s.pilot.pause()


async def paste(s: Any, text: str) -> None:
    s.app.post_message(events.Paste(text))
    for _ in range(3):
        await s.pilot.pause()


async def test_enter_after_a_fast_word_runs_what_was_typed(stage: Any) -> None:
    async with stage() as s:
        await s.press("/", "m", "t", "p")
        await burst(s, " off")
        await s.advance(0.1)
        assert s.chat.composer.text == ""
        assert s.app.state.mtp.mode == "off"
        await burst(s, "/think on")
        assert s.app.state.think is True
        await burst(s, "/log")
        assert type(s.app.screen).__name__ == "TextPage"


async def test_suggestions_closed_with_esc_stay_closed_until_more_is_typed(stage: Any) -> None:
    async with stage() as s:
        await s.press("/", "t", "h", "escape", "enter")
        assert "Did you mean" in s.status
        assert s.chat.composer.text == "/th"
        await s.press("i")
        assert s.chat.suggestions.open


async def test_enter_in_an_empty_prompt_edits_the_queued_one(stage: Any) -> None:
    async with stage(LONG) as s:
        await s.ask("go", 0.1)
        await s.ask("queued one", 0)
        assert "⏎ edits it" in s.screen_text
        await s.press("enter")
        assert s.app.state.queued is None
        assert s.chat.composer.text == "queued one"
        s.chat.composer.put("")
        await s.press("enter")
        assert s.app.state.queued is None


async def test_up_moves_through_the_rows_of_a_wrapped_prompt_before_it_goes_to_earlier_ones(stage: Any) -> None:
    async with stage(size=(80, 24)) as s:
        await s.ask("earlier")
        c = s.chat.composer
        c.put("word " * 50)
        rows = c.wrapped_document.height
        assert rows > 2
        for row in range(rows - 2, -1, -1):
            await s.press("up")
            assert c.text.startswith("word")
            assert c._row == row
        await s.press("up")
        assert c.text == "earlier"
        await s.press("down")
        assert c.text.startswith("word")


async def test_a_paste_takes_the_place_of_the_selection(stage: Any) -> None:
    async with stage() as s:
        s.chat.composer.put("hello world")
        s.chat.composer.select_all()
        await paste(s, "X")
        assert s.chat.composer.text == "X"


async def test_a_paste_while_reading_goes_to_the_prompt(stage: Any) -> None:
    async with stage() as s:
        await s.ask("hello")
        await s.press("tab")
        assert s.chat.transcript.has_focus
        await paste(s, "pasted words")
        assert s.chat.composer.text == "pasted words"
        assert s.chat.composer.has_focus


async def test_undoing_brings_a_paste_back_with_what_it_stands_for(stage: Any) -> None:
    async with stage() as s:
        c = s.chat.composer
        await paste(s, "AAA\n" * 60)
        await s.press("enter")
        await s.finish()
        await s.press("ctrl+z")
        assert c.expanded.count("AAA") == 60
        c.put("")
        await paste(s, "CCC\n" * 60)
        await s.press("backspace")
        assert c.text == ""
        await s.press("ctrl+z")
        assert c.expanded.count("CCC") == 60


async def test_a_long_queued_prompt_and_a_paste_come_back_together(stage: Any) -> None:
    async with stage(LONG) as s:
        await s.ask("go", 0.1)
        await paste(s, "AAA\n" * 60)
        await s.press("enter")
        await paste(s, "BBB\n" * 70)
        await s.press("escape")
        await s.advance(1)
        c = s.chat.composer
        assert c.expanded.count("AAA") == 60
        assert c.expanded.count("BBB") == 70
        assert "[pasted" not in c.expanded


async def test_a_long_text_that_holds_a_paste_is_one_paste_with_the_whole_text(stage: Any) -> None:
    async with stage() as s:
        c = s.chat.composer
        await paste(s, "BBB\n" * 70)
        c.put(f"{c.text}\n" + "AAA\n" * 60)
        assert c.text.startswith("[pasted 132 lines")
        assert c.expanded == "BBB\n" * 70 + "\n" + "AAA\n" * 60


async def test_copying_a_selection_leaves_the_next_ctrl_c_for_the_reply(stage: Any) -> None:
    async with stage(LONG) as s:
        await s.ask("go", 0.1)
        s.chat.composer.put("typed")
        s.chat.composer.select_all()
        await s.press("ctrl+c")
        assert s.app.state.running is not None
        await s.press("ctrl+c")
        await s.advance(0.2)
        assert s.app.state.running is None
        assert s.chat.composer.text == "typed"


@pytest.mark.parametrize("text", ["", "   ", "\n"])
async def test_nothing_is_sent_for_an_empty_prompt(stage: Any, text: str) -> None:
    async with stage() as s:
        await s.ask(text, 0)
        assert s.app.state.turns == []


def test_the_home_of_somebody_who_is_not_there_is_a_word_like_another() -> None:
    assert suggest("@~nobody-of-this-name/x") == []
    assert attachments("@~nobody-of-this-name/x") == []
