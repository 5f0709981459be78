"""What was typed and what was answered stays, whatever is opened, renamed, edited or cut off meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual import events

from qwen_chat_mlx.engine.fake import FakeReply, FakeScript
from qwen_chat_mlx.tui.config import UiConfig
from qwen_chat_mlx.tui.places import Places
from qwen_chat_mlx.tui.screens.picker import Picker
from qwen_chat_mlx.tui.screens.settings import SettingsScreen

LONG = "word " * 2000


def script(*replies: FakeReply | str, **more: Any) -> FakeScript:
    made = tuple(FakeReply(r) if isinstance(r, str) else r for r in replies) or (FakeReply("a b c"),)
    return FakeScript(replies=made, **{"step_s": 0.01, **more})


def prompts(s: Any) -> list[str]:
    return [t.text for t in s.app.state.turns if t.role == "user"]


async def settle(s: Any) -> None:
    for _ in range(3):
        await s.pilot.pause()


async def paste(s: Any, text: str) -> None:
    s.app.post_message(events.Paste(text))
    await settle(s)


# ---- from one conversation to another


async def test_choosing_the_conversation_that_is_open_changes_nothing(stage: Any) -> None:
    async with stage(script("one", LONG), places=Places.of()) as s:
        await s.ask("hello")
        await s.ask("second", 0.2)
        s.chat.composer.put("draft")
        await s.press("ctrl+s", "enter")
        conversation = s.app.recorder.conversation
        assert conversation.read_only == ""
        assert s.app.state.running is not None
        assert s.chat.composer.text == "draft"
        await s.finish()
        assert [t.text for t in conversation.turns] == ["hello", "one", "second", LONG]


async def test_a_prompt_given_with_a_conversation_is_sent_in_it(stage: Any) -> None:
    async with stage(script("one"), places=Places.of()) as s:
        await s.ask("hello")
        first = s.app.recorder.conversation.id
    async with stage(script("two"), places=Places.of(), resume=first, prompt="and in Rust") as s:
        await s.finish()
        assert [t.text for t in s.app.state.turns] == ["hello", "one", "and in Rust", "two"]


async def test_a_prompt_for_a_conversation_that_cannot_be_opened_is_not_sent_elsewhere(stage: Any) -> None:
    broken = Places.of().conversations / "20200101-000000-aaaaaa.jsonl"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"no conversation\n")
    async with stage(script("one"), places=Places.of(), resume=broken.stem, prompt="and in Rust") as s:
        await s.finish()
        assert s.app.state.turns == []
        assert s.chat.composer.text == "and in Rust"


@pytest.mark.parametrize("how", ["new", "resume"])
async def test_a_reply_cut_off_by_a_change_of_chat_keeps_its_ids_like_one_that_was_stopped(
    stage: Any, how: str
) -> None:
    async with stage(script("one", LONG, "two"), places=Places.of()) as s:
        await s.ask("hello")
        store, other = s.app.recorder.store, s.app.recorder.conversation.id
        if how == "resume":
            await s.press("ctrl+n")
        await s.ask("go", 0.3)
        left = s.app.recorder.conversation.id
        if how == "new":
            await s.press("ctrl+n")
        else:
            s.chat.resume(other)
        await s.advance(1.0)
        await settle(s)
        turn = store.open(left).turns[-1]
        assert turn.finish_reason == "cancelled"
        assert turn.text
        assert turn.tokenizer
        assert len(turn.token_ids) == turn.text.count("word")
        await s.ask("go on")
        assert s.app.state.turns[-1].text == "two"
        assert store.open(left).turns[-1] == turn


async def test_a_conversation_that_was_left_and_opened_again_is_written_to_by_one_hand(stage: Any) -> None:
    async with stage(script(LONG, "two"), places=Places.of()) as s:
        await s.ask("go", 0.3)
        recorder = s.app.recorder
        left = recorder.conversation.id
        recorder.start_new()
        recorder.resume(left)
        assert recorder._left is None
        assert recorder.conversation.read_only == ""


@pytest.mark.parametrize("how", ["new", "resume"])
async def test_a_prompt_queued_while_loading_is_back_in_the_composer_after_a_change_of_chat(
    stage: Any, how: str
) -> None:
    async with stage(script("one"), places=Places.of()) as s:
        await s.ask("hello")
        first = s.app.recorder.conversation.id
    async with stage(script("two"), places=Places.of(), ready=False) as s:
        s.chat.composer.put("precious")
        await s.press("enter")
        assert s.app.state.queued == "precious"
        if how == "new":
            await s.press("ctrl+n")
        else:
            s.chat.resume(first)
        assert s.app.state.queued is None
        assert s.chat.composer.text == "precious"


async def test_a_reply_left_in_its_middle_is_on_record_as_stopped(stage: Any) -> None:
    async with stage(script("one", LONG), places=Places.of()) as s:
        await s.ask("old")
        first = s.app.recorder.conversation.id
        await s.press("ctrl+n")
        await s.ask("new", 1.0)
        second = s.app.recorder.conversation.id
        s.engine.advance(0.5)  # told by the engine, and not shown yet
        s.chat.resume(first)
        await s.advance(1)
        turn = s.app.recorder.store.open(second).turns[-1]
        assert turn.finish_reason == "cancelled"
        assert len(turn.text) > 500
        assert turn.numbers["tokens"] > 100
        assert [t.text for t in s.app.state.turns] == ["old", "one"]


async def test_a_reply_cut_off_by_another_model_is_on_record_as_stopped_and_that_model_answers(stage: Any) -> None:
    async with stage(script(LONG), places=Places.of()) as s:
        await s.ask("go", 1.0)
        s.engine.advance(0.5)
        s.chat.switch_model("demo")
        turn, saved = s.app.state.turns[-1], s.app.recorder.conversation.turns[-1]
        assert (turn.status, saved.finish_reason) == ("stopped", "cancelled")
        assert turn.text == saved.text
        assert len(turn.text) > 500
        await settle(s)
        s.engine = s.app.engine
        await s.advance(10)
        await s.ask("again", 20)
        assert len(s.app.state.turns) == 4
        assert s.app.state.turns[-1].text


async def test_a_reply_that_goes_on_and_is_cut_off_has_no_ids_of_its_first_part(stage: Any) -> None:
    async with stage(script("one two three four", LONG), places=Places.of()) as s:
        await s.ask("/set max_tokens 3", 0)
        await s.ask("count")
        assert s.app.state.turns[-1].token_ids
        await s.ask("/set max_tokens", 0)
        await s.ask("/continue", 1.0)
        place, text = s.app.recorder.conversation.id, s.app.state.turns[-1].text
        await s.press("ctrl+n")
        turn = s.app.recorder.store.open(place).turns[-1]
        assert turn.text == text
        assert turn.token_ids == ()


async def test_after_a_temporary_chat_a_new_one_is_kept_again_and_a_temporary_one_says_so(stage: Any) -> None:
    async with stage(script("a", "b"), places=Places.of()) as s:
        await s.ask("/temporary", 0)
        assert "(temporary)" in s.screen_text
        await s.ask("secret")
        assert "secret (temporary)" in s.screen_text
        await s.ask("/new", 0)
        assert "(temporary)" not in s.screen_text
        await s.ask("kept")
        assert [e.title for e in s.app.recorder.store.list()] == ["kept"]


async def test_a_program_started_for_temporary_chats_keeps_none(stage: Any) -> None:
    async with stage(script("a"), places=Places.of(), temporary=True) as s:
        await s.press("ctrl+n")
        await s.ask("secret")
        assert "(temporary)" in s.screen_text
        assert s.app.recorder.store.list() == []


async def test_another_conversation_is_renamed_in_place(stage: Any) -> None:
    async with stage(script("a", LONG), places=Places.of()) as s:
        await s.ask("first chat")
        await s.press("ctrl+n")
        await s.ask("second chat", 0.2)
        second = s.app.recorder.conversation.id
        s.chat.composer.put("draft")
        await s.press("ctrl+s", *"first", "ctrl+r")
        await settle(s)
        assert "first chat" in s.screen_text
        await s.press(*" of all", "enter")
        await settle(s)
        assert isinstance(s.app.screen, Picker)
        assert "first chat of all" in s.screen_text
        await s.press("escape")
        assert s.app.recorder.conversation.id == second
        assert s.app.state.running is not None
        assert s.chat.composer.text == "draft"
        await s.press("ctrl+s", *"second", "ctrl+r")
        await settle(s)
        await s.press(*"!", "enter")
        await settle(s)
        assert s.app.state.title == "second chat!"


async def test_the_context_of_the_chat_before_is_not_shown_for_another(stage: Any) -> None:
    async with stage(script("a", LONG), places=Places.of()) as s:
        await s.ask("first")
        first = s.app.recorder.conversation.id
        await s.press("ctrl+n")
        await s.ask("second")
        assert s.app.state.context_used > 1000
        s.chat.resume(first)
        await s.advance(1)
        assert s.app.state.context_used == 0
        await s.ask("more")
        assert s.app.state.context_used > 0


async def test_a_new_chat_begins_with_the_settings_of_the_config(stage: Any) -> None:
    async with stage(script("a"), ui_config=UiConfig(system="Be kind.", think=True)) as s:
        await s.ask("/system Be rude.", 0)
        await s.ask("/think off", 0)
        await s.ask("/set temperature 0.5", 0)
        await s.press("ctrl+n")
        state = s.app.state
        assert (state.system, state.think, state.sampling) == ("Be kind.", True, {})


# ---- editing a prompt


async def test_editing_acts_on_the_focused_turn_though_another_one_is_equal(stage: Any) -> None:
    async with stage(script("a", "b", "c", "d")) as s:
        for text in ("go on", "middle", "go on"):
            await s.ask(text)
        s.chat.transcript.focus()
        await settle(s)
        s.chat.transcript.focus_turn(4)
        await s.press("e")
        assert s.chat.editing == 4
        await s.press("escape", "tab")
        s.chat.transcript.focus_turn(5)
        await s.press("r")
        await s.finish()
        assert prompts(s) == ["go on", "middle", "go on"]


async def test_the_sign_of_editing_stays_and_clearing_the_prompt_ends_it(stage: Any) -> None:
    async with stage(script("a", "b", "c", "d")) as s:
        for text in ("one", "two", "three"):
            await s.ask(text)
        s.chat.transcript.focus_turn(0)
        s.chat.action_edit()
        await s.press("alt+t")
        assert "editing “one”" in s.screen_text
        await s.press("ctrl+c")
        assert s.chat.editing is None
        assert "editing" not in s.screen_text
        await s.ask("four")
        assert prompts(s) == ["one", "two", "three", "four"]


@pytest.mark.parametrize("end", ["escape", "ctrl+c", "enter"])
async def test_a_draft_is_back_when_editing_ends(stage: Any, end: str) -> None:
    async with stage(script("a", "b")) as s:
        await s.ask("first")
        s.chat.composer.put("a long draft")
        await s.press("tab", "e")
        assert s.chat.composer.text == "first"
        await s.press(end)
        await s.finish()
        assert s.chat.composer.text == "a long draft"
        assert s.chat.editing is None
        assert prompts(s) == ["first"]


async def test_making_a_reply_again_ends_the_editing(stage: Any) -> None:
    async with stage(script("a", "b", "c", "d")) as s:
        for text in ("one", "two"):
            await s.ask(text)
        s.chat.transcript.focus_turn(0)
        s.chat.action_edit()
        await settle(s)
        s.chat.transcript.focus()
        await settle(s)
        s.chat.transcript.focus_turn(3)
        await s.press("r")
        await s.finish()
        await s.ask("three")
        assert prompts(s) == ["one", "two", "three"]


# ---- files and pastes


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("FILE BODY")
    (tmp_path / "docs").mkdir()
    return tmp_path


async def test_a_file_is_attached_once_however_often_its_prompt_is_sent(stage: Any, files: Path) -> None:
    async with stage(script("a", "b", "c"), places=Places.of()) as s:
        await s.ask("see @a.txt please")
        s.chat.action_edit()
        assert s.chat.composer.text == "see @a.txt please"
        await s.press("enter")
        await s.finish()
        await s.press("up")
        assert s.chat.composer.text == "see @a.txt please"
        await s.press("enter")
        await s.finish()
        place = s.app.recorder.conversation.id
        assert [p.count("FILE BODY") for p in prompts(s)] == [1, 1]
    async with stage(script("d"), places=Places.of(), resume=place) as s:
        s.chat.action_edit()
        await s.press("enter")
        await s.finish()
        assert [p.count("FILE BODY") for p in prompts(s)] == [1, 1]


async def test_a_queued_prompt_with_a_file_comes_back_as_it_was_typed(stage: Any, files: Path) -> None:
    async with stage(script(LONG, "b")) as s:
        await s.ask("go", 0.2)
        await s.ask("see @a.txt please", 0)
        assert "FILE BODY" in s.app.state.queued
        await s.press("escape")
        await s.finish()
        assert s.chat.composer.text == "see @a.txt please"


@pytest.mark.parametrize("more", ["", "line\n" * 60], ids=["short", "long"])
async def test_what_is_pasted_attaches_nothing_and_never_keeps_a_prompt_back(
    stage: Any, files: Path, more: str
) -> None:
    async with stage(script("a", "b")) as s:
        await paste(s, more + "see @a.txt and import @docs")
        assert "attached" not in s.status
        await s.press("enter")
        await s.finish()
        assert prompts(s) == [more + "see @a.txt and import @docs"]
        await s.press("up", "enter")
        await s.finish()
        assert prompts(s) == [more + "see @a.txt and import @docs"] * 2
        await s.press("@")
        await paste(s, "a.txt")
        assert "1 file attached" in s.status
        await s.press("enter")
        await s.finish()
        assert "FILE BODY" in prompts(s)[-1]


async def test_a_paste_that_went_through_the_editor_still_attaches_nothing(
    stage: Any, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qwen_chat_mlx.tui import editor

    async with stage(script("a", "b")) as s:
        monkeypatch.setattr(editor, "edit_text", lambda text, _: (f"About @a.txt\n{text}\n" + "more\n" * 60, ""))
        await paste(s, "line\n" * 60 + "import @docs")
        await s.press("ctrl+g", "enter")
        await s.finish()
        (prompt,) = prompts(s)
        assert prompt.startswith("About @a.txt\nline")
        assert prompt.count("FILE BODY") == 1


# ---- what is shown of it


async def test_going_on_adds_to_the_time_of_a_thought_only_what_was_thought(stage: Any) -> None:
    replies = FakeReply("answer " * 40, "think " * 10), FakeReply("more " * 10), FakeReply("x", "hm " * 10)
    async with stage(script(*replies, step_s=0.1, prefill_rate=1e9)) as s:
        await s.ask("hello", 0.1)
        turn = s.app.state.turns[-1]
        for _ in range(30):
            await s.advance(0.2)
        assert turn.status == "answering"
        thought = turn.thought_s
        assert thought > 0
        await s.press("escape")
        await s.advance(60)
        s.chat.action_continue()
        await s.advance(0.5)
        await s.press("escape")
        await s.finish()
        assert (turn.status, turn.thought_s) == ("stopped", thought)
        s.chat.action_continue()
        for _ in range(30):
            await s.advance(0.2)
        await s.finish()
        assert thought < turn.thought_s < 3 * thought


async def test_a_refused_regeneration_keeps_the_reply(stage: Any) -> None:
    from qwen_chat_mlx.engine.errors import ContextFullError

    full = FakeReply("x", error=ContextFullError("It is full.", "Start a new chat."))
    async with stage(script("one", full, "two"), places=Places.of()) as s:
        await s.ask("hello")
        ids = s.app.state.turns[-1].token_ids
        s.chat.composer.put("draft")
        s.chat.action_regenerate()
        await s.finish()
        assert [(t.text, t.token_ids) for t in s.app.state.turns] == [("hello", ()), ("one", ids)]
        assert [t.text for t in s.app.recorder.conversation.turns] == ["hello", "one"]
        assert s.chat.composer.text == "draft"
        assert "It is full." in s.screen_text


async def test_long_numbers_are_shown_and_applied_as_they_are(stage: Any) -> None:
    async with stage(script("a")) as s:
        await s.ask("/set seed 123456789", 0)
        assert "seed 123456789" in s.status
        await s.ask("/set max_tokens 1234567", 0)
        assert "max 1234567" in s.status
        await s.press("f7")
        assert s.app.screen.query_one("#seed").value == "123456789"
        await s.press("ctrl+s")
        assert not isinstance(s.app.screen, SettingsScreen)
        assert s.app.state.sampling == {"seed": 123456789, "max_tokens": 1234567}


async def test_a_system_prompt_may_have_several_lines(stage: Any) -> None:
    async with stage(script("a")) as s:
        for between in (" ", "\n"):
            await paste(s, f"/system{between}You are kind.\nBe brief.")
            await s.press("enter")
            assert s.app.state.system == "You are kind.\nBe brief."
            s.app.state.system = ""
        assert prompts(s) == []
        await paste(s, "/new\nis no command here")
        await s.press("enter")
        await s.finish()
        assert prompts(s) == ["/new\nis no command here"]
