"""Every key and every command, and what a typed line is taken for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from qwen_chat_mlx.engine.fake import FakeReply, FakeScript
from qwen_chat_mlx.tui.attach import attachments, expand, suggest
from qwen_chat_mlx.tui.commands import BY_NAME, COMMANDS, matching, parse
from qwen_chat_mlx.tui.keys import ACTIONS, clashes, key_label, keymap
from qwen_chat_mlx.tui.models import find_models
from qwen_chat_mlx.tui.places import Places
from qwen_chat_mlx.tui.screens.chat import ChatScreen
from qwen_chat_mlx.tui.screens.pages import MetricsPage, TextPage
from qwen_chat_mlx.tui.screens.picker import Picker
from qwen_chat_mlx.tui.screens.settings import SettingsScreen

CODE = "One:\n\n```py\na = 1\n```\n\nTwo:\n\n```sh\nls\n```\n"


def script(*texts: str, **more: Any) -> FakeScript:
    return FakeScript(replies=tuple(FakeReply(t) for t in texts or (CODE,)), step_s=0.01, **more)


# ---- tables


def test_every_action_has_something_that_does_it() -> None:
    from qwen_chat_mlx.tui.widgets.composer import Composer

    for a in ACTIONS:
        owner = Composer if a.scope == "composer" else ChatScreen
        assert callable(getattr(owner, f"action_{a.id}", None)), a.id


def test_every_key_has_a_second_way_in() -> None:
    alone = {"send", "newline", "history_prev", "history_next", "stop", "interrupt", "top", "scroll_up", "scroll_down",
             "focus_transcript", "message_prev", "message_next", "fold"}  # fmt: skip
    for a in ACTIONS:
        assert a.slash or a.id in alone, a.id


def test_the_default_keys_do_not_clash_but_where_the_place_decides() -> None:
    assert {(a, b) for _, a, b in clashes(keymap({}))} == set()


def test_the_users_keys_win_and_clashes_are_named() -> None:
    keys = keymap({"help": "ctrl+t"})
    assert keys["help"] == "ctrl+t"
    assert clashes(keys) == [("ctrl+t", "toggle_mtp", "help")]


@pytest.mark.parametrize(
    ("keys", "label"),
    [
        ("ctrl+t,f4", "^T"),
        ("escape", "esc"),
        ("enter", "⏎"),
        ("f12", "F12"),
        ("shift+f2", "shift+F2"),
        ("y", "y"),
        ("", ""),
    ],
)
def test_keys_are_written_for_people(keys: str, label: str) -> None:
    assert key_label(keys) == label


@pytest.mark.parametrize("text", ["hello", "/usr/bin/env", "//x", "/1", "/", "/mtp\nand more", " /mtp", "/zzzzzz"])
def test_a_prompt_stays_a_prompt(text: str) -> None:
    assert parse(text) == (None, "", "")


def test_a_command_is_found_with_its_argument() -> None:
    command, argument, near = parse("/set temp 0.7 ")
    assert command is BY_NAME["/set"]
    assert (argument, near) == ("temp 0.7", "")


@pytest.mark.parametrize(("text", "near"), [("/halp", "/help"), ("/exp", "/export"), ("/sytem x", "/system")])
def test_a_near_miss_is_asked_about(text: str, near: str) -> None:
    assert parse(text) == (None, "", near)


def test_commands_are_offered_while_typing() -> None:
    assert len(matching("/")) == len(COMMANDS)
    assert [c.name for c in matching("/mo")] == ["/model"]
    assert matching("/mtp off") == []


# ---- attachments


def test_files_are_attached_below_the_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("x = '```'\n\x1b[2J\n")
    (tmp_path / "with space.txt").write_text("hi")
    text, problem = expand('look at @a.py and @"with space.txt", not me@b.c or @nobody')
    assert problem == ""
    assert "a.py:\n````python\nx = '```'\n␛[2J\n````" in text
    assert "with space.txt:\n```txt\nhi\n```" in text
    assert len(attachments("@nobody x@a.py")) == 0


def test_what_cannot_be_attached_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "big").write_bytes(b"x" * (2 << 20))
    (tmp_path / "dir").mkdir()
    for name, words in (("bin", "not a text file"), ("big", "is the most"), ("dir", "is a folder")):
        text, problem = expand(f"see @{name}")
        assert words in problem
        assert text == f"see @{name}"


def test_paths_are_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("alpha.py", "also.txt", ".hidden", "other"):
        (tmp_path / name).write_text("")
    (tmp_path / "alps").mkdir()
    (tmp_path / "alps" / "x").write_text("")
    assert suggest("@al") == ["@alpha.py", "@also.txt", "@alps/"]
    assert suggest("@alps/") == ["@alps/x"]
    assert suggest("@.h") == ["@.hidden"]
    assert suggest("@nothing/here") == []


# ---- models


def test_models_are_found_where_they_are(tmp_path: Path) -> None:
    good, empty = tmp_path / "good", tmp_path / "empty"
    good.mkdir()
    empty.mkdir()
    (good / "config.json").write_text('{"model_type": "qwen4_exp"}')
    (good / "a.safetensors").write_bytes(b"x" * 2048)
    hub = tmp_path / "hub"
    snapshot = hub / "models--Qwen--Some-Model" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text('{"model_type": "qwen4_exp"}')
    (snapshot.parents[1] / "blobs").mkdir()
    for name, size in (("a", 3000), ("b", 5000)):
        (snapshot.parents[1] / "blobs" / name).write_bytes(b"x" * size)
        (snapshot / f"{name}.safetensors").symlink_to(f"../../blobs/{name}")
    (snapshot / "c.safetensors").symlink_to("../../blobs/not-there-yet")
    found = find_models(str(good), [str(empty), str(tmp_path / "gone"), str(good)], {"HF_HUB_CACHE": str(hub)})
    assert [m.origin for m in found] == [
        "configured",
        "used lately",
        "used lately",
        "HF cache",
        "comes with the program",
    ]
    assert (found[0].kind, found[0].size_bytes) == ("qwen4_exp", 2048)
    assert "config.json" in found[1].problem
    assert "not there" in found[2].problem
    assert (found[3].path, found[3].kind, found[3].size_bytes) == ("Qwen/Some-Model", "qwen4_exp", 8000)
    (again, _) = find_models("Qwen/Some-Model", [], {"HF_HUB_CACHE": str(hub)})
    assert (again.origin, again.size_bytes) == ("configured", 8000)


# ---- in the app


async def test_commands_run_from_the_prompt(stage: Any) -> None:
    async with stage(script()) as s:
        await s.ask("/set temp 0.7", 0)
        assert s.app.state.sampling == {"temperature": 0.7}
        await s.ask("/set temp 9", 0)
        assert "number from 0 to 5" in s.screen_text
        await s.ask("/set temp", 0)
        assert s.app.state.sampling == {}
        await s.ask("/think off", 0)
        assert s.app.state.think is False
        await s.ask("/mtp fixed", 0.1)
        assert s.app.state.mtp.mode == "fixed"
        await s.ask("/mtp sideways", 0)
        assert "auto, fixed or off" in s.screen_text
        await s.ask("/system Be brief.", 0)
        assert s.app.state.system == "Be brief."
        await s.ask("/theme paper", 0)
        assert s.app.theme == "paper"
        await s.ask("/halp", 0)
        assert s.chat.composer.text == "/halp"
        assert "Did you mean /help?" in s.status
        assert s.app.state.turns == []
        s.chat.composer.put("")
        await s.ask("/usr/bin/env is text")
        assert s.app.state.turns[0].text == "/usr/bin/env is text"


async def test_every_dialog_opens_and_closes(stage: Any) -> None:
    async with stage(script(), places=Places.of()) as s:
        await s.ask("go")
        for key, kind in (("f1", TextPage), ("ctrl+p", Picker), ("ctrl+s", Picker), ("f6", Picker), ("f7", SettingsScreen),
                          ("f12", TextPage), ("f3", MetricsPage)):  # fmt: skip
            await s.press(key)
            assert isinstance(s.app.screen, kind), key
            await s.press("escape")
            assert isinstance(s.app.screen, ChatScreen), key


async def test_the_palette_filters_and_runs(stage: Any) -> None:
    async with stage(script()) as s:
        await s.press("ctrl+p", *"thinking on", "enter")
        await s.pilot.pause()
        assert s.app.state.think is True


async def test_typing_a_slash_offers_commands(stage: Any) -> None:
    async with stage(script()) as s:
        await s.press("/", "m", "t")
        assert s.chat.suggestions.open
        assert "/mtp" in s.screen_text
        await s.press("tab")
        assert s.chat.composer.text == "/mtp "
        assert not s.chat.suggestions.open
        await s.press(*"off", "enter")
        await s.advance(0.1)
        assert s.app.state.mtp.mode == "off"
        await s.press("/")
        await s.press("escape")
        assert not s.chat.suggestions.open
        assert s.chat.composer.text == "/"


async def test_history_keeps_the_draft(stage: Any) -> None:
    async with stage(script("a")) as s:
        await s.ask("first")
        await s.ask("second")
        await s.press(*"dra", "up")
        assert s.chat.composer.text == "second"
        await s.press("up", "up")
        assert s.chat.composer.text == "first"
        await s.press("down", "down")
        assert s.chat.composer.text == "dra"


async def test_new_lines_and_large_pastes(stage: Any) -> None:
    from textual import events

    async with stage(script("ok")) as s:
        await s.press("a", "ctrl+j", "b", "shift+enter", "c", "\\", "enter")
        assert s.chat.composer.text == "a\nb\nc\n"
        s.chat.composer.put("")
        s.app.post_message(events.Paste("two\nlines\x1b[2J\n"))
        await s.pilot.pause()
        assert s.chat.composer.text == "two\nlines␛[2J\n"
        assert s.app.state.turns == []
        s.chat.composer.put("see ")
        big = "\n".join(f"line {i}" for i in range(4812))
        s.app.post_message(events.Paste(big))
        await s.pilot.pause()
        assert re.fullmatch(r"see \[pasted 4,812 lines, [\d.]+ KiB\]", s.chat.composer.text)
        await s.press("enter")
        await s.finish()
        assert s.app.state.turns[0].text == f"see {big}"
        assert "more lines" in s.text
        s.app.post_message(events.Paste(big))
        await s.pilot.pause()
        await s.press("backspace")
        assert s.chat.composer.text == ""


async def test_a_full_context_asks_what_to_do(stage: Any) -> None:
    from dataclasses import replace

    small = replace(FakeScript().model, context=40)
    async with stage(script("word " * 60, "fresh", model=small)) as s:
        await s.ask("go")
        assert s.app.state.turns[-1].status == "context"
        assert "the context is full" in s.text
        await s.ask("more", 0)
        assert isinstance(s.app.screen, Picker)
        await s.press("enter")
        await s.finish()
        assert [t.text for t in s.app.state.turns] == ["more", "fresh"]


async def test_settings_are_checked_and_hold(stage: Any) -> None:
    async with stage(script("a")) as s:
        await s.press("f7")
        screen = s.app.screen
        screen.query_one("#temperature").value = "9"
        await s.press("ctrl+s")
        assert isinstance(s.app.screen, SettingsScreen)
        assert "number from 0 to 5" in s.screen_text
        screen.query_one("#temperature").value = "0.5"
        screen.query_one("#think").value = "off"
        await s.press("ctrl+s")
        assert isinstance(s.app.screen, ChatScreen)
        assert s.app.state.sampling == {"temperature": 0.5}
        assert "temp 0.5" in s.status
        assert "think off" in s.status


async def test_a_setting_left_alone_says_who_decides_it(stage: Any) -> None:
    async with stage() as s:
        await s.press("f7")
        said = {name: s.app.screen.query_one(f"#{name}").placeholder for name in ("top_k", "seed", "max_tokens")}
        assert said == {"top_k": "as the model has it", "seed": "random", "max_tokens": "context"}


async def test_a_model_can_be_switched_without_a_restart(stage: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    async with stage(script("a")) as s:
        await s.ask("go")
        old = s.engine
        await s.ask(f"/model {tmp_path}", 0)
        assert s.app.engine_config.model == str(tmp_path)
        assert s.app.engine is not old
        assert s.app.state.phase == "loading"
        assert len(s.app.state.turns) == 2
        await s.pilot.pause()
        s.engine = s.app.engine
        await s.advance(10)
        await s.ask("and you?")
        assert [t.text for t in s.app.state.turns] == ["go", "a", "and you?", "a"]


async def test_conversations_are_kept_resumed_and_deleted(stage: Any) -> None:
    places = Places.of()
    async with stage(script("Stored **reply**."), places=places) as s:
        await s.ask("remember me")
        first = s.app.recorder.conversation.id
        await s.ask("/rename My title", 0)
        assert "My title" in s.screen_text
        await s.press("ctrl+n")
        assert s.app.state.turns == []
        await s.ask("another one")
        await s.press("ctrl+s")
        assert "My title" in s.screen_text
        await s.press(*"title", "enter")
        assert [t.text for t in s.app.state.turns] == ["remember me", "Stored **reply**."]
        assert s.app.recorder.conversation.id == first
        await s.ask("/regen")
        await s.press("ctrl+s", *"another", "delete")
        await s.pilot.pause()
        assert isinstance(s.app.screen, Picker)
        assert "nothing fits" in s.screen_text
        await s.press("ctrl+z")
        await s.pilot.pause()
        assert "another one" in s.screen_text
        await s.press("escape")
    stored = (places.conversations / f"{first}.jsonl").read_text()
    assert '"rewind"' in stored
    async with stage(script("x"), places=places, resume=first) as s:
        assert "▏ remember me" in s.text
        assert "Stored reply." in s.text


async def test_export_writes_a_new_file(stage: Any, tmp_path: Path) -> None:
    async with stage(script("Yes.")) as s:
        await s.ask("really?")
        await s.ask(f"/export md {tmp_path}/out.md", 0)
        assert "Yes." in (tmp_path / "out.md").read_text()
        await s.ask(f"/export json {tmp_path}/out.json", 0)
        assert '"really?"' in (tmp_path / "out.json").read_text()
        await s.ask("/export pdf", 0)
        assert "md or json" in s.screen_text


async def test_keys_can_be_remapped_by_id(stage: Any) -> None:
    from qwen_chat_mlx.tui.config import UiConfig

    async with stage(script("a"), ui_config=UiConfig(keys={"help": "f9", "send": "ctrl+g", "editor": ""})) as s:
        await s.press("f9")
        assert isinstance(s.app.screen, TextPage)
        assert "F9" in s.screen_text
        await s.press("escape", "f1")
        assert isinstance(s.app.screen, ChatScreen)
        await s.press("h", "i", "ctrl+g")
        await s.finish()
        assert s.app.state.turns[0].text == "hi"


async def test_the_editor_changes_the_prompt(stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import nullcontext

    editor = tmp_path / "ed"
    editor.write_text('#!/bin/sh\nprintf "%s, edited\\n" "$(cat "$1")" > "$1"\n')
    editor.chmod(0o700)
    monkeypatch.setenv("VISUAL", str(editor))
    async with stage(script("a")) as s:
        monkeypatch.setattr(s.app, "suspended", nullcontext)
        await s.press(*"text", "ctrl+g")
        assert s.chat.composer.text == "text, edited"
        monkeypatch.setenv("VISUAL", "/nonexistent/editor")
        await s.press("ctrl+g")
        assert "cannot be started" in s.screen_text
        assert s.chat.composer.text == "text, edited"
