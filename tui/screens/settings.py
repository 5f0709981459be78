"""Settings of this chat: system prompt, thinking, sampling. They hold from the next reply on and are not written to the config.

Every field is checked by the declaration of its setting, so the words of an error are the config's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static, TextArea

from ...engine.config import EngineConfig, Setting, check, settings_of
from ...engine.errors import ConfigError
from ..config_text import shown
from ..text.sanitise import clean
from .picker import SafeInput

__all__ = ["SAMPLING", "ChatSettings", "SettingsScreen", "read_value"]

MUTED = "$text-muted"
SAMPLING: dict[str, Setting] = {s.field: s for s in settings_of(EngineConfig) if s.table == "sampling"}
ALIASES = {"temp": "temperature", "max": "max_tokens", "top-k": "top_k", "top-p": "top_p", "min-p": "min_p"}


@dataclass(frozen=True, slots=True)
class ChatSettings:
    system: str
    think: bool | None
    sampling: dict[str, Any] = field(default_factory=dict)
    """Only what differs from the config."""


def read_value(name: str, text: str) -> Any:
    """A sampling value as typed; empty and the setting's own word mean "as configured" (None). Raises ConfigError."""
    s = SAMPLING[name]
    text = text.strip()
    if not text:
        return None
    value: Any = text
    for kind in (int, float):
        try:
            value = kind(text)
            break
        except ValueError:
            continue
    return check(s, value)


class SafeTextArea(TextArea):
    """A text whose pastes go through the sanitiser."""

    async def _on_paste(self, event: events.Paste) -> None:
        event.text = clean(event.text)  # TextArea's own handler follows and puts it in


class SettingsScreen(ModalScreen["ChatSettings | None"]):
    BINDINGS = [  # noqa: RUF012
        Binding("escape", "cancel", show=False, priority=True),
        Binding("ctrl+s,f7", "save", show=False),  # not before a field has what was typed before it
    ]

    def __init__(self, now: ChatSettings, configured: EngineConfig) -> None:
        super().__init__()
        self._now, self._configured = now, configured

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog", classes="form"):
            yield Static(Content.styled("Settings of this chat", "bold $text-primary"), id="dialog-title")
            with VerticalScroll():
                yield Static(Content("System prompt"))
                area = SafeTextArea(self._now.system, id="system", soft_wrap=True, compact=True)
                area.cursor_blink = False
                yield area
                with Horizontal(classes="field"):
                    yield Static(Content("think"), classes="label")
                    word = "auto" if self._now.think is None else "on" if self._now.think else "off"
                    yield SafeInput(word, "on, off or auto", id="think")
                for name, s in SAMPLING.items():
                    with Horizontal(classes="field"):
                        yield Static(Content(name), classes="label")
                        value = self._now.sampling.get(name)
                        word = str(shown(s, getattr(self._configured, s.field)))
                        hint = "as the model has it" if word == "model" else word
                        yield SafeInput("" if value is None else str(value), hint, id=name)
            yield Static(Content(""), id="problem")
            said = Content.assemble(("^S", "bold"), (" apply  ", MUTED), ("tab", "bold"), (" next field  ", MUTED))
            yield Static(said + Content.assemble(("esc", "bold"), (" close without a change", MUTED)), id="dialog-keys")

    def on_mount(self) -> None:
        self.query_one("#system").focus()

    def on_resize(self) -> None:
        """The fields take what the rows around them leave of the screen."""
        self.query_one(VerticalScroll).styles.max_height = max(3, int(self.app.size.height * 0.9) - 9)

    @on(Input.Changed)
    def _changed(self) -> None:
        self._read()

    def _read(self) -> ChatSettings | None:
        problem, sampling = "", {}
        word = self.query_one("#think", SafeInput).value.strip().lower() or "auto"
        if word not in ("on", "off", "auto"):
            problem = f"think takes on, off or auto, not {word!r}."
        for name in SAMPLING:
            try:
                value = read_value(name, self.query_one(f"#{name}", SafeInput).value)
            except ConfigError as e:
                problem = problem or e.message
                continue
            if value is not None:
                sampling[name] = value
        self.query_one("#problem", Static).update(Content.styled(clean(problem), "$text-error"))
        if problem:
            return None
        system = clean(self.query_one("#system", TextArea).text).strip()
        return ChatSettings(system, {"on": True, "off": False}.get(word), sampling)

    def action_save(self) -> None:
        new = self._read()
        if new is not None:
            self.dismiss(new)

    def action_cancel(self) -> None:
        self.dismiss(None)
