"""Everything that opens a dialog or a page from the chat, and the commands that take words. A mixin of ChatScreen."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.content import Content

from ...engine.errors import QwenChatError
from .. import commands
from ..keys import ACTIONS, key_label
from ..text import numbers
from ..text.sanitise import one_line
from .base import ChatBase

if TYPE_CHECKING:
    from ...engine.types import MtpMode
    from .picker import Item, Picked

__all__ = ["DialogActions"]

GET_ONE = (
    "The real model: hf download Qwen/Qwen3.8-Flash-Next-FP8 (185.5 GB on disk, from 24 GB of "
    "memory), then choose it here or start with --model Qwen/Qwen3.8-Flash-Next-FP8."
)

MODES: tuple[MtpMode, ...] = ("auto", "fixed", "off")


class DialogActions(ChatBase):
    # ---- commands

    def action_palette(self) -> None:
        from .picker import Item, Picker

        keys = self.chat_app.keys
        ascii_only = self.chat_app.ui.ascii
        hidden = {"send", "newline", "history_prev", "history_next", "palette", "message_prev", "message_next", "fold"}
        items = [
            Item(c.name, c.what, f"{c.name}  {key_label(keys[c.action], ascii_only) if c.action else ''}".rstrip())
            for c in commands.COMMANDS
        ]
        have = {c.action for c in commands.COMMANDS}
        items += [
            Item(f"action:{a.id}", a.what, key_label(keys[a.id], ascii_only))
            for a in ACTIONS if a.id not in have and a.id not in hidden
        ]  # fmt: skip

        def source(wanted: str) -> list[Item]:
            words = wanted.casefold().split()
            return [i for i in items if all(w in f"{i.label} {i.detail}".casefold() for w in words)]

        self.app.push_screen(Picker("Commands", source), self._picked_command)

    def _picked_command(self, picked: Picked | None) -> None:
        if picked is None:
            return
        name = picked.item.id
        if name.startswith("action:"):
            getattr(self, f"action_{name.removeprefix('action:')}")()
        elif commands.BY_NAME[name].needs:
            self.composer.put(name + " ")
        else:
            self.call_after_refresh(commands.BY_NAME[name].run, self, "")

    def action_help(self) -> None:
        from .pages import TextPage, help_text

        app = self.chat_app
        self.app.push_screen(TextPage("Help", lambda width: help_text(app.keys, app.ui.ascii, width)))

    def action_log(self) -> None:
        from .pages import TextPage

        lines = [Content(line) for line in self.chat_app.log_lines] or [
            Content.styled("nothing was noted", "$text-muted")
        ]
        self.app.push_screen(TextPage("Log", lambda _: Content("\n").join(lines)))

    def action_metrics_full(self) -> None:
        from .pages import MetricsPage

        self.app.push_screen(MetricsPage(self.side.panels, self.chat_app.view))

    # ---- drafting, thinking, sampling

    def set_mtp_word(self, word: str) -> None:
        if word in MODES:
            self.chat_app.set_mtp(word)  # type: ignore[arg-type]
        else:
            self.chat_app.say(f"/mtp takes auto, fixed or off, not {word!r}.", "warning")

    def action_think(self) -> None:
        state = self.chat_app.state
        state.think = {None: True, True: False, False: None}[state.think]
        self._said_think()

    def set_think_word(self, word: str) -> None:
        known = {"on": True, "off": False, "auto": None}
        if word not in known:
            self.chat_app.say(f"/think takes on, off or auto, not {word!r}.", "warning")
            return
        self.chat_app.state.think = known[word]
        self._said_think()

    def _said_think(self) -> None:
        state = self.chat_app.state
        word = {None: "as the model likes", True: "on", False: "off"}[state.think]
        state.notice = f"thinking {word} from the next reply on"
        self.show_all()

    def action_settings(self) -> None:
        from .settings import ChatSettings, SettingsScreen

        state = self.chat_app.state

        def done(new: ChatSettings | None) -> None:
            if new is not None:
                state.system, state.think, state.sampling = new.system, new.think, new.sampling
                state.notice = "settings hold from the next reply on"
                self.show_all()

        now = ChatSettings(state.system, state.think, state.sampling)
        self.app.push_screen(SettingsScreen(now, self.chat_app.engine_config), done)

    def set_word(self, text: str) -> None:
        """`/set temp 0.7`; `/set temp` takes the change back."""
        from .settings import ALIASES, SAMPLING, read_value

        name, _, value = text.partition(" ")
        name = ALIASES.get(name, name)
        if name not in SAMPLING:
            self.chat_app.say(f"/set knows {', '.join(SAMPLING)}, not {one_line(name, 40)!r}.", "warning")
            return
        try:
            new = read_value(name, value)
        except QwenChatError as e:
            self.chat_app.say(e.message, "warning")
            return
        sampling = {k: v for k, v in self.chat_app.state.sampling.items() if k != name}
        self.chat_app.state.sampling = sampling | ({} if new is None else {name: new})
        self.chat_app.state.notice = f"{name} {'as configured' if new is None else new} from the next reply on"
        self.show_all()

    def set_system(self, text: str) -> None:
        if not text:
            self.action_settings()
            return
        self.chat_app.state.system = text
        self.chat_app.state.notice = "system prompt set from the next reply on"
        self.show_all()

    # ---- conversations

    def action_new_chat(self) -> None:
        self.new_chat()

    def new_chat(self, *, temporary: bool = False) -> None:
        """Begin another conversation, with the settings of the config."""
        self._let_go()
        self.chat_app.recorder.start_new(temporary=temporary)
        self.chat_app.use_configured()
        self.composer.focus()
        self.show_all()

    def _let_go(self) -> None:
        """Before the conversation goes: what was typed for it is back in the composer, what came of it is on record."""
        self.leave_editing()
        self.action_unqueue()
        self.stop_reply()
        self.chat_app.take_in()

    def rename(self, title: str) -> None:
        self.chat_app.recorder.rename(title)
        self.show_all()

    def action_sessions(self) -> None:
        self.open_sessions("")

    def open_sessions(self, words: str) -> None:
        from .picker import Picker

        recorder = self.chat_app.recorder
        if recorder.store is None:
            self.chat_app.say("Conversations are not kept: [history] save is false.")
            return
        keys = {"delete": "delete", "ctrl+z": "undo delete", "ctrl+r": "rename"}
        self.app.push_screen(
            Picker("Conversations", self._sessions, keys=keys, filter=words, placeholder="title, id or text"),
            self._picked_session,
        )

    def _sessions(self, wanted: str) -> list[Item]:
        from .picker import Item

        store = self.chat_app.recorder.store
        if store is None:
            return []
        now, current = time.time(), self.chat_app.recorder.conversation.id

        def item(entry: Any, below: str = "") -> Item:
            said = entry.problem or f"{numbers.plural(entry.turns, 'message')} · {_ago(now - entry.changed)}"
            title = one_line(entry.title, 80) or "untitled"
            return Item(entry.id, title, one_line(said, 60), below, entry.id == current, bool(entry.problem))

        found = [item(e) for e in store.list(wanted)]
        if len(wanted) >= 3:
            known = {i.id for i in found}
            for hit in store.search(wanted):
                if hit.entry.id not in known and len(found) < 200:
                    known.add(hit.entry.id)
                    found.append(item(hit.entry, one_line(hit.excerpt, 120)))
        return found

    _deleted: str | None = None

    def _picked_session(self, picked: Picked | None) -> None:
        from .picker import NOTHING

        if picked is None:
            return
        app, store = self.chat_app, self.chat_app.recorder.store
        assert store is not None
        try:
            if picked.action == "undo delete":
                self.undelete()
            elif picked.item is NOTHING:
                pass
            elif picked.action == "delete":
                if picked.item.id == app.recorder.conversation.id:
                    self.new_chat()
                store.delete(picked.item.id)
                self._deleted = picked.item.id
                app.say(f"Deleted “{picked.item.label}”. Ctrl+Z in the list, or /undelete, brings it back.")
            elif picked.action == "rename":
                self._ask_title(picked)
                return
            else:
                self.resume(picked.item.id)
                return
        except QwenChatError as e:
            app.say(str(e), "warning")
        self.call_after_refresh(self.open_sessions, picked.filter)

    def _ask_title(self, chosen: Picked) -> None:
        """Give the chosen conversation the title that is typed; the one that is open stays."""
        from .picker import Item, Picker

        def done(picked: Picked | None) -> None:
            if picked is not None and picked.filter != chosen.item.label:
                self._retitle(chosen.item.id, picked.filter)
            self.call_after_refresh(self.open_sessions, chosen.filter)

        def source(title: str) -> list[Item]:
            return [Item(chosen.item.id, one_line(title) or "the first words of the conversation")]

        self.app.push_screen(Picker("Rename", source, filter=chosen.item.label, placeholder="title"), done)

    def _retitle(self, conversation_id: str, title: str) -> None:
        recorder = self.chat_app.recorder
        if conversation_id == recorder.conversation.id:
            self.rename(title)
            return
        assert recorder.store is not None
        try:
            recorder.store.rename(conversation_id, title)
        except QwenChatError as e:
            self.chat_app.say(str(e), "warning")

    def undelete(self) -> None:
        store = self.chat_app.recorder.store
        if store is None or self._deleted is None:
            self.chat_app.say("Nothing was deleted since the start.")
            return
        try:
            store.restore(self._deleted)
            self._deleted = None
            self.app.clear_notifications()  # what they say of it holds no more
        except QwenChatError as e:
            self.chat_app.say(str(e), "warning")

    def resume(self, conversation_id: str) -> None:
        """Go on with a conversation from disk; nothing happens when it is the one that is open."""
        if conversation_id == self.chat_app.recorder.conversation.id:
            return
        self._let_go()
        try:
            self.chat_app.resume(conversation_id)
        except QwenChatError as e:
            self.chat_app.say(str(e), "warning")
        self.chat_app.show_problem()
        self.composer.focus()
        self.transcript.follow()
        self.show_all()

    def export(self, argument: str) -> None:
        from .. import export

        kind, _, path = argument.partition(" ")
        if kind not in ("md", "json", "markdown"):
            self.chat_app.say("/export takes md or json, and a path if you like.", "warning")
            return
        kind = "json" if kind == "json" else "md"
        conversation = self.chat_app.recorder.conversation
        made = export.to_json(conversation.id, conversation.title, conversation.turns) if kind == "json" else export.to_markdown(
            conversation.title, conversation.turns
        )  # fmt: skip
        try:
            written = export.save(Path(path or export.file_name(conversation.title, kind)), made)
        except QwenChatError as e:
            self.chat_app.say(str(e), "warning")
        else:
            self.chat_app.say(f"Wrote {one_line(written)}.")

    # ---- models and themes

    def action_models(self) -> None:
        from ..models import DEMO, find_models
        from .picker import Item, Picker

        app = self.chat_app
        recent = app.recall("recent_models")
        found = find_models(app.engine_config.model, recent if isinstance(recent, list) else [])
        items = []
        for m in found:
            said = m.problem or " · ".join(
                w for w in (m.kind, numbers.size(m.size_bytes) if m.size_bytes else "", m.origin) if w
            )
            below = one_line(m.path, 120) if m.path != m.name else ""
            items.append(Item(m.path, m.name, said, below, m.path == app.engine_config.model, bool(m.problem)))

        def source(wanted: str) -> list[Item]:
            own = (
                [Item(wanted, wanted, "open this folder")]
                if "/" in wanted and wanted not in {i.id for i in items}
                else []
            )
            words = wanted.casefold().split()
            return own + [i for i in items if all(w in f"{i.label} {i.below}".casefold() for w in words)]

        failure = app.state.failure
        said = [failure.message, failure.hint] if failure is not None else []
        if app.engine_config.model == DEMO:
            said += [GET_ONE] if failure is not None else ["The built-in model is tiny.", GET_ONE]
        note = " ".join(filter(None, said))
        picker = Picker(
            "Models", source, placeholder="type to filter, or a folder", note=note, at=app.engine_config.model
        )
        self.app.push_screen(picker, lambda p: self.switch_model(p.item.id) if p is not None else None)

    def switch_model(self, path: str) -> None:
        """Open another model; the one that is open stays where the folder tells that the other cannot be opened."""
        from ..models import problem_of

        problem = problem_of(path)
        if problem:
            self.chat_app.say(f"{one_line(path, 200)} cannot be opened: {problem}.", "warning")
            return
        self.stop_reply()
        self.chat_app.switch_model(path)
        self.show_all()

    def retry_model(self) -> None:
        self.switch_model(self.chat_app.engine_config.model)

    def choose_theme(self, name: str) -> None:
        app = self.chat_app
        if name:
            app.use_theme(name, remember=True)
            return
        from ..themes import list_themes
        from .picker import Item, Picker

        before = app.ui.theme
        palettes, problems = list_themes(app.places.themes if app.places else None)
        items = [Item(p.name, p.title, one_line(p.name, 60), marked=p.name == before) for p in palettes]

        def source(wanted: str) -> list[Item]:
            return [i for i in items if wanted.casefold() in f"{i.label} {i.id}".casefold()]

        def done(picked: Picked | None) -> None:
            app.use_theme(picked.item.id if picked else before, remember=picked is not None)

        note = one_line(problems[0], 200) if problems else ""
        self.app.push_screen(
            Picker("Themes", source, note=note, on_move=lambda i: app.use_theme(i.id), at=before), done
        )


def _ago(seconds: float) -> str:
    for size, word in ((86400 * 30, "month"), (86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            n = int(seconds // size)
            return f"{n} {word}{'s' if n > 1 else ''} ago"
    return "just now"
