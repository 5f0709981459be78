"""The application: engine, state and bridge in one place, the clock that drains them, and the screens on top.

The first paint happens before the engine is asked for, and before what only its events and numbers need is imported. A timer
runs only while a load or a reply does.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from textual import events
from textual.app import App, SuspendNotSupported
from textual.binding import Binding
from textual.message import Message
from textual.timer import Timer

from ..engine.config import EngineConfig
from ..engine.contract import Emit, Engine
from ..engine.errors import QwenChatError
from . import textual_fixes
from .config import Live, UiConfig
from .keys import ACTIONS
from .looks import ConfiguredApp
from .places import Places
from .recorder import Recorder
from .screens.chat import ChatScreen
from .state import ChatState
from .terminal import interpreter
from .terminal.instances import Instances
from .text.layout import warm_up
from .text.sanitise import clean, one_line

if TYPE_CHECKING:
    from ..engine.events import Event
    from ..engine.types import GenerationRequest, MtpMode
    from .bridge import Bridge
    from .panels.base import View

__all__ = ["EngineFactory", "QwenChatApp"]

EngineFactory = Callable[[EngineConfig, Emit], Engine]
"""`engine.open_engine`, or one with its signature; must return at once."""

DRAIN_S = 1 / 12
DRAIN_MOST_S = 0.25
RECENT_MODELS = 8
QUIT_WITHIN_S = 2.0


class Wake(Message, bubble=False):
    """Something arrived that should not wait for the next tick."""


class QwenChatApp(ConfiguredApp, inherit_bindings=False):
    CSS_PATH = Path(__file__).with_name("app.tcss")
    TITLE = "qwen-chat"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS = [  # noqa: RUF012
        Binding(a.keys, f"on_chat({a.id!r})", a.what, id=a.id, show=False, priority=True)
        for a in ACTIONS
        if a.scope == "always"
    ]

    def __init__(
        self,
        engine_factory: EngineFactory,
        ui_config: UiConfig | None = None,
        *,
        engine_config: EngineConfig | None = None,
        places: Places | None = None,
        live: Live | None = None,
        prompt: str = "",
        resume: str | None = None,
        temporary: bool = False,
        released: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], str] | None = None,
    ) -> None:
        """`places` None keeps nothing on disk; `resume` is the id of a conversation; `live` follows the config file.

        `released` is a context in which another program's output reaches the terminal.
        """
        super().__init__(ui_config or UiConfig(), places, live)
        self.engine_config = engine_config or EngineConfig()
        self.clock = clock
        self.state = ChatState(clock, wall or (lambda: time.strftime("%H:%M")))
        self.state.loading_since_s = clock()
        self.use_configured()
        self.state.want_mtp(self.engine_config.mtp)
        self.state.queued = clean(prompt) or None
        folder = places.conversations if places is not None and self.ui.save_history else None
        self.recorder = Recorder(self.state, folder, temporary=temporary)
        self._resume = resume
        self.metrics: str = self.ui.metrics
        self.limits = {n: getattr(self.ui, n) for n in ("acceptance_limits", "hit_rate_limits", "ssd_p95_limits")}
        self.instances = Instances(places.running) if places is not None else None
        self._planned = 0
        self._not_direct = ""
        self.log_lines: deque[str] = deque(maxlen=500)
        self.focused_window = True
        self._quit_asked_s = -1e9
        self.engine: Engine | None = None
        self._engine_factory = engine_factory
        self._released = released
        self._bridge: Bridge | None = None
        self._drain_timer: Timer | None = None
        self._drain_next = 0.0

    def use_configured(self) -> None:
        """What a new chat begins with."""
        self.state.system, self.state.think, self.state.sampling = clean(self.ui.system), self.ui.think, {}

    def resume(self, conversation_id: str) -> None:
        """Go on with a conversation from disk, its prompts made as before. Raises UsageError or StorageError, and then
        changes nothing."""
        from .conversation_records import made_as

        self.recorder.resume(conversation_id)
        origins = self.live.loaded.origins if self.live is not None else {}
        turns = self.recorder.conversation.turns
        system, self.state.think = made_as(turns, self.ui.system, self.ui.think, origins)
        self.state.system, self.state.sampling = clean(system), {}

    # ---- start and end

    def get_driver_class(self) -> Any:
        textual_fixes.apply()
        return super().get_driver_class()

    def get_default_screen(self) -> ChatScreen:
        return ChatScreen(self.size)

    def on_mount(self) -> None:
        if self._theme_problem:
            self.say(self._theme_problem, "warning")
        self.use_keys()
        self.app_resume_signal.subscribe(self, self._back)
        self._drain_timer = self.set_interval(DRAIN_S, self.drain, pause=True)
        if self._resume is not None:
            try:
                self.resume(self._resume)
            except QwenChatError as e:
                self.say(str(e), "warning")
                self.call_after_refresh(self.action_on_chat, "unqueue")  # it was meant for another conversation
        self.show_problem()

    @property
    def chat(self) -> ChatScreen | None:
        return next((s for s in self.screen_stack if isinstance(s, ChatScreen)), None)

    def open_engine(self) -> None:
        """Ask for the engine; its events say what became of it."""
        from ..engine.events import EngineFailed
        from .bridge import Bridge

        interpreter.painted()
        bridge = self._bridge = Bridge(self._wake)
        try:
            self.engine = self._engine_factory(self.engine_config, bridge.emit)
        except QwenChatError as e:
            bridge.emit(EngineFailed(e.message, e.hint, None, True, type(e).__name__))
        self._watch()

    def switch_model(self, path: str) -> None:
        """Close this model and open another one; the conversation stays."""
        self.take_in()
        self.recorder.stop()
        if self._bridge is not None:
            self._bridge.close()
        old, self.engine = self.engine, None
        if old is not None:
            old.close(0.0)
        self.state.forget_model()
        self.state.loading_since_s = self.clock()
        self.engine_config = replace(self.engine_config, model=path, mtp=self.state.wanted_mtp)
        self.open_engine()

    def keys_changed(self) -> None:
        if self.chat is not None:
            self.chat.show_all()

    def action_on_chat(self, name: str) -> None:
        """An action of the chat, whatever page or dialog lies over it."""
        getattr(self.chat, f"action_{name}")()

    def asked_to_quit(self, question: str) -> bool:
        """True when the question was asked just now; else it is asked, and stays for as long as it can be answered."""
        now = self.clock()
        if now - self._quit_asked_s <= QUIT_WITHIN_S:
            return True
        self._quit_asked_s = now
        self.notify(question, markup=False, timeout=QUIT_WITHIN_S)
        return False

    def leave(self) -> None:
        """Quit; the engine gets two seconds to end."""
        self.take_in()
        self.recorder.close()
        if self._bridge is not None:
            self._bridge.close()
        if self.engine is not None:
            self.engine.close(0.0)
        self.exit(0)

    async def on_unmount(self) -> None:
        if self.instances is not None:
            self.instances.release()
        self.recorder.close()
        if self.engine is not None:
            self.engine.close(2.0)

    # ---- the engine

    def start(self, request: GenerationRequest, *, user: bool = True, record: bool = True) -> None:
        """Put the new turns on record, then ask the engine."""
        if record:
            s = self.state
            settings = {"chat.system": s.system, "chat.think": s.think, "mtp.mode": s.wanted_mtp}
            settings |= {f"sampling.{k}": v for k, v in s.sampling.items()}
            self.recorder.asked({k: v for k, v in settings.items() if v not in (None, "")}, user=user)
            self.show_problem()
        self.poll_config()
        self.engine_do("submit", request)
        self._watch()

    def engine_do(self, what: Literal["submit", "cancel", "set_mtp"], argument: Any) -> None:
        """Call the engine; a refusal is shown like a failure that it reported itself."""
        if self.engine is None or self._bridge is None:
            return
        try:
            getattr(self.engine, what)(argument)
        except QwenChatError as e:
            from ..engine.events import EngineFailed

            request_id = argument.id if what == "submit" else None
            self._bridge.emit(EngineFailed(e.message, e.hint, request_id, False, type(e).__name__))

    def set_mtp(self, mode: MtpMode) -> None:
        """Change how this model drafts, and any that is opened after it."""
        self.state.want_mtp(mode)
        self.engine_do("set_mtp", mode)
        self._watch()
        if self.chat is not None:
            self.chat.show_all()

    def _watch(self) -> None:
        if self._drain_timer is not None:
            self._drain_timer.resume()

    def _wake(self) -> None:
        self.post_message(Wake())

    def on_wake(self) -> None:
        self._drain_next = 0.0
        self.drain()

    def drain(self) -> None:
        """Apply what arrived and show it; slower when showing is slow, not at all when nothing runs."""
        begun = time.perf_counter()
        if begun < self._drain_next or self._bridge is None:
            return
        ended = self.take_in()
        if self.state.refused is not None and self.chat is not None:
            self.chat.give_back()
        self._mind_others()
        self._mind_disk()
        self.recorder.flush_due()
        if self.chat is not None:
            if ended:
                self.chat.send_queued()
                self.chat.show_all()
            else:
                self.chat.show()
        if not self.state.busy and self._drain_timer is not None:
            self._drain_timer.pause()
        took = time.perf_counter() - begun
        self._drain_next = begun + min(DRAIN_MOST_S, 4 * took) if 4 * took > DRAIN_S else 0.0

    def take_in(self) -> bool:
        """Apply what arrived and put it on record, without showing it; true where a load or a reply ended."""
        if self._bridge is None:
            return False
        from ..engine.events import EngineFailed, ModelReady, TurnFinished

        events_now = self._bridge.drain()
        for event in events_now:
            turn = self.state.running
            self.state.apply(event)
            self.recorder.apply(event, turn if turn is not None and _belongs(event, turn.id) else None)
        ended = [e for e in events_now if isinstance(e, (TurnFinished, EngineFailed, ModelReady))]
        for event in ended:
            self._ended(event)
        return bool(ended)

    def _ended(self, event: Event) -> None:
        from ..engine.events import EngineFailed, ModelReady

        if isinstance(event, ModelReady):
            threading.Thread(target=warm_up, name="warm-up", daemon=True).start()
            self.log_lines += self.state.model.notes if self.state.model is not None else ()
            path = self.engine_config.model
            recent = self.recall("recent_models")
            kept = [p for p in recent if p != path] if isinstance(recent, list) else []
            if not event.is_demo:
                self.remember(recent_models=[path, *kept][:RECENT_MODELS])
        elif isinstance(event, EngineFailed):
            self.log_lines.append(one_line(f"{event.kind}: {event.message} {event.hint}", 1000))
        if not isinstance(event, ModelReady) and self.ui.bell and not self.focused_window:
            self.bell()
        self.show_problem()

    def _mind_others(self) -> None:
        """Once per plan: warn when this chat and the others on the machine want more memory than it has."""
        s = self.state
        memory = s.stats.memory if s.stats is not None and s.phase != "failed" else None
        plan = memory.plan_bytes if memory is not None else 0
        if self.instances is None or plan == self._planned:
            return
        self._planned = plan
        problem = self.instances.plan(plan, memory.limit_bytes if memory is not None else 0)
        if problem:
            self.say(problem, "warning")

    def _mind_disk(self) -> None:
        """Once per reason: say why direct reads are not used; aloud only where the config insists on them."""
        reason = self.state.stats.ssd.buffered_reason if self.state.stats is not None else ""
        if reason == self._not_direct:
            return
        self._not_direct = reason
        said = one_line(f"Experts are read through the page cache: {reason}.", 1000)
        if reason and self.engine_config.direct_io == "on":
            self.say(f'{said} [offload] direct_io is "on".', "warning")
        elif reason:
            self.log_lines.append(said)

    def view(self) -> View:
        """What the panels read now."""
        from .panels.base import View

        return View(self.state, self.clock(), self.ui.ascii, self.limits)

    def _back(self, _app: App[int]) -> None:
        """The terminal was another program's: nothing of what was painted is there any more."""
        self.refresh(repaint=True, layout=True)

    def draw_pages(self) -> None:
        """Bring a page of panels on top up to date."""
        if isinstance(self.screen, ChatScreen):
            return
        from .screens.pages import MetricsPage

        if isinstance(self.screen, MetricsPage):
            self.screen.show()

    # ---- focus

    def on_app_focus(self, _event: events.AppFocus) -> None:
        self.focused_window = True
        self.poll_config()

    def on_app_blur(self, _event: events.AppBlur) -> None:
        self.focused_window = False

    # ---- small services for the screens

    def say(self, text: str, severity: Literal["information", "warning", "error"] = "information") -> None:
        """A note at the top; never parsed as markup."""
        said = clean(text)
        self.log_lines.append(one_line(said, 1000))
        self.notify(said, severity=severity, markup=False, timeout=5)

    def show_problem(self) -> None:
        """What could not be kept on disk, once."""
        problem, self.recorder.problem = self.recorder.problem, ""
        if problem:
            self.say(problem, "warning")

    def copy(self, text: str, what: str) -> None:
        from .terminal.clipboard import copy

        done = copy(text, self._write_raw, what)
        self.say(done.sentence)

    def _write_raw(self, sequence: str) -> None:
        if self._driver is not None:
            self._driver.write(sequence)

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """The terminal belongs to another program for a while."""
        try:
            handed_over = self.suspend()
            handed_over.__enter__()
        except SuspendNotSupported:
            raise OSError(0, "this terminal cannot be handed over") from None
        try:
            with self._released():
                yield
        finally:
            handed_over.__exit__(None, None, None)


def _belongs(event: Event, request_id: str) -> bool:
    """The event is about this request, or ends the engine under it."""
    own = getattr(event, "request_id", None)
    return own == request_id or bool(getattr(event, "fatal", False))
