"""The pictures of the interface: each state by name, how it comes about, and the words that must stand in it.

Made over the scripted engine with a clock that only the script moves; tests/tui/test_pictures compares them and
docs/tour.py draws some of them for the README.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from qwen_chat_mlx.engine.errors import CheckpointError, StorageError
from qwen_chat_mlx.engine.fake import FakeDisk, FakeEngine, FakeReply, FakeScript
from qwen_chat_mlx.tui.app import QwenChatApp
from qwen_chat_mlx.tui.config import UiConfig

STEP_S = 0.1
CELL = 12.2
"""Width of a cell in a picture."""
WIDE, NORMAL, NARROW, TINY = (120, 36), (80, 24), (60, 20), (40, 10)
PROMPT = "Why does `&mut` need an exclusive borrow? Show a failing example."
ANSWER = """Two live `&mut` references to the same value would let one *invalidate* what the other points at. \
The borrow checker forbids it:

```rust
let mut v = vec![1, 2, 3];
let a = &mut v;
let b = &mut v;   // E0499
a.push(4);
```

- `a` is still live at the last line, so
- taking `b` while it is live is **rejected**
  1. end the first borrow earlier, or
  2. split the slice with `split_at_mut`

| borrow | how many | writes |
|:--|:-:|--:|
| `&v` | any number | no |
| `&mut v` | one | yes |

> Shared xor mutable: the whole rule in three words.
"""
THOUGHT = "The user asks about exclusive borrows in Rust. A short failing example helps most: two mutable borrows of one vector."
CJK = """日本語の文章も正しく折り返されます。幅の広い文字は二桁を占めるので、折り返しの位置に注意が必要です。

- 項目その一 🎉 **太字**
- 👩‍💻 項目その二

