"""A chat of five hundred turns: what is on the screen is bounded, and the first turn can still be read."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qwen_chat_mlx.engine.fake import FakeReply, FakeScript
from qwen_chat_mlx.tui.widgets.transcript import WINDOW

REPLY = """A few words first, with `code` and **bold**.

```python
def f(x):
    return [i for i in range(x)]
```

- one
- two
  1. nested

| a | b |
|---|--:|
| 1 | 2 |
"""
TURNS, EARLY = 500, 100


def rss_bytes() -> int:
    """Resident memory of this process; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0


@pytest.mark.slow
async def test_five_hundred_turns_keep_the_screen_small_and_the_first_one_in_reach(stage: Any) -> None:
    model = replace(FakeScript().model, context=1 << 22)
    script = FakeScript(replies=(FakeReply(REPLY),), model=model, step_s=0.0005, prefill_rate=1e9)
    async with stage(script) as s:
        widgets, memory = 0, 0
        for i in range(TURNS):
            s.chat.send_text(f"prompt {i}")
            await s.finish()
            if i == EARLY:
                gc.collect()
                widgets, memory = len(s.app.screen.query("*")), rss_bytes()
        gc.collect()
        assert len(s.app.state.turns) == 2 * TURNS
        assert len(s.app.screen.query("*")) == widgets
        assert rss_bytes() - memory < 64 << 20
        assert len(s.chat.transcript._starts) == WINDOW
        for _ in range(2 * TURNS // WINDOW + 2):
            await s.press("ctrl+home")
        assert s.rows[1] == "▏ prompt 0"
        assert "▏ prompt 0" in s.screen_text
        await s.press("ctrl+end")
        assert f"▏ prompt {TURNS - 1}" in s.text
        await s.ask("one more", 0.01)
        assert s.app.state.running is not None or s.app.state.turns[-1].status == "done"
