"""Hostile text from every source, in every place: nothing a terminal would act on, nothing taken for markup, no crash."""

from __future__ import annotations

import re
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qwen_chat_mlx.engine.config import EngineConfig
from qwen_chat_mlx.engine.errors import CheckpointError, RequestError
from qwen_chat_mlx.engine.fake import FakeReply, FakeScript
from qwen_chat_mlx.tui.app import QwenChatApp
from qwen_chat_mlx.tui.config import UiConfig
from qwen_chat_mlx.tui.places import Places
from qwen_chat_mlx.tui.themes import SHIPPED

EVIL = "\x1b]52;c;eA==\x07\x1b]0;title\x07\x1b[2J\x1bc\x9b2J\x9d0;x\x9c\x00\x7f\u202e\u2066 [/] [/tmp/x] [link='x [@click=app.quit]go[/] a[b]c"
FENCE = f"```[/] {EVIL}\n{EVIL}\n```\n\n# {EVIL}\n\n- {EVIL}\n\n| {EVIL} | b |\n|--|--|\n| {EVIL} | 2 |\n\n[{EVIL}](http://x/{EVIL})\n\n&#x202e;&#27;"
BAD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def harmless(s: Any) -> None:
    found = BAD.findall(s.screen_text)
    assert not found, [hex(ord(c)) for c in found]


async def test_replies_thoughts_prompts_and_queued_prompts(stage: Any) -> None:
    script = FakeScript(replies=(FakeReply(FENCE, EVIL),), step_s=0.005)
    async with stage(script) as s:
        await s.ask(f"prompt {EVIL}", 0.2)
        harmless(s)
        await s.ask(f"queued {EVIL}", 0.1)
        harmless(s)
        for _ in range(12):
            await s.advance(0.05)
            harmless(s)
        await s.finish()
        await s.press("ctrl+o", "ctrl+home")
        harmless(s)
        assert "[@click=app.quit]go[/]" in s.text
        assert "a[b]c" in s.text


async def test_failures_and_names_from_the_engine(stage: Any) -> None:
    model = replace(FakeScript().model, name=EVIL, path=EVIL, notes=(EVIL,))
    failing = FakeReply("x" * 50, error=RequestError(EVIL, EVIL), error_after=3)
    async with stage(FakeScript(model=model, replies=(failing,), load=((EVIL, 3, EVIL[:3]),)), ready=False) as s:
        harmless(s)
        await s.advance(10)
        assert "[@click=app.quit]go[/]" in s.text
        harmless(s)
        await s.ask("go")
        harmless(s)
        await s.press("f12")
        harmless(s)
    async with stage(FakeScript(load_error=CheckpointError(EVIL, EVIL))) as s:
        harmless(s)
        await s.press("f6")
        harmless(s)


async def test_titles_conversations_and_exports(stage: Any, tmp_path: Path) -> None:
    places = Places.of()
    async with stage(FakeScript(), places=places) as s:
        await s.ask(f"first {EVIL}")
        await s.ask(f"/rename title {EVIL}", 0)
        harmless(s)
        await s.press("ctrl+s")
        harmless(s)
        await s.press("escape")
        await s.ask(f"/export md {tmp_path}/{chr(27)}x.md", 0)
        harmless(s)
        conversation = s.app.recorder.conversation.id
    path = places.conversations / f"{conversation}.jsonl"
    edited = path.read_text().replace('"first ', '"first \\u001b[2J\\u202e ')
    path.write_text(edited)
    async with stage(FakeScript(), places=places, resume=conversation) as s:
        harmless(s)
        assert "[link='x" in s.text


async def test_pastes_notes_config_values_and_themes(stage: Any) -> None:
    from textual import events

    places = Places.of()
    places.themes.mkdir(parents=True)
    whole = (SHIPPED / "paper.toml").read_text()
    title = "".join(f"\\u{ord(c):04x}" for c in EVIL)
    (places.themes / "evil.toml").write_text(re.sub("^title = .*$", lambda _: f'title = "{title}"', whole, flags=re.M))
    (places.themes / f"named{EVIL.translate({0: None, ord('/'): None})}.toml").write_text(
        re.sub("^title = .*\n", "", whole, flags=re.M)
    )
    async with stage(FakeScript(), places=places, ui_config=UiConfig(theme="[/] nothing", system=EVIL)) as s:
        harmless(s)
        s.app.post_message(events.Paste(EVIL))
        await s.pilot.pause()
        harmless(s)
        s.app.say(EVIL, "error")
        await s.pilot.pause()
        harmless(s)
        s.chat.composer.put("")
        await s.ask("/theme", 0)
        await s.press("2", "J")
        assert len(s.app.screen.rows.items) == 2
        harmless(s)
        await s.press("escape", "f7")
        s.app.post_message(events.Paste(EVIL))
        await s.pilot.pause()
        harmless(s)
        assert "[@click=app.quit]go[/]" in s.app.screen.query_one("#system").text


async def test_names_of_files(stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a\x1b[2J.txt").write_text("x")
    (tmp_path / "a[b].txt").write_text("\x1b[2J [/]")
    async with stage(FakeScript()) as s:
        await s.press("@", "a")
        harmless(s)
        assert "a[b].txt" in s.screen_text
        s.chat.composer.put("read @a[b].txt")
        await s.pilot.pause()
        assert "1 file attached" in s.status
        await s.press("enter")
        await s.finish()
        harmless(s)


def test_outside_text_never_meets_markup() -> None:
    """Static and Label are given Content, or markup=False; notify goes through App.say alone."""
    folder = Path(__file__).parents[2] / "tui"
    for path in folder.rglob("*.py"):
        if "cli" in path.parts:
            continue
        text = path.read_text()
        assert "from_markup" not in text, path
        if path.name != "app.py":
            assert ".notify(" not in text, path
        for m in re.finditer(r"\b(?:Static|Label)\(([^\n]*)", text):
            inside = m[1]
            assert "markup=False" in inside or re.match(r'(?:Content|area|said|self\._text|id=|"?$|$)', inside), (
                path,
                m[0],
            )


class Refused(socket.socket):
    def __init__(self, *_a: Any, **_k: Any) -> None:
        raise AssertionError("a socket was made")


async def test_no_socket_is_made_from_the_start_to_the_answer(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", Refused)
    async with stage(FakeScript()) as s:
        await s.ask("go")
        assert s.app.state.turns[-1].status == "done"


async def test_no_socket_is_made_with_the_real_engine_either(monkeypatch: pytest.MonkeyPatch) -> None:
    from qwen_chat_mlx.engine import open_engine

    model = Path(__file__).parents[1] / "engine" / "fixtures" / "bf16-1"
    config = EngineConfig(model=str(model), direct_io="off", memory_limit="4 GiB", max_tokens=3)
    app = QwenChatApp(open_engine, engine_config=config, places=Places.of(), prompt="go")
    monkeypatch.setattr(socket, "socket", Refused)
    async with app.run_test() as pilot:
        end = time.monotonic() + 60
        while not (app.state.turns and app.state.turns[-1].status in ("done", "length")):
            assert time.monotonic() < end, app.log_lines
            await pilot.pause(0.05)
        assert app.state.turns[-1].token_ids
