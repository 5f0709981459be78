"""The chat, driven by keys over the scripted engine."""

from __future__ import annotations

import errno
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from qwen_chat_mlx.engine.config import EngineConfig
from qwen_chat_mlx.engine.errors import CheckpointError, StorageError
from qwen_chat_mlx.engine.events import StatsTaken
from qwen_chat_mlx.engine.fake import FakeReply, FakeScript
from qwen_chat_mlx.tui.config import UiConfig
from qwen_chat_mlx.tui.places import Places

LONG = "\n\n".join(f"Paragraph number {i} of a long answer." for i in range(60))


def script(*replies: FakeReply | str, **more: Any) -> FakeScript:
    made = tuple(FakeReply(r) if isinstance(r, str) else r for r in replies) or (FakeReply(),)
    return FakeScript(replies=made, **more)


async def test_a_prompt_is_answered(stage: Any) -> None:
    async with stage(script("Because **so**.")) as s:
        await s.ask("Why?")
        assert "▏ Why?" in s.text
        assert "Because so." in s.text
        assert s.app.state.turns[-1].status == "done"
        assert s.chat.composer.text == ""


async def test_a_prompt_typed_while_loading_waits_visibly_and_is_sent(stage: Any) -> None:
    async with stage(script("Yes."), ready=False) as s:
        assert "loading" in s.status or "reading" in s.status
        await s.press("h", "i", "enter")
        assert s.app.state.queued == "hi"
        assert "queued hi" in s.screen_text
        await s.finish()
        assert s.app.state.queued is None
        assert "Yes." in s.text


async def test_esc_stops_and_keeps_what_came(stage: Any) -> None:
    async with stage(script(LONG)) as s:
        await s.ask("go", 3)
        before = s.app.state.turns[-1].tokens
        assert before > 3
        await s.press("escape")
        await s.finish()
        turn = s.app.state.turns[-1]
        assert turn.status == "stopped"
        assert turn.tokens == before
        assert "■ stopped" in s.text
        await s.ask("again", 1)
        assert s.app.state.running is not None


async def test_a_second_prompt_is_queued_edited_and_sent(stage: Any) -> None:
    async with stage(script(LONG, "Second.")) as s:
        await s.ask("first", 2)
        await s.ask("second", 0.1)
        assert s.app.state.queued == "second"
        await s.ask("other", 0.1)
        assert (s.app.state.queued, s.chat.composer.text) == ("other", "second")
        await s.press("alt+up")
        assert s.app.state.queued is None
        assert s.chat.composer.text == "second\nother"
        await s.press("enter")
        await s.finish()
        assert [t.text for t in s.app.state.turns if t.role == "user"] == ["first", "second\nother"]


async def test_stopping_gives_the_queued_prompt_back(stage: Any) -> None:
    async with stage(script(LONG)) as s:
        await s.ask("first", 2)
        await s.ask("second", 0.1)
        await s.press("escape")
        await s.finish()
        assert s.chat.composer.text == "second"
        assert len(s.app.state.turns) == 2


async def test_prefill_is_shown_as_it_runs_and_never_as_zero(stage: Any) -> None:
    async with stage(script("x", prefill_rate=20.0, prefill_step=16)) as s:
        await s.ask("word " * 80, 2.5)
        assert "prompt 48 / " in s.status
        assert "20.0 tok/s" in s.status
        assert "left" in s.status
        assert " 0.0 tok/s" not in s.status


async def test_ctrl_t_switches_drafting_while_a_reply_streams(stage: Any) -> None:
    async with stage(script(LONG)) as s:
        await s.ask("go", 5)
        await s.press("x", "ctrl+t")
        await s.advance(0.5)
        assert "MTP off from token" in s.status
        assert "OFF" in s.status
        assert s.chat.composer.text == "x"
        await s.press("ctrl+t")
        await s.advance(0.5)
        assert s.app.state.mtp.mode == "auto"


async def test_a_thought_is_folded_until_it_is_opened(stage: Any) -> None:
    async with stage(script(FakeReply("Done.", thinking="secret steps"))) as s:
        await s.ask("go")
        assert "▸ Thought" in s.text
        assert "secret" not in s.text
        await s.press("ctrl+o")
        assert "secret steps" in s.text
        await s.press("ctrl+o")
        assert "secret" not in s.text


async def test_the_view_stays_while_reading_back_and_counts_new_lines(stage: Any) -> None:
    async with stage(script(LONG)) as s:
        await s.ask("go", 10)
        t = s.chat.transcript
        assert t.scroll_offset.y == t.max_scroll_y
        await s.press("pageup")
        y = t.scroll_offset.y
        for _ in range(20):
            await s.advance(0.3)
        assert t.scroll_offset.y == y
        assert t.missed > 0
        assert f"↓ {t.missed} new lines" in s.screen_text
        await s.press("ctrl+end")
        await s.finish()
        assert t.scroll_offset.y == t.max_scroll_y
        assert t.missed == 0


