"""Print one answer and end; text that is piped in is appended to the prompt.

Only the answer goes to stdout, never the thinking; progress goes to stderr where that is a terminal.
"""

from __future__ import annotations

import argparse
import sys

from ._flags import add_model_flags, add_reply_flags, load_settings, tell_of_theme, typed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...engine.events import Event, TurnFinished
    from ...engine.types import GenerationRequest
    from ..config import Loaded

REQUEST_ID = "ask"
MOST_PIPED = 64 << 20
"""Bytes of stdin that are read at the most."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="*", help="what to ask; what is piped in follows it")
    add_model_flags(parser)
    add_reply_flags(parser)
    parser.add_argument("--raw", action="store_true", help="send the text as it is, without the chat template")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object at the end: text, token_ids, finish_reason, stats, seed",
    )


def run(args: argparse.Namespace) -> int:
    from ._talk import Progress, Talk

    loaded = load_settings(args)
    tell_of_theme(loaded)
    request = _request(loaded, _prompt(args.prompt, args.raw), args.raw)
    answer = _Answer(Progress(), streams=not args.json)
    with Talk(loaded.engine) as talk:
        try:
            for event in talk.reply(request):
                answer.take(event)
        except KeyboardInterrupt:
            for event in talk.stop(request.id):
                answer.take(event)
            answer.end(args.json)
            return 130
    answer.end(args.json)
    return 0


def _prompt(words: list[str], raw: bool) -> str:
    """The prompt from the command line and from stdin. Raises UsageError when both are empty, or one is no text."""
    from ...engine.errors import UsageError

    given = "" if words == ["-"] else typed(words)
    piped = ""
    if sys.stdin is not None and not sys.stdin.isatty():
        raw_bytes = sys.stdin.buffer.read(MOST_PIPED + 1)
        if len(raw_bytes) > MOST_PIPED:
            raise UsageError(
                f"More than {MOST_PIPED >> 20} MiB are piped in.", "That fits no model's context; pipe in a part of it."
            )
        try:
            piped = raw_bytes.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise UsageError(
                "What is piped in is not UTF-8 text.", "Convert it first, for example with iconv."
            ) from None
        if not raw:
            piped = piped.strip()
    prompt = given + piped if raw else "\n\n".join(part for part in (given, piped) if part)
    if not prompt.strip():
        raise UsageError("There is nothing to ask.", 'Give a prompt: qwen-chat ask "why is the sky blue?"')
    return prompt


def _request(loaded: Loaded, prompt: str, raw: bool) -> GenerationRequest:
    from ...engine.types import GenerationRequest, Message

    system = (Message("system", loaded.ui.system),) if loaded.ui.system else ()
    return GenerationRequest(
        id=REQUEST_ID,
        messages=() if raw else (*system, Message("user", prompt)),
        think=loaded.ui.think,
        max_tokens=loaded.engine.max_tokens,
        raw_prompt=prompt if raw else None,
    )


class _Answer:
    """The answer as it grows: to stdout at once, or kept for the JSON object."""

    def __init__(self, progress, streams: bool) -> None:
        from ..text.sanitise import Sanitiser

        self._progress = progress
        self._streams = streams
        self._on_terminal = sys.stdout.isatty()
        self._cleaner = Sanitiser() if self._on_terminal else None
        self._parts: list[str] = []
        self._finished: TurnFinished | None = None
        self._tokens = self._context = 0

    def take(self, event: Event) -> None:
        from ...engine.events import ModelReady, TextDelta, TurnFinished

        if isinstance(event, TextDelta):
            self._tokens += event.tokens
            if event.kind == "thinking" or not (self._streams and self._on_terminal):
                self._progress.say(f"{'thinking' if event.kind == 'thinking' else 'answering'} {self._tokens:,} tok")
            if event.kind == "answer" and event.text:
                self._parts.append(event.text)
                if self._streams:
                    self._write(self._cleaner.feed(event.text) if self._cleaner else event.text)
        elif isinstance(event, TurnFinished):
            self._finished = event
        elif isinstance(event, ModelReady):
            self._context = event.context
            for note in event.notes:
                self._progress.note(note)
        else:
            self._progress.event(event)

    def end(self, as_json: bool) -> None:
        """End the line, or print the object."""
        import json

        from . import say

        self._progress.clear()
        if as_json:
            print(json.dumps(self._object()), flush=True)
        elif self._parts:
            self._write("" if self._parts[-1].endswith("\n") else "\n")
        reason = self._finished.finish_reason if self._finished else ""
        if reason == "length":
            self._progress.note("(stopped at the token limit)")
        elif reason == "context":
            # Nobody asked for this end, so it is told wherever stderr goes.
            say(
                f"The answer is cut off: the context of {self._context:,} tokens is full. Shorten the prompt, or raise "
                "--context if it is below what the model has."
            )

    def _object(self) -> dict[str, object]:
        from dataclasses import asdict

        done = self._finished
        return {
            "text": "".join(self._parts),
            "token_ids": list(done.token_ids) if done else [],
            "finish_reason": done.finish_reason if done else "cancelled",
            "stats": asdict(done.stats) if done else None,
            "seed": done.seed if done else None,
        }

    def _write(self, text: str) -> None:
        if self._on_terminal:
            self._progress.clear()
            sys.stdout.write(
                text.encode(sys.stdout.encoding or "utf-8", "replace").decode(sys.stdout.encoding or "utf-8")
            )
        else:
            sys.stdout.buffer.write(text.encode("utf-8", "replace"))
        sys.stdout.flush()
