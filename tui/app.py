"""The application: engine, state and bridge in one place, the clock that drains them, and the screens on top.

The first paint happens before the engine is asked for. A timer runs only while a load or a reply does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

from textual.app import App
from textual.message import Message
from textual.timer import Timer

from ..engine.config import EngineConfig
from ..engine.contract import Emit, Engine
from ..engine.errors import QwenChatError
from ..engine.events import EngineFailed, ModelReady, TurnFinished
from ..engine.types import GenerationRequest, MtpMode
from .bridge import Bridge
from .config import UiConfig
from .keys import keymap
from .screens.chat import ChatScreen
from .state import ChatState

__all__ = ["EngineFactory", "QwenChatApp"]

EngineFactory = Callable[[EngineConfig, Emit], Engine]
"""`engine.open_engine`, or one with its signature; must return at once."""

DRAIN_S = 1 / 15
DRAIN_MOST_S = 0.25


class Wake(Message, bubble=False):
    """Something arrived that should not wait for the next tick."""


class QwenChatApp(App[int]):
    CSS_PATH = "app.tcss"
    TITLE = "qwen-chat"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS = []  # noqa: RUF012

    def __init__(
        self,
        engine_factory: EngineFactory,
        ui_config: UiConfig | None = None,
        *,
        engine_config: EngineConfig | None = None,
        prompt: str = "",
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], str] | None = None,
    ) -> None:
        super().__init__()
        self.ui = ui_config or UiConfig()
        self.engine_config = engine_config or EngineConfig()
        self.clock = clock
        self.state = ChatState(clock, wall or (lambda: time.strftime("%H:%M")))
        self.state.loading_since_s = clock()
        self.state.system, self.state.think = self.ui.system, self.ui.think
        self.state.queued = prompt or None
        self.keys = keymap(self.ui.keys)
        self.metrics: str = self.ui.metrics
        self.limits = {
            name: getattr(self.ui, name) for name in ("acceptance_limits", "hit_rate_limits", "ssd_p95_limits")
        }
        self.engine: Engine | None = None
        self._engine_factory = engine_factory
        self._bridge = Bridge(lambda: self.post_message(Wake()))
        self._drain_timer: Timer | None = None
        self._drain_next = 0.0

    # ---- start and end

    def on_mount(self) -> None:
        self.set_keymap(self.keys)
        self._drain_timer = self.set_interval(DRAIN_S, self.drain, pause=True)
        self.push_screen(ChatScreen())
        self.call_after_refresh(self.open_engine)

    @property
    def chat(self) -> ChatScreen | None:
        return next((s for s in self.screen_stack if isinstance(s, ChatScreen)), None)

    def open_engine(self) -> None:
        """Ask for the engine; its events say what became of it."""
        try:
            self.engine = self._engine_factory(self.engine_config, self._bridge.emit)
        except QwenChatError as e:
            self._bridge.emit(EngineFailed(e.message, e.hint, None, True, type(e).__name__))
        self._watch()

    def leave(self) -> None:
        """Quit; the engine gets two seconds to end."""
        self._bridge.close()
        if self.engine is not None:
            self.engine.close(0.0)
        self.exit(0)

    async def on_unmount(self) -> None:
        if self.engine is not None:
            self.engine.close(2.0)

    # ---- the engine

    def start(self, request: GenerationRequest) -> None:
        self.engine_do("submit", request)
        self._watch()

    def engine_do(self, what: Literal["submit", "cancel", "set_mtp"], argument: Any) -> None:
        """Call the engine; a refusal is shown like a failure that it reported itself."""
        if self.engine is None:
            return
        try:
            getattr(self.engine, what)(argument)
        except QwenChatError as e:
            request_id = argument.id if isinstance(argument, GenerationRequest) else None
            self._bridge.emit(EngineFailed(e.message, e.hint, request_id, False, type(e).__name__))

    def set_mtp(self, mode: MtpMode) -> None:
        self.engine_do("set_mtp", mode)
        self._watch()

    def _watch(self) -> None:
        if self._drain_timer is not None:
            self._drain_timer.resume()

    def on_wake(self) -> None:
        self._drain_next = 0.0
        self.drain()

    def drain(self) -> None:
        """Apply what arrived and show it; slower when showing is slow, not at all when nothing runs."""
        begun = time.perf_counter()
        if begun < self._drain_next:
            return
        events = self._bridge.drain()
        for event in events:
            self.state.apply(event)
        ended = any(isinstance(e, (TurnFinished, EngineFailed, ModelReady)) for e in events)
        chat = self.chat
        if chat is not None:
            if ended:
                chat.send_queued()
                chat.show_all()
            else:
                chat.show()
        if not self.state.busy and self._drain_timer is not None:
            self._drain_timer.pause()
        took = time.perf_counter() - begun
        self._drain_next = begun + min(DRAIN_MOST_S, 4 * took) if 4 * took > DRAIN_S else 0.0

    # ---- small services for the screens

    def say(self, text: str, severity: Literal["information", "warning", "error"] = "information") -> None:
        """A note in the corner; never parsed as markup."""
        self.notify(text, severity=severity, markup=False, timeout=4)

    def copy(self, text: str, what: str) -> None:
        self.copy_to_clipboard(text)
        self.say(f"Sent the {what} to the terminal (OSC 52); whether it was copied is up to the terminal.")
