"""Each key and command that no other test goes through does what its words say."""

from __future__ import annotations

from typing import Any

import pytest

from qwen_chat_mlx.engine.errors import CheckpointError
from qwen_chat_mlx.engine.fake import FakeReply, FakeScript
from qwen_chat_mlx.tui.places import Places
from qwen_chat_mlx.tui.screens.pages import MetricsPage, TextPage

LINES = FakeScript(replies=(FakeReply("a line\n\n" * 60 + "```py\nx = 1\n```"),), step_s=0.001)
LONG = FakeScript(replies=(FakeReply("word " * 400),), step_s=0.01)


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    from qwen_chat_mlx.tui.app import QwenChatApp

    found: list[str] = []
    monkeypatch.setattr(QwenChatApp, "copy", lambda _app, text, _what: found.append(text))
    return found


async def test_thinking_goes_round_with_its_key(stage: Any) -> None:
    async with stage() as s:
        for wanted, word in ((True, "on"), (False, "off"), (None, "as the model likes")):
            await s.press("alt+t")
            assert s.app.state.think is wanted
            assert f"thinking {word}" in s.status


@pytest.mark.parametrize("way", ["ctrl+l", "/redraw"])
async def test_drawing_again_paints_every_row(stage: Any, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from textual._compositor import Compositor

    async with stage() as s:
        whole: list[bool] = []
        plain = Compositor.render_full_update
        monkeypatch.setattr(Compositor, "render_full_update", lambda c, **k: whole.append(True) or plain(c, **k))
        await (s.ask(way, 0) if way.startswith("/") else s.press(way))
        await s.pilot.pause(0.1)
        assert whole


async def test_pages_are_scrolled_while_typing_and_the_end_is_followed_again(stage: Any) -> None:
    async with stage(LINES, size=(80, 24)) as s:
        await s.ask("go")
        t = s.chat.transcript
        await s.press("pageup", "pageup")
        up = t.scroll_offset.y
        await s.press("pagedown")
        assert t.scroll_offset.y > up
        assert not t.following
        assert s.chat.composer.has_focus
        await s.ask("/follow", 0)
        assert t.following
        assert t.scroll_offset.y == t.max_scroll_y


async def test_messages_are_walked_with_letters_and_left_with_shift_tab(stage: Any) -> None:
    async with stage() as s:
        await s.ask("one")
        await s.ask("two")
        await s.press("shift+tab")
        turns, t = s.app.state.turns, s.chat.transcript
        assert t.focused_turn is turns[3]
        await s.press("k", "k")
        assert t.focused_turn is turns[1]
        await s.press("j")
        assert t.focused_turn is turns[2]
        await s.press("shift+tab")
        assert s.chat.composer.has_focus


async def test_a_reply_goes_on_with_its_key(stage: Any) -> None:
    async with stage(FakeScript(replies=(FakeReply("one two"), FakeReply(" three")), step_s=0.01)) as s:
        await s.ask("/set max_tokens 1", 0)
        await s.ask("count")
        before = s.app.state.turns[-1].text
        await s.ask("/set max_tokens", 0)
        await s.press("tab", "g")
        await s.finish()
        assert s.app.state.turns[-1].text == before + " three"


async def test_messages_and_code_are_copied_with_commands(stage: Any, copied: list[str]) -> None:
    async with stage(LINES) as s:
        await s.ask("go")
        for command in ("/copy", "/copy 1", "/code", "/code 1", "/copy 7", "/code 2"):
            await s.ask(command, 0)
        text = s.app.state.turns[-1].text
        assert copied == [text, text, "x = 1", "x = 1"]
        assert "/code takes a number from 1 to 1." in s.app.log_lines[-1]


@pytest.mark.parametrize(
    ("command", "page", "words"),
    [
        ("/stats", MetricsPage, "EXPERT CACHE"),
        ("/log", TextPage, "nothing was noted"),
        ("/keys", TextPage, "Writing"),
        ("/help", TextPage, "Writing"),
    ],
)
async def test_pages_open_with_commands(stage: Any, command: str, page: type, words: str) -> None:
    async with stage() as s:
        s.app.log_lines.clear()
        await s.ask(command, 0)
        await s.pilot.pause(0.1)
        assert type(s.app.screen) is page
        assert words in s.screen_text
        await s.press("escape")
        assert s.app.screen is s.chat


async def test_panels_change_with_the_command(stage: Any) -> None:
    async with stage() as s:
        await s.ask("/panels", 0)
        assert (s.app.metrics, s.chat.side.display, s.chat.strip.display) == ("strip", False, True)
        await s.ask("/panels", 0)
        assert (s.app.metrics, s.chat.side.display, s.chat.strip.display) == ("off", False, False)


async def test_a_queued_prompt_comes_back_with_the_command(stage: Any) -> None:
    async with stage(LONG) as s:
        await s.ask("go", 0.1)
        await s.ask("later", 0)
        assert s.app.state.queued == "later"
        await s.ask("/unqueue", 0)
        assert s.app.state.queued is None
        assert s.chat.composer.text == "later"
        await s.press("enter", "alt+up")
        assert s.chat.composer.text == "later"


async def test_a_deleted_conversation_comes_back_with_the_command(stage: Any) -> None:
    async with stage(places=Places.of()) as s:
        await s.ask("/undelete", 0)
        assert "Nothing was deleted" in s.app.log_lines[-1]
        await s.ask("keep me")
        store, kept = s.app.recorder.store, s.app.recorder.conversation.id
        await s.press("ctrl+s", "delete")
        await s.pilot.pause()
        await s.press("escape")
        assert [e.id for e in store.list()] == []
        await s.ask("/undelete", 0)
        assert [e.id for e in store.list()] == [kept]


async def test_a_model_that_failed_is_opened_again_with_the_command(stage: Any) -> None:
    async with stage(FakeScript(load_error=CheckpointError("no", "way"))) as s:
        first = s.app.engine
        await s.ask("/retry", 0)
        assert s.app.engine is not first
        assert s.app.state.phase == "loading"


async def test_the_command_quits_and_asks_once_while_a_reply_runs(stage: Any) -> None:
    async with stage(LONG) as s:
        await s.ask("go", 0.1)
        await s.ask("/quit", 0)
        assert s.app.return_value is None
        await s.ask("/quit", 0)
        assert s.app.return_value == 0