async def test_a_failed_request_is_explained_and_the_next_one_works(stage: Any) -> None:
    bad = FakeReply(LONG, error=StorageError("Reading experts failed: EIO.", "Check the disk."), error_after=5)
    async with stage(script(bad, "Fine.")) as s:
        await s.ask("go")
        assert "Reading experts failed: EIO." in s.text
        assert "Check the disk." in s.text
        await s.ask("again")
        assert "Fine." in s.text


async def test_a_model_that_cannot_be_loaded_is_explained(stage: Any) -> None:
    broken = script(load_error=CheckpointError("There is no config.json in /x.", "Check the path."))
    async with stage(broken) as s:
        assert "There is no config.json in /x." in s.text
        assert "Check the path." in s.text
        await s.ask("hello", 0)
        assert s.app.state.turns == []
        assert s.chat.composer.text == "hello"


async def test_ctrl_c_goes_down_its_ladder(stage: Any) -> None:
    async with stage(script(LONG)) as s:
        await s.ask("go", 2)
        s.chat.composer.put("draft")
        await s.press("ctrl+c")
        await s.finish()
        assert s.app.state.turns[-1].status == "stopped"
        assert s.chat.composer.text == "draft"
        await s.press("ctrl+c")
        assert s.chat.composer.text == ""
        await s.press("ctrl+c")
        assert "^C again quits" in s.screen_text
        assert s.app.return_value is None
        await s.press("ctrl+c")
        assert s.app.return_value == 0


@pytest.mark.parametrize("size", [(120, 36), (80, 24), (60, 20), (40, 10), (24, 6), (10, 3), (1, 1)])
async def test_it_runs_at_every_size_and_survives_resizing(stage: Any, size: tuple[int, int]) -> None:
    async with stage(script(FakeReply(LONG, "hm")), size=size) as s:
        await s.ask("go", 6)
        for other in ((120, 36), (40, 10), (80, 24), size):
            await s.pilot.resize_terminal(*other)
            await s.advance(0.3)
        await s.finish()
        assert s.app.state.turns[-1].status == "done"


async def test_f2_goes_from_the_side_to_the_strip_to_nothing(stage: Any) -> None:
    async with stage(script(LONG)) as s:
        await s.ask("go", 3)
        assert s.chat.side.display
        await s.press("f2")
        assert (s.chat.side.display, s.chat.strip.display) == (False, True)
        await s.press("f2")
        assert (s.chat.side.display, s.chat.strip.display) == (False, False)
        await s.press("f2")
        assert s.chat.side.display


async def test_nothing_ticks_when_nothing_runs(stage: Any) -> None:
    async with stage(script("Short.")) as s:
        await s.ask("go")
        timer = s.app._drain_timer
        assert not timer._active.is_set()


async def test_the_widget_count_does_not_grow_with_the_chat(stage: Any) -> None:
    async with stage(script("- a\n- b\n\n```py\nx = 1\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |", step_s=0.001)) as s:
        await s.ask("one")
        before = len(s.app.screen.query("*"))
        for i in range(35):
            await s.ask(f"prompt {i}")
        assert len(s.app.screen.query("*")) == before
        assert len(s.app.state.turns) == 72
        assert "earlier turns" in s.rows[0]
        for _ in range(4):
            await s.press("ctrl+home")
        assert "▏ one" in s.text


async def test_ctrl_d_deletes_in_a_prompt_and_quits_without_one(stage: Any) -> None:
    async with stage() as s:
        await s.press("a", "left", "ctrl+d")
        assert s.chat.composer.text == ""
        assert s.app.return_value is None
        await s.press("ctrl+d")
        assert s.app.return_value == 0


async def test_a_prompt_given_at_the_start_is_sent_when_the_model_is_ready(stage: Any) -> None:
    async with stage(script("Hello!"), prompt="Hi there") as s:
        await s.finish()
        assert "▏ Hi there" in s.text
        assert "Hello!" in s.text


async def test_a_model_without_a_draft_layer_says_so(stage: Any) -> None:
    plain = replace(FakeScript(), model=replace(FakeScript().model, has_mtp=False))
    async with stage(plain) as s:
        assert "n/a" in s.status
        await s.press("ctrl+t")
        await s.advance(0.1)
        assert s.app.state.mtp.state == "UNAVAILABLE"


