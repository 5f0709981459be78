"""What can be done with a message: walk to it, copy, edit, answer again, go on."""

from __future__ import annotations

from typing import Any

import pytest

from qwen_chat_mlx.engine.fake import FakeReply, FakeScript

CODE = "One:\n\n```py\na = 1\n```\n\nTwo:\n\n```sh\nls\n```\n"


def script(*texts: str) -> FakeScript:
    return FakeScript(replies=tuple(FakeReply(t) for t in texts), step_s=0.01)


async def test_messages_can_be_walked_copied_edited_and_made_again(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    async with stage(script(CODE, "Second.", "Third.", "Fourth.")) as s:
        monkeypatch.setattr(s.app, "copy", lambda text, what: copied.append(f"{what}: {text}"))
        await s.ask("first")
        await s.ask("second")
        await s.press("tab")
        assert s.chat.transcript.focused_turn is s.app.state.turns[3]
        await s.press("y", "up", "up", "c", "c", "c")
        assert copied == [
            "message: Second.", "code block 1 of 2: a = 1", "code block 2 of 2: ls", "code block 1 of 2: a = 1",
        ]  # fmt: skip
        await s.press("down", "e")
        assert s.chat.composer.text == "second"
        await s.press("escape")
        assert s.chat.composer.text == ""
        assert s.app.state.notice == ""
        await s.press("tab", "up", "e", *" now", "enter")
        await s.finish()
        assert [t.text for t in s.app.state.turns] == ["first", CODE, "second now", "Third."]
        await s.press("tab", "r")
        await s.finish()
        assert [t.text for t in s.app.state.turns][2:] == ["second now", "Fourth."]
        await s.press("tab", "x")
        assert s.chat.composer.has_focus
        assert s.chat.composer.text == "x"


async def test_a_reply_that_was_cut_off_goes_on(stage: Any) -> None:
    async with stage(script("one two three four", " and five")) as s:
        await s.ask("/set max_tokens 3", 0)
        await s.ask("count")
        assert s.app.state.turns[-1].status == "length"
        assert "token limit" in s.text
        await s.press("tab")
        assert "g continue" in s.screen_text
        await s.press("tab")
        before = s.app.state.turns[-1].text
        await s.ask("/set max_tokens", 0)
        await s.ask("/continue")
        assert s.app.state.turns[-1].text == before + " and five"
        assert len(s.app.state.turns) == 2


@pytest.mark.parametrize("way", ["/continue", "g"])
async def test_a_finished_reply_does_not_go_on_and_keeps_its_figures(stage: Any, way: str) -> None:
    async with stage(script("one two three four", " and five")) as s:
        await s.ask("count")
        reply, before = s.app.state.turns[-1], s.app.state.turns[-1].tok_per_s
        await (s.press("tab", "g") if way == "g" else s.ask(way))
        assert [n.message for n in s.app._notifications] == ["There is no reply that was cut off."]
        assert s.app.state.running is None
        assert (reply.status, reply.text, reply.tok_per_s) == ("done", "one two three four", before)


async def test_tab_marks_the_last_message_at_once_and_shows_the_keys_that_act_on_it(stage: Any) -> None:
    async with stage(script("one two")) as s:
        await s.ask("count")
        await s.press("tab")
        reply = s.chat.transcript._items[-1]
        assert "reverse" in reply.lines[0].content.markup
        keys = s.screen_text.splitlines()[-1].strip()
        assert keys.startswith("y copy  e edit  r retry  ↑ ↓ walk  tab back")
        assert "send" not in keys
        await s.press("tab")
        assert "reverse" not in reply.lines[0].content.markup
        assert s.screen_text.splitlines()[-1].strip().startswith("⏎ send")
