"""The command with a scripted engine behind it: `python fake_command.py SCRIPT_JSON ARGV...`, for tests on pipes and PTYs."""

import json
import os
import sys

from qwen_chat_mlx import engine
from qwen_chat_mlx.engine import errors
from qwen_chat_mlx.engine.fake import FakeEngine, FakeReply, FakeScript
from qwen_chat_mlx.tui.terminal import supervisor


def install(given: dict) -> None:
    """Put a FakeEngine behind the engine's door. `given`: FakeScript fields, replies as dicts, `speed`, `log` (a file), `noise`,
    `crash`, `spawn` (the chat is a new program even where a fork would do)."""
    given = dict(given)
    speed = given.pop("speed", 100.0)
    log = given.pop("log", None)
    crash = given.pop("crash", False)
    noise = given.pop("noise", "").encode()
    if given.pop("spawn", False):
        supervisor._forks_safely = lambda: False
    for name in ("load_error",):
        if name in given:
            kind, message, hint = given[name]
            given[name] = getattr(errors, kind)(message, hint)
    replies = tuple(
        FakeReply(**{**r, **({"error": getattr(errors, r["error"][0])(*r["error"][1:])} if "error" in r else {})})
        for r in given.pop("replies", [{}])
    )
    script = FakeScript(replies=replies, **given)

    class Logged(FakeEngine):
        def submit(self, request):
            if log:
                with open(log, "a", encoding="utf-8") as f:
                    said = [[m.role, m.text] for m in request.messages]
                    print(json.dumps([said, request.think, request.max_tokens, request.raw_prompt]), file=f)
            super().submit(request)

    def open_engine(config, emit):
        if crash:
            raise RuntimeError("made to fail")
        os.write(1, noise)
        os.write(2, noise)
        return Logged(emit, script, speed=speed)

    engine.open_engine = open_engine


if __name__ == "__main__":
    install(json.loads(sys.argv[1]))
    from qwen_chat_mlx.tui.cli import main

    code = main(sys.argv[2:])
    if os.environ.get("REPORT_MODULES"):
        print("modules", *[m for m in ("mlx", "textual", "numpy") if m in sys.modules], file=sys.stderr)
    raise SystemExit(code)