def test_the_interface_imports_nothing_heavy() -> None:
    code = (
        "import sys, qwen_chat_mlx.tui.app\n"
        "heavy = {'mlx', 'numpy', 'tokenizers', 'jinja2', 'safetensors', 'torch', 'markdown_it', 'pygments.lexers'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---- prompts that the engine does not take


SMALL = replace(FakeScript().model, context=60)


async def test_a_prompt_that_does_not_fit_is_given_back_and_the_next_one_works(stage: Any) -> None:
    async with stage(script("Fine.", model=SMALL)) as s:
        await s.ask("hello")
        big = "word " * 80
        await s.ask(big)
        assert [t.text for t in s.app.state.turns] == ["hello", "Fine."]
        assert s.chat.composer.text == big
        assert "The conversation has" in s.screen_text
        await s.ask("again")
        assert [t.text for t in s.app.state.turns] == ["hello", "Fine.", "again", "Fine."]


async def test_a_refused_first_prompt_leaves_no_conversation_behind(stage: Any, home: Any) -> None:
    async with stage(script("Fine.", model=SMALL), places=Places.of()) as s:
        await s.ask("word " * 80)
        store = s.app.recorder.store
        assert (s.app.state.turns, s.app.state.title, store.list()) == ([], "", [])
        await s.ask("short")
        (entry,) = store.list()
        assert (entry.title, entry.turns) == ("short", 2)


async def test_a_refused_edit_brings_back_what_it_would_have_replaced(stage: Any, home: Any) -> None:
    async with stage(script(FakeReply("One.", "hm"), "Two.", "Three.", model=SMALL), places=Places.of()) as s:
        await s.ask("first")
        await s.ask("second")
        before = [(t.text, t.thinking, t.token_ids) for t in s.app.state.turns]
        saved = s.app.recorder.conversation.turns
        s.chat.transcript.focus_turn(0)
        s.chat.action_edit()
        await s.ask("word " * 80)
        assert [(t.text, t.thinking, t.token_ids) for t in s.app.state.turns] == before
        assert s.app.recorder.conversation.turns == saved
        assert s.chat.editing == 0
        s.app.recorder.close()
        assert [t.text for t in s.app.recorder.store.open(s.app.recorder.conversation.id).turns] == [
            t.text for t in saved
        ]


async def test_a_refused_prompt_stands_before_what_was_typed_since(stage: Any) -> None:
    async with stage(script("Fine.", model=SMALL)) as s:
        s.chat.composer.put("word " * 80)
        await s.press("enter", "n", "e", "w")
        await s.finish()
        assert s.chat.composer.text == "word " * 79 + "word \nnew"


async def test_what_was_said_of_drafting_is_over_with_the_reply(stage: Any) -> None:
    async with stage(script(FakeReply(LONG, accept=(0.0,)), LONG)) as s:
        await s.ask("go", 14)
        assert "MTP fallback from token" in s.status
        assert "FALLBACK" in s.status
        await s.finish()
        assert "from token" not in s.status
        assert "FALLBACK" not in s.status
        assert "tripped 1×" in s.screen_text
        assert "32/32" not in s.screen_text


async def test_times_are_shown_only_where_they_are_wanted(stage: Any) -> None:
    for wanted in (True, False):
        async with stage(script("Yes."), ui_config=UiConfig(timestamps=wanted)) as s:
            await s.ask("go")
            assert ("09:41" in s.screen_text) is wanted


async def test_a_disk_without_direct_reads_is_told_once(stage: Any) -> None:
    config = EngineConfig(direct_io="on")
    async with stage(script(LONG), engine_config=config) as s:
        await s.ask("go", 5)
        stats = s.app.state.stats
        ssd = replace(stats.ssd, buffered_reason="the file system of /m/a.safetensors has no direct I/O")
        for _ in range(3):
            s.app._bridge.emit(StatsTaken(replace(stats, ssd=ssd), s.engine.now))
            await s.show()
        s.chat.show_all()
        await s.show()
        assert "not direct: page cache" in s.screen_text
        assert sum("has no direct I/O" in line for line in s.app.log_lines) == 1
        assert len(s.app._notifications) == 1


async def test_a_full_disk_is_told_once_until_it_has_room_again(
    stage: Any, home: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qwen_chat_mlx.tui import conversations

    def full(_fd: int, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def told() -> int:
        return sum("No space left" in line for line in s.app.log_lines)

    async with stage(script("Yes."), places=Places.of()) as s:
        with monkeypatch.context() as m:
            m.setattr(conversations, "_write_all", full)
            await s.ask("one")
            await s.ask("two")
            assert told() == 1
        await s.ask("three")
        assert told() == 1
        monkeypatch.setattr(conversations, "_write_all", full)
        await s.ask("four")
        assert told() == 2


# ---- a conversation is gone on with as it was


@pytest.mark.parametrize(
    ("flags", "system", "think"),
    [({}, "Be brief.", False), ({"chat.system": "--system"}, "of now", False), ({"chat.think": "--think"}, "Be brief.", True)],
)  # fmt: skip
async def test_a_resumed_chat_has_its_system_prompt_and_thinking_unless_the_command_line_says_otherwise(
    stage: Any, flags: dict[str, str], system: str, think: bool
) -> None:
    async with stage(places=Places.of()) as s:
        s.app.state.system, s.app.state.think = "Be brief.", False
        await s.ask("hello")
        first = s.app.recorder.conversation.id
    now = UiConfig(system="of now", think=True)
    async with stage(places=Places.of(), ui_config=now) as s:
        s.app.live = SimpleNamespace(loaded=SimpleNamespace(origins=flags), poll=lambda: (None, ""))
        s.chat.resume(first)
        assert (s.app.state.system, s.app.state.think) == (system, think)
        s.chat.new_chat()
        assert (s.app.state.system, s.app.state.think) == ("of now", True)
    async with stage(places=Places.of(), ui_config=now, resume=first) as s:
        assert (s.app.state.system, s.app.state.think) == ("Be brief.", False)
