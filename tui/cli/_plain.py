"""The chat line by line: for screen readers, dumb terminals and pipes. Writes no escape code and never goes back on a line.

It has the engine's door, the conversations and the sanitiser in common with the full-screen chat, and nothing else.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ...engine import events as ev
from ...engine.config import EngineConfig, check, settings_of
from ...engine.errors import QwenChatError, RequestError, StorageError, TemplateError, UsageError, nearest
from ...engine.types import GenerationRequest, Message, TextKind
from ..config import Loaded
from ..config_text import parse_scalar
from ..conversation_records import SavedTurn, made_as
from ..conversations import Conversation, Store
from ..terminal.instances import Instances
from ..text import numbers
from ..text.folding import folded
from ..text.sanitise import clean, one_line
from ._flags import tell_of_theme, typed
from ._plain_reply import PROGRESS_EVERY_S, PlainReply
from ._talk import Talk
from .chat import which_conversation

__all__ = ["converse"]

HELP = """/help            this list
/new             start another conversation
/regen           answer the last prompt again
/continue        go on with a reply that was cut off
/mtp MODE        drafting: auto, fixed or off
/think WORD      thinking: on, off or auto
/set NAME VALUE  a sampling setting, such as /set temperature 0.7
/system TEXT     system prompt of this conversation
/title TEXT      title of this conversation
/export md|json [FILE]
/chats           saved conversations; /resume ID opens one
/quit            leave (Ctrl+D does too)
A line that ends in \\ goes on in the next one. Ctrl+C stops a reply. A prompt that starts with / is written //."""


def converse(args: argparse.Namespace, loaded: Loaded) -> int:
    """Talk until the input ends. Raises the error that ended the engine."""
    prompt = typed(args.prompt)
    tell_of_theme(loaded)
    store = Store(loaded.places.conversations)
    temporary = args.temporary or not loaded.ui.save_history
    resumed = which_conversation(args, loaded)
    conversation = store.new(temporary=temporary) if resumed is None else store.open(resumed)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    with Talk(loaded.engine) as talk:
        chat = PlainChat(loaded, store, conversation, talk, temporary)
        try:
            chat.run(prompt)
        finally:
            chat.conversation.close()
            chat.instances.release()
    return 0


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


