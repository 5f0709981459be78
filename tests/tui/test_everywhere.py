"""Keys that act on every page and in every dialog, and what they leave behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qwen_chat_mlx.engine.config import EngineConfig
from qwen_chat_mlx.engine.fake import FakeReply, FakeScript
from qwen_chat_mlx.tui.config import Live, UiConfig, load
from qwen_chat_mlx.tui.keys import key_problems
from qwen_chat_mlx.tui.places import Places

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


async def test_the_badge_names_the_key_that_follows_again(stage: Any) -> None:
    script = FakeScript(replies=(FakeReply("line\n\n" * 200),), step_s=0.01)
    async with stage(script, size=(80, 24), ui_config=UiConfig(keys={"follow": "f9,ctrl+end"})) as s:
        await s.ask("go", 0.5)
        await s.press("pageup", "pageup")
        await s.advance(0.5)
        assert "F9 to follow" in s.screen_text
        await s.press("f9")
        assert s.chat.transcript.following


@pytest.mark.parametrize(("keys", "said"), [("f9", "F9"), ("", "/thoughts")])
async def test_a_thought_names_the_key_that_opens_it(stage: Any, keys: str, said: str) -> None:
    script = FakeScript(replies=(FakeReply("Done.", thinking="steps"),))
    async with stage(script, ui_config=UiConfig(keys={"toggle_thoughts": keys})) as s:
        await s.ask("go")
        assert f"{said} open" in s.screen_text
        assert "^O" not in s.screen_text


async def test_keys_given_to_messages_act_there_and_freed_ones_are_typed(stage: Any) -> None:
    async with stage(ui_config=UiConfig(keys={"copy": "x,?"})) as s:
        await s.ask("hi")
        for key in ("x", "question_mark"):
            await s.press("tab", key)
            assert s.chat.transcript.has_focus
            assert "copied" in s.app.log_lines[-1].lower()
            s.app.log_lines.clear()
            s.app.log_lines.append("")
            await s.press("escape")
        await s.press("tab", "y")
        assert s.chat.composer.text == "y"


async def test_f2_changes_what_is_shown_at_every_width(stage: Any) -> None:
    for width in (120, 80):
        async with stage(size=(width, 24)) as s:
            await s.ask("hi")
            seen = [s.screen_text]
            for _ in range(3 if width > 100 else 2):
                await s.press("f2")
                assert s.screen_text != seen[-1]
                seen.append(s.screen_text)
            assert s.app.metrics == "full"


async def test_a_misspelt_theme_is_named_and_changes_nothing(stage: Any) -> None:
    async with stage(ui_config=UiConfig(theme="paper")) as s:
        await s.ask("/theme papr", 0)
        assert s.app.theme == "paper"
        assert "did you mean 'paper'?" in s.app.log_lines[-1]


async def test_a_theme_chosen_against_the_config_file_is_said_once_not_to_last(stage: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[ui]\ntheme = "coal"\n')
    for given, said in ((path, [f"ui.theme is set in {path}: the next start has that again."]), (None, [])):
        loaded = load(file=given)
        async with stage(ui_config=loaded.ui, live=Live(loaded, lambda loaded=loaded: loaded)) as s:
            await s.ask("/theme paper", 0)
            await s.ask("/theme moss", 0)
            assert s.app.theme == "moss"
            assert [line for line in s.app.log_lines if "ui.theme" in line] == said


async def test_every_page_dialog_and_note_is_drawn_in_ascii_alone(stage: Any, home: Path, tmp_path: Path) -> None:
    reply = FakeReply(
        "# T\n\n- a *b*\n\n> c\n\n| a | b |\n|--|--|\n| 1 | 2 |\n\n---\n" + "line\n\n" * 60, "thought " * 40
    )
    shown: list[str] = []

    async with stage(
        FakeScript(replies=(reply,)), ready=False, ui_config=UiConfig(ascii=True), places=Places.of(), size=(110, 24)
    ) as s:

        async def look(*keys: str, seconds: float = 0) -> None:
            await s.press(*keys)
            await s.advance(seconds)
            shown.append(s.screen_text)

        await look()
        await look(seconds=10)
        await s.ask("go", 3)
        await look()
        await look("f2", "pageup", seconds=2)
        await look("pageup", "ctrl+o", seconds=2)
        await s.finish()
        for page in ("f1", "f3", "f6", "f7", "f12", "ctrl+p", "ctrl+s"):
            await look(page)
            await look("escape")
        for line in ("/theme", "/m", "/rename x", "/mtp nonsense", "/copy"):
            s.chat.composer.put(line)
            await look()
            await look("enter")
            await look("escape")
        await look("tab")
        await look("tab", "e")
        await s.pilot.resize_terminal(20, 5)
        await look()
    assert len({*shown}) > 25
    for words in ("up, down scroll", "enter choose"):
        assert any(words in screen for screen in shown)
    for screen in shown:
        assert screen.isascii(), [row for row in screen.split("\n") if not row.isascii()]


async def test_a_key_given_twice_is_named_with_the_action_that_has_it(stage: Any) -> None:
    async with stage(ui_config=UiConfig(keys={"help": "ctrl+q"})) as s:
        assert "ctrl+q is given to both quit and help; the first one has it." in s.app.log_lines[-1]
        await s.press("ctrl+q")
        assert s.app.return_value == 0


def test_a_key_that_is_needed_to_write_with_is_named_unless_it_acts_on_messages_alone() -> None:
    assert key_problems({"stop": "q"}) == ["[keys] q is given to stop, but in a prompt it is typed."]
    assert key_problems({"think": "f9,minus"}) == [
        "[keys] minus is given to think, and can no longer be typed in a prompt."
    ]
    assert key_problems({"copy": "x,question_mark", "help": "f5", "send": "enter", "newline": "shift+\\r"}) == []


async def test_hints_name_the_keys_in_force_and_commands_where_there_are_none(stage: Any) -> None:
    model = replace(LONG.model, is_demo=True)
    keys = {"stop": "f9", "models": "", "help": "f5", "send": "enter,f10"}
    async with stage(replace(LONG, model=model), ui_config=UiConfig(keys=keys)) as s:
        assert "/model opens another model" in s.text
        assert "F5 explains" in s.text
        await s.ask("go", 0.2)
        assert "F9 stop" in s.status
        await s.press("tab", "e")
        assert "F9 stops it first" in s.app.log_lines[-1]
        await s.press("f9")
        await s.finish()
        assert s.app.state.turns[-1].status == "stopped"


async def test_a_changed_config_is_checked_for_keys_given_twice(stage: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("")
    async with stage(live=Live(load(file=path), lambda: load(file=path))) as s:
        path.write_text('[keys]\nhelp = "f7"\n')
        s.app.poll_config()
        assert "f7 is given to both" in s.app.log_lines[-1]
        path.write_text('[keys]\nhelp = "F77"\n')
        s.app.poll_config()
        assert "there is no key 'F77': did you mean 'f" in s.app.log_lines[-1]