| 言語 | 挨拶 |
|--|--|
| 日本語 | こんにちは |
| 한국어 | 안녕하세요 |
"""
LONG_CODE = "```python\n" + "result = " + " + ".join(f"value_{i}" for i in range(24)) + "\nshort = 1\n```\n"


@dataclass
class Scene:
    """A running app in front of the camera."""

    app: Any
    pilot: Any
    engine: FakeEngine

    async def settle(self) -> None:
        self.app.on_wake()
        for _ in range(3):
            await self.pilot.pause()

    async def run(self, seconds: float) -> None:
        """Let time pass in small steps, as the app sees it."""
        for _ in range(int(seconds / STEP_S)):
            self.engine.advance(STEP_S)
            self.app.on_wake()
        await self.settle()

    async def finish(self) -> None:
        for _ in range(2000):
            if self.engine.idle and not self.app.state.busy:
                break
            self.engine.advance(STEP_S)
            self.app.on_wake()
        await self.settle()

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.settle()

    async def ask(self, text: str = PROMPT, seconds: float | None = None) -> None:
        self.app.chat.composer.put(text)
        await self.press("enter")
        await (self.finish() if seconds is None else self.run(seconds))


Steps = Callable[[Scene], Awaitable[None]]


@dataclass(frozen=True)
class Picture:
    steps: Steps
    words: tuple[str, ...]
    size: tuple[int, int] = WIDE
    script: FakeScript = field(default_factory=FakeScript)
    ui: UiConfig = field(default_factory=UiConfig)
    ready: bool = True
    no_color: bool = False
    kept: bool = False
    """With conversations on disk."""

    def stage(self, places: Any = None) -> tuple[QwenChatApp, Steps]:
        """The app, and what brings it to the state of the picture."""
        engines: list[FakeEngine] = []

        def factory(_config: Any, emit: Any) -> FakeEngine:
            engines.append(FakeEngine(emit, self.script, manual=True))
            return engines[-1]

        app = QwenChatApp(
            factory, self.ui, places=places if self.kept else None,
            clock=lambda: engines[-1].now if engines else 1000.0, wall=lambda: "09:41",
        )  # fmt: skip

        async def before(pilot: Any) -> None:
            while not engines:
                await pilot.pause()
            scene = Scene(app, pilot, engines[-1])
            await scene.run(10 if self.ready else 0)
            await self.steps(scene)
            await scene.settle()

        return app, before  # type: ignore[return-value]


def script(*replies: FakeReply | str, **more: Any) -> FakeScript:
    made = tuple(FakeReply(r) if isinstance(r, str) else r for r in replies) or (FakeReply(ANSWER, THOUGHT),)
    return FakeScript(replies=made, **more)


def steps(*given: tuple[str, Any]) -> Steps:
    """Steps as data: ("ask", 12.0), ("press", "f2"), ("run", 1.0), ("ask", "text")."""

    async def run(s: Scene) -> None:
        for what, value in given:
            if what == "press":
                await s.press(*value.split())
            elif what == "type":
                s.app.chat.composer.put(value)
                await s.settle()
            elif what == "ask" and isinstance(value, str):
                await s.ask(value)
            elif what == "ask":
                await s.ask(PROMPT, value)
            else:
                await s.run(value)

    return run


NOTHING = steps()
LONG = " ".join(f"word{i}" for i in range(2000))
TALK = script()
NO_MTP = replace(FakeScript().model, has_mtp=False)
BROKEN = script(
    load_error=CheckpointError(
        "There is no config.json in /models/qwen.", "Check [model] path, or choose another with F6."
    )
)
EIO = script(FakeReply(ANSWER, error=StorageError("Reading experts of layer 17 failed: Input/output error.", "Check the disk; the next prompt may work."), error_after=60))  # fmt: skip


async def _paste(s: Scene) -> None:
    s.app.chat.composer.put("Summarise " + "\n".join(f"line {i}" for i in range(4812)))
    await s.settle()


async def _sessions(s: Scene) -> None:
    await s.ask("Borrow checker questions")
    await s.press("ctrl+n")
    await s.ask("A recipe for bread")
    await s.press("ctrl+s")


async def _bad_setting(s: Scene) -> None:
    await s.press("f7")
    s.app.screen.query_one("#temperature").value = "9"
    await s.settle()


async def _full(s: Scene) -> None:
    await s.ask("go")
    s.app.chat.composer.put("One more question")
    await s.press("enter")


async def _scrolled(s: Scene) -> None:
    await s.ask(PROMPT, 60)
    await s.press("pageup")
    await s.run(6)


SMALL = replace(FakeScript().model, context=48)
SIZES = {"wide": WIDE, "normal": NORMAL, "narrow": NARROW, "tiny": TINY}

PICTURES: dict[str, Picture] = {
    **{
        f"empty_{n}": Picture(NOTHING, ("Ask something", *(["ctx"] if n != "tiny" else [])), size)
        for n, size in SIZES.items()
    },
    **{
        f"streaming_{n}": Picture(steps(("ask", 13.0)), ("split_at_mut", "| borrow", "esc stop"), size, TALK)
        for n, size in SIZES.items()
    },
    **{
        f"done_{n}": Picture(steps(("ask", PROMPT)), ("three words", *(["tok/s"] if n == "wide" else [])), size, TALK)
        for n, size in SIZES.items()
    },
    "loading": Picture(
        steps(("run", 0.55), ("ask", 0.0)), ("loading weights", "queued", "A prompt sent now waits"), WIDE, TALK, ready=False
    ),
    "prefill": Picture(
        steps(("type", "word " * 400), ("press", "enter"), ("run", 6.0)), ("prompt ", "tok/s", "left"), NORMAL,
        script("x", prefill_rate=40.0),
    ),
    "thinking": Picture(steps(("ask", 1.0)), ("Thinking", "thinking 00:0"), NORMAL, TALK),
    "thought_open": Picture(steps(("ask", PROMPT), ("press", "ctrl+o"), ("press", "ctrl+home")), ("▾ Thought for", "┊ The user asks"), NORMAL, TALK),
    "stopped": Picture(steps(("ask", 9.0), ("press", "escape"), ("run", 1.0)), ("■ stopped",), NORMAL, TALK),
    "error_in_reply": Picture(steps(("ask", PROMPT)), ("! Reading experts of layer 17", "Check the disk"), NORMAL, EIO),
    "load_failed": Picture(NOTHING, ("could not be loaded", "no config.json", "F6"), WIDE, BROKEN),
    "load_failed_narrow": Picture(NOTHING, ("could not be loaded", "no config.json"), NARROW, BROKEN),
    "mtp_warm": Picture(steps(("ask", 4.0)), ("◐ WARM", "drafts seen"), WIDE, script(LONG, warm_drafts=10**6)),
    "mtp_parked": Picture(steps(("ask", 12.0)), ("‖ PARKED", "drafting is parked"), WIDE, script(FakeReply(LONG, park_after=40))),
    "mtp_off": Picture(
        steps(("ask", 12.0), ("press", "ctrl+t"), ("run", 6.0)), ("○ OFF (you)", "MTP off from token", "┊"), WIDE, script(LONG)
    ),
    "mtp_off_narrow": Picture(steps(("ask", 12.0), ("press", "ctrl+t"), ("run", 6.0)), ("○ OFF",), NARROW, script(LONG)),
    "mtp_fallback": Picture(steps(("ask", 14.0)), ("▲ FALLBACK", "32/32", "tripped 1×"), WIDE, script(FakeReply(LONG, accept=(0.0,)))),
    "mtp_fallback_filling": Picture(steps(("ask", 4.0)), ("▮", "/32", "accept 0%"), WIDE, script(FakeReply(LONG, accept=(0.0,)))),
    "mtp_unavailable": Picture(steps(("ask", 4.0)), ("– n/a", "no MTP layer"), WIDE, script(LONG, model=NO_MTP)),
    "cache_cold": Picture(steps(("ask", 4.0)), ("hit 6.",), WIDE, script(LONG, disk=FakeDisk(warm_steps=150))),
    "cache_hot": Picture(steps(("ask", 30.0)), ("hit 9",), WIDE, script(LONG, disk=FakeDisk(hit_rate=0.97))),
    "ssd_slow": Picture(steps(("ask", 20.0)), ("p95 3", "stall"), WIDE, script(LONG, disk=FakeDisk(median_ms=14.0))),
    "ssd_no_reads": Picture(steps(("ask", 8.0)), ("no reads: every expert",), WIDE, script(LONG, disk=FakeDisk(reads=False))),
    "ssd_page_cache": Picture(steps(("ask", 8.0)), ("page cache 42%",), WIDE, script(LONG, disk=FakeDisk(cached_share=0.42))),
    "scrolled_back": Picture(_scrolled, ("new lines · ctrl+end to follow",), NORMAL, script(LONG)),
    "queued": Picture(steps(("ask", 9.0), ("ask", 0.2)), ("queued Why",), NORMAL, TALK),
    "paste_token": Picture(_paste, ("[pasted 4,812 lines",), NORMAL, TALK),
    "long_code": Picture(steps(("ask", "code")), ("python", "value_23", "copy"), NORMAL, script(LONG_CODE)),
    "cjk": Picture(steps(("ask", "挨拶は？ 🙂")), ("こんにちは", "項目その二"), NORMAL, script(CJK)),
    "metrics_strip": Picture(steps(("ask", 13.0), ("press", "f2")), ("cache", "ssd p95"), WIDE, TALK),
    "metrics_off": Picture(steps(("ask", 13.0), ("press", "f2"), ("press", "f2")), ("rust",), WIDE, TALK),
    "metrics_page": Picture(steps(("ask", 13.0), ("press", "f3")), ("Panels · 120 s", "MEMORY", "CONTEXT"), WIDE, TALK),
    "suggestions": Picture(steps(("type", "/m")), ("/mtp", "/model", "auto|fixed|off"), NORMAL),
    "palette": Picture(steps(("press", "ctrl+p")), ("Commands", "/thoughts", "choose"), WIDE),
    "palette_filtered": Picture(steps(("press", "ctrl+p"), ("press", "t h i n k")), ("Thinking on, off", "/think"), NORMAL),
    "help": Picture(steps(("press", "f1")), ("Send the prompt", "Everywhere"), WIDE),
    "help_tiny": Picture(steps(("press", "f1")), ("Writing",), TINY),
    "conversations": Picture(_sessions, ("Borrow checker questions", "A recipe for bread", "del delete", "^R rename"), NORMAL, script("Yes."), kept=True),
    "settings": Picture(steps(("press", "f7")), ("System prompt", "temperature", "top_k"), NORMAL),
    "settings_error": Picture(_bad_setting, ("number from 0 to 5",), NORMAL),
    "models": Picture(steps(("press", "f6")), ("Built-in demo model", "hf download"), NORMAL),
    "context_full": Picture(_full, ("The context is full", "Start a new chat with this prompt"), NORMAL, script(LONG, model=SMALL)),
    "message_focused": Picture(steps(("ask", PROMPT), ("press", "tab")), ("Two live",), NORMAL, TALK),
    "too_small": Picture(NOTHING, ("need 24×6",), (23, 5)),
    "no_color": Picture(steps(("ask", 13.0), ("press", "ctrl+t"), ("run", 2.0)), ("○ OFF (you)", "┊"), WIDE, TALK, no_color=True),
    "ascii": Picture(steps(("ask", 13.0)), ("MTP DRAFT", "* ON", "copy"), WIDE, TALK, UiConfig(ascii=True)),
    **{
        f"theme_{name}": Picture(steps(("ask", 13.0)), ("● ON", "rust"), WIDE, TALK, UiConfig(theme=name))
        for name in ("ansi", "ansi-light", "coal", "ember", "frost", "moss", "paper", "plum", "sage")
    },
}  # fmt: skip


def text_of(svg: str) -> str:
    """The words of a picture, each in its column."""
    import html

    from rich.cells import cell_len

    rows: dict[float, str] = {}
    for x, y, text in re.findall(r'<text class="[\w-]+-r\d+" x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', svg):
        row = rows.get(float(y), "")
        row += " " * (round(float(x) / CELL) - cell_len(row)) + html.unescape(text).replace("\xa0", " ")
        rows[float(y)] = row
    return "\n".join(row.rstrip() for _, row in sorted(rows.items()))