class PlainChat:
    def __init__(
        self, loaded: Loaded, store: Store, conversation: Conversation, talk: Talk, temporary: bool
    ) -> None:  # fmt: skip
        self.conversation = conversation
        self.instances = Instances(loaded.places.running)
        self._loaded, self._store, self._talk, self._temporary = loaded, store, talk, temporary
        self._system, self._think, self._drafting = loaded.ui.system, loaded.ui.think, loaded.engine.mtp
        self._changes: dict[str, Any] = {}
        self._model: ev.ModelReady | None = None
        self._asked = 0
        self._unsaved = ""
        self._interactive = sys.stdin is not None and sys.stdin.isatty()
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: self._say(HELP), "/new": self._new, "/regen": self._again, "/continue": self._go_on,
            "/mtp": self._mtp, "/think": self._set_think, "/set": self._set, "/system": self._set_system,
            "/title": self._title, "/export": self._export, "/chats": self._chats, "/resume": self._resume,
        }  # fmt: skip

    def run(self, first: str) -> None:
        self._load()
        self._opened()
        if first:
            self._say(f"you> {first}")
            self._guarded(lambda: self._ask(first))
        for line in self._lines():
            word, _, rest = line.partition(" ")
            if word in ("/quit", "/exit"):
                return
            if word.startswith("/") and not word.startswith("//"):
                self._guarded(lambda word=word, rest=rest: self._command(word, rest.strip()))
            elif line.strip():
                text = line[1:] if line.startswith("//") else line
                self._guarded(lambda text=text: self._ask(text))

    # ---- input and output

    def _say(self, text: str) -> None:
        print(folded(clean(text), sys.stdout), flush=True)

    def _lines(self) -> Iterator[str]:
        """Prompts, joined where a line ends in a backslash. Ctrl+C twice within two seconds ends them."""
        interrupted = 0.0
        while True:
            try:
                line = self._line()
            except KeyboardInterrupt:
                if time.monotonic() - interrupted < 2.0:
                    self._say("")
                    return
                interrupted = time.monotonic()
                self._say("\n(Ctrl+C again, or /quit, leaves.)")
                continue
            if line is None:
                if self._interactive:
                    self._say("")
                return
            yield line

    def _line(self) -> str | None:
        parts: list[str] = []
        while True:
            if self._interactive:
                print("...> " if parts else "you> ", end="", flush=True)
            stdin = sys.stdin
            raw = stdin.buffer.readline() if stdin is not None else b""
            if not raw:
                return "\n".join(parts) if parts else None
            try:
                line = raw.decode((self._interactive and stdin and stdin.encoding) or "utf-8").rstrip("\r\n")
            except UnicodeDecodeError:
                self._say(
                    "Error: That line is not UTF-8 text and was left out. Convert it first, for example with iconv."
                )
                continue
            line = line.removeprefix("\ufeff")
            if not line.endswith("\\"):
                return "\n".join([*parts, line])
            parts.append(line[:-1])

    def _guarded(self, act: Callable[[], None]) -> None:
        """Expected errors are said and the chat goes on, unless the engine is gone."""
        try:
            act()
        except QwenChatError as e:
            if self._talk.dead:
                raise
            self._say(f"Error: {e}")

    # ---- the model

    def _load(self) -> None:
        self._say(f"Loading {one_line(self._loaded.engine.model)}.")
        shown = time.monotonic()
        for event in self._talk.ready():
            if isinstance(event, ev.ModelLoading) and time.monotonic() - shown > PROGRESS_EVERY_S:
                shown = time.monotonic()
                amount = f": {event.done:,} of {event.total:,} {event.unit}" if event.total else ""
                self._say(f"Still {event.phase}{amount}.")
            if isinstance(event, ev.StatsTaken):
                memory = event.stats.memory
                problem = self.instances.plan(memory.plan_bytes, memory.limit_bytes)
                if problem:
                    self._say(problem)
            if isinstance(event, ev.ModelReady):
                self._model = event
                self._say(f"{event.name} is ready after {numbers.duration(event.load_s)}; /help lists the commands.")
                for note in event.notes:
                    self._say(note)

    def _ask(self, text: str) -> None:
        keep = len(self.conversation.turns)
        self._saved(lambda: self.conversation.add_turn("user", text))
        self._new_reply(keep)

    def _new_reply(self, keep: int, dropped: Sequence[SavedTurn] = ()) -> None:
        """Where the prompt is refused, the first `keep` turns stay and those come back that were dropped for it."""
        try:
            self._reply()
        except (RequestError, TemplateError):
            last = self.conversation.turns[-1]
            if not last.text and not last.thinking:
                self._saved(lambda: self.conversation.rewind(keep))
                self._saved(lambda: self.conversation.take_back(dropped))
            raise

    def _reply(self, continue_last: bool = False) -> None:
        self._asked += 1
        request = GenerationRequest(
            id=f"plain-{self._asked}",
            messages=self._messages(),
            sampling_changes=tuple(sorted((k, v) for k, v in self._changes.items() if k != "max_tokens")),
            think=self._think,
            max_tokens=self._changes.get("max_tokens", self._loaded.engine.max_tokens),
            continue_last=continue_last,
        )
        before: tuple[int, ...] = ()
        if continue_last:
            before = self.conversation.turns[-1].token_ids
        else:
            settings = {"chat.system": self._system, "chat.think": self._think, "mtp.mode": self._drafting}
            settings |= {f"sampling.{k}": v for k, v in self._changes.items()}
            settings = {k: v for k, v in settings.items() if v not in (None, "")}
            model = self._model.name if self._model else ""
            self._saved(lambda: self.conversation.add_turn("assistant", model=model, settings=settings))
        shown = PlainReply(self._keep)
        try:
            for event in self._talk.reply(request):
                shown.take(event)
        except KeyboardInterrupt:
            for event in self._talk.stop(request.id):
                shown.take(event)
            shown.end()
            self._say("(stopped)")
        except QwenChatError:
            shown.end()
            self._saved(lambda: self.conversation.finish("error", self.conversation.turns[-1].token_ids))
            raise
        else:
            shown.end()
        self._finish(shown.finished, before)

    def _finish(self, event: ev.TurnFinished | None, before: tuple[int, ...]) -> None:
        fingerprint = self._model.tokenizer_fingerprint if self._model else ""
        if event is None:
            self._saved(lambda: self.conversation.finish("cancelled", self.conversation.turns[-1].token_ids))
            return
        t = event.stats.throughput
        rate = t.decode_rate
        measured = {"tokens": t.generated_tokens} | {
            k: v for k, v in (("ttft_s", t.ttft_s), ("tok_per_s", rate)) if v is not None
        }
        self._saved(
            lambda: self.conversation.finish(event.finish_reason, (*before, *event.token_ids), fingerprint, measured)
        )
        said = numbers.plural(t.generated_tokens, "token") + (f", {numbers.rate(rate)} tokens a second" if rate else "")
        ends = {
            "length": "; ended at the token limit, /continue goes on",
            "context": "; the context is full, /new starts anew",
        }
        self._say(f"({said}{ends.get(event.finish_reason, '')})")

    def _messages(self) -> tuple[Message, ...]:
        system = (Message("system", self._system),) if self._system else ()
        return (*system, *self.conversation.messages())

    def _saved(self, write: Callable[[], object]) -> None:
        """Run something that writes to the disk; a refusal is said, once until it is another, and the talk goes on."""
        try:
            write()
        except StorageError as e:
            if str(e) != self._unsaved:
                self._unsaved = str(e)
                self._say(f"Not saved: {e}")

    def _keep(self, kind: TextKind, text: str) -> None:
        """Keep text of the reply that runs."""
        self._saved(lambda: self.conversation.add_text(kind, text))

    # ---- commands

    def _command(self, word: str, rest: str) -> None:
        if word not in self._commands:
            near = nearest(word, self._commands, 1)
            said = f"did you mean {near[0]}?" if near else "/help lists them."
            raise UsageError(f"There is no command {word}; {said}", "A prompt that starts with / is written //.")
        self._commands[word](rest)

    def _opened(self) -> None:
        """Say what is gone on with; its prompts are made as they were, unless the command line says otherwise."""
        c = self.conversation
        self._changes = {}
        ui = self._loaded.ui
        self._system, self._think = made_as(c.turns, ui.system, ui.think, self._loaded.origins)
        if c.turns:
            self._say(f"Going on with {one_line(c.title)} ({numbers.plural(len(c.turns), 'message')}).")
        for note in c.notes:
            self._say(note)
        if c.read_only:
            raise StorageError(f"This conversation is read-only. {c.read_only}", "`qwen-chat --plain` starts another.")

    def _new(self, _: str) -> None:
        self._switch(self._store.new(temporary=self._temporary))
        self._opened()
        self._say("A new conversation.")

    def _switch(self, to: Conversation) -> None:
        self.conversation.close()
        self.conversation = to

    def _resume(self, rest: str) -> None:
        chosen = self._store.find(rest)
        if chosen == self.conversation.id:
            raise UsageError("That is this conversation.")
        found = self._store.open(chosen)
        if found.read_only:
            found.close()
            raise StorageError(f"{found.id} is read-only. {found.read_only}")
        self._switch(found)
        self._opened()

    def _chats(self, rest: str) -> None:
        found = self._store.list(rest)
        for entry in found[:20]:
            self._say(
                f"{entry.id}  {one_line(entry.title, 60)}" + (f"  ({one_line(entry.problem)})" if entry.problem else "")
            )
        if len(found) > 20:
            self._say(f"and {len(found) - 20:,} more; /chats WORDS narrows them down.")
        if not found:
            self._say("There are none.")

    def _again(self, _: str) -> None:
        turns = self.conversation.turns
        asked = next((i for i in range(len(turns) - 1, -1, -1) if turns[i].role == "user"), None)
        if asked is None:
            raise UsageError("There is nothing to answer again.")
        dropped = turns[asked + 1 :]
        self._saved(lambda: self.conversation.rewind(asked + 1))
        self._new_reply(asked + 1, dropped)

    def _go_on(self, _: str) -> None:
        turns = self.conversation.turns
        if not turns or turns[-1].role != "assistant" or turns[-1].finish_reason == "stop":
            raise UsageError("There is no reply that was cut off.")
        self._reply(continue_last=True)

    def _mtp(self, rest: str) -> None:
        s = next(s for s in settings_of(EngineConfig) if s.field == "mtp")
        self._drafting = check(s, rest)
        self._talk.engine.set_mtp(self._drafting)
        self._say(f"Drafting is {rest}.")

    def _set_think(self, rest: str) -> None:
        words = {"on": True, "off": False, "auto": None}
        if rest not in words:
            raise UsageError("/think takes on, off or auto.")
        self._think = words[rest]
        self._say(f"Thinking is {rest}.")

    def _set(self, rest: str) -> None:
        name, _, value = rest.partition(" ")
        known = {s.key: s for s in settings_of(EngineConfig) if s.table == "sampling"}
        if name not in known:
            near = nearest(name, known, 1)
            raise UsageError(
                f"There is no sampling setting {name!r}.",
                f"Did you mean {near[0]}?" if near else f"There are {', '.join(known)}.",
            )
        found = check(known[name], parse_scalar(value.strip()))
        self._changes.pop(name, None)
        if found is not None:
            self._changes[name] = found
        self._say(f"{name} is {value.strip()}.")

    def _set_system(self, rest: str) -> None:
        self._system = rest
        self._say("The system prompt is set." if rest else "There is no system prompt now.")

    def _title(self, rest: str) -> None:
        self.conversation.rename(rest)
        self._say(f"The title is {one_line(self.conversation.title) or 'made from the first prompt'}.")

    def _export(self, rest: str) -> None:
        from ..export import file_name, save, to_json, to_markdown

        kind, _, name = rest.partition(" ")
        c = self.conversation
        if kind not in ("md", "json"):
            raise UsageError("/export takes md or json, and a file name if you like.")
        if not c.turns:
            raise UsageError("There is nothing to export yet.")
        text = to_markdown(c.title, c.turns) if kind == "md" else to_json(c.id, c.title, c.turns)
        self._say(f"Wrote {save(Path(name.strip() or file_name(c.title, kind)), text)}.")
