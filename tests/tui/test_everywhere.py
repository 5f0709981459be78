"""Keys that act on every page and in every dialog, and what they leave behind."""

from __future__ import annotations

from typing import Any

import pytest

from qwen_chat_mlx.engine.config import EngineConfig
from qwen_chat_mlx.engine.fake import FakeReply, FakeScript
from qwen_chat_mlx.tui.config import UiConfig

LONG = FakeScript(replies=(FakeReply("word " * 400),), step_s=0.01)


@pytest.mark.parametrize("page", ["", "f1", "f3", "f7", "ctrl+p"])
async def test_quitting_is_asked_about_once_while_a_reply_runs(stage: Any, page: str) -> None:
    async with stage(LONG) as s:
        await s.ask("go", 0.2)
        await s.press(*[page] if page else [], "ctrl+q")
        assert s.app.return_value is None
        assert "once more quits" in s.screen_text
        await s.press("ctrl+q")
        assert s.app.return_value == 0


async def test_the_question_about_quitting_holds_for_two_seconds(stage: Any) -> None:
    async with stage(LONG) as s:
        await s.ask("go", 0.2)
        await s.press("ctrl+q")
        await s.advance(2.1)
        await s.press("ctrl+q")
        assert s.app.return_value is None
        (note,) = [n for n in s.app._notifications if "once more" in n.message][:1]
        assert note.timeout == 2.0


async def test_nothing_is_asked_when_no_reply_runs(stage: Any) -> None:
    async with stage(LONG) as s:
        await s.press("ctrl+q")
        assert s.app.return_value == 0


async def test_a_quit_given_to_another_key_leaves_ctrl_q_free(stage: Any) -> None:
    async with stage(ui_config=UiConfig(keys={"quit": "ctrl+x"})) as s:
        await s.press("ctrl+q")
        assert s.app.return_value is None
        await s.press("ctrl+x")
        assert s.app.return_value == 0


async def test_drafting_is_switched_while_the_model_loads(stage: Any) -> None:
    async with stage(LONG, ready=False) as s:
        await s.press("ctrl+t")
        assert "OFF" in s.status
        await s.advance(10)
        assert s.app.state.mtp.mode == "off"
        await s.press("ctrl+t")
        await s.advance(0.1)
        assert s.app.state.mtp.mode == "auto"


async def test_drafting_is_switched_on_the_page_of_all_panels(stage: Any) -> None:
    async with stage(LONG) as s:
        await s.ask("go", 0.2)
        await s.press("f3", "ctrl+t")
        await s.advance(0.6)
        assert s.app.state.mtp.mode == "off"
        assert "OFF (you)" in s.screen_text


@pytest.mark.parametrize("again", ["/retry", "/model demo"])
async def test_a_model_opened_later_drafts_as_was_asked_last(stage: Any, again: str) -> None:
    async with stage(LONG, engine_config=EngineConfig(mtp="fixed")) as s:
        await s.press("ctrl+t")
        await s.ask(again, 0)
        assert s.app.engine_config.mtp == "off"
        await s.press("ctrl+t")
        await s.ask(again, 0)
        assert s.app.engine_config.mtp == "fixed"
