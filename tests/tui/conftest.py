"""What the interface's tests share: an app over a manual scripted engine, whose clock only the test moves."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

for _name in ("NO_COLOR", "COLORTERM", "TERM_PROGRAM", "TEXTUAL_THEME", "TEXTUAL_ANIMATIONS", "TEXTUAL_FILTERS"):
    os.environ.pop(_name, None)
os.environ["TEXTUAL_ANIMATIONS"] = "none"
os.environ["TEXTUAL_FPS"] = "1000"  # the screen's own tick ends before one of `at_rest`
os.environ["TZ"] = "UTC"
time.tzset()

import textual.app  # noqa: E402
import textual.pilot  # noqa: E402

TICK_S = 0.002


async def at_rest(_min_sleep: float = 0.0, max_sleep: float = 1.0) -> None:
    """Wait until nothing ran in two ticks one after the other: no callback is due and no thread computes.

    What Textual's Pilot waits with after each key and pause; its own looks only every 20 ms.
    """
    ready = asyncio.get_running_loop()._ready  # pyright: ignore
    end, still = time.monotonic() + max_sleep, 0
    while still < 2 and time.monotonic() < end:
        before = time.process_time()
        await asyncio.sleep(TICK_S)
        still = 0 if ready or time.process_time() - before > TICK_S / 5 else still + 1


textual.app.wait_for_idle = textual.pilot.wait_for_idle = at_rest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own for every test."""
    place = tmp_path / "home"
    monkeypatch.setenv("QWEN_CHAT_HOME", str(place))
    monkeypatch.setenv("HOME", str(tmp_path))
    return place


@dataclass
class Stage:
    """A running app with its engine."""

    app: Any
    pilot: Any
    engine: Any

    @property
    def chat(self) -> Any:
        return self.app.chat

    async def advance(self, seconds: float) -> None:
        """Let the engine's time pass and show what came of it."""
        self.engine.advance(seconds)
        await self.show()

    async def finish(self) -> None:
        for _ in range(50):
            self.engine.finish()
            await self.show()
            if self.engine.idle and not self.app.state.busy:
                return
        raise AssertionError("the engine never came to rest")

    async def show(self) -> None:
        self.app.on_wake()
        await self.pilot.pause()

    async def ask(self, text: str, seconds: float | None = None) -> None:
        """Type a prompt and send it; then run to the end, or for some seconds."""
        self.chat.composer.put(text)
        await self.pilot.press("enter")
        await self.pilot.pause()
        await (self.finish() if seconds is None else self.advance(seconds))

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    @property
    def rows(self) -> list[str]:
        """The rows of the transcript, all of them."""
        t = self.chat.transcript
        lines = (t.line_at(y)[0] for y in range(t._total))
        return ["" if line is None else line.content.plain.rstrip() for line in lines]

    @property
    def text(self) -> str:
        return "\n".join(self.rows)

    @property
    def status(self) -> str:
        return self.chat.query_one("#status").text

    @property
    def screen_text(self) -> str:
        """What stands on the whole screen."""
        compositor = self.app.screen._compositor
        return "\n".join("".join(s.text for s in strip) for strip in compositor.render_strips())


Staging = Callable[..., AbstractAsyncContextManager[Stage]]


@pytest.fixture
def stage() -> Staging:
    """`async with stage(script, size=..., ready=...) as s`"""
    from qwen_chat_mlx.engine.fake import FakeEngine, FakeScript
    from qwen_chat_mlx.tui.app import QwenChatApp

    @asynccontextmanager
    async def run(
        script: FakeScript | None = None, *, size: tuple[int, int] = (120, 36), ready: bool = True, **app_options: Any
    ) -> AsyncIterator[Stage]:
        engines: list[FakeEngine] = []
        clock = [1000.0]

        def factory(_config: Any, emit: Any) -> FakeEngine:
            engines.append(FakeEngine(emit, script or FakeScript(), manual=True))
            return engines[-1]

        app = QwenChatApp(
            factory, clock=lambda: engines[-1].now if engines else clock[0], wall=lambda: "09:41", **app_options
        )
        async with app.run_test(size=size, notifications=True) as pilot:
            while not engines:
                await pilot.pause()
            s = Stage(app, pilot, engines[-1])
            s.engine.advance(0)
            await s.show()
            if ready:
                await s.advance(10)
            yield s

    return run
