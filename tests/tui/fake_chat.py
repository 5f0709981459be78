"""Run the interface over the scripted engine in a terminal: `python tests/tui/fake_chat.py [speed]`. Not a test."""

from __future__ import annotations

import sys

from qwen_chat_mlx.engine.config import EngineConfig
from qwen_chat_mlx.engine.fake import FakeDisk, FakeEngine, FakeReply, FakeScript
from qwen_chat_mlx.tui.app import QwenChatApp

RUST = """Two live `&mut` references to the same value would let one *invalidate* what the other points at.
The borrow checker forbids it, see `List<int>` and <answer>42</answer>:

```rust
let mut v = vec![1, 2, 3];
let a = &mut v;
let b = &mut v;   // E0499
a.push(4);
```

- `a` is still live at the last line, so
- taking `b` while it is live is **rejected**, and this item is long enough that it has to be wrapped with a hanging indent
  1. nested one
  2. nested two

| rule | example | cost |
|:--|:-:|--:|
| one writer | `&mut v` | 0 |
| many readers | `&v`, `&v` | 12.5 |

> Shared xor mutable: the whole rule in three words.

So `split_at_mut` hands out *two* disjoint slices, and both may be written at once.
"""
THOUGHT = "The user asks about exclusive borrows. " * 12


def factory(speed: float = 1.0):
    script = FakeScript(
        load_s=3.0,
        prefill_rate=60.0,
        disk=FakeDisk(warm_steps=30),
        replies=(FakeReply(RUST, THOUGHT), FakeReply("Short and plain."), FakeReply(RUST * 3, accept=(0.0,))),
    )
    return lambda config, emit: FakeEngine(emit, script, speed=speed)


if __name__ == "__main__":
    make = factory(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
    raise SystemExit(QwenChatApp(make, engine_config=EngineConfig()).run())
