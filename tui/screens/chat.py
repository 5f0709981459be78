"""The chat screen: its layout, and what goes where when the state has changed. What keys do is in screens/actions."""

from __future__ import annotations

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.geometry import Size
from textual.widgets import Static

from .. import commands
from ..attach import attachments, rough_tokens, suggest
from ..greeting import greeting
from ..keys import ACTIONS
from ..text import numbers
from ..text.sanitise import one_line
from ..widgets.bar import Bar
from ..widgets.composer import Composer
from ..widgets.metrics import MetricsStrip, SidePanel
from ..widgets.status import header, hints, status
from ..widgets.suggestions import Suggestions
from ..widgets.transcript import Transcript
from .actions import ChatActions
from .dialogs import DialogActions
from .turn_actions import TurnActions

__all__ = ["ChatScreen"]

DIGITS_EVERY_S = 0.5
PAINTED_S = 0.05
"""From the first paint to what comes next: time for the terminal to show it, and for the first key."""
LEAST = (24, 6)
"""Columns and rows below which only a sentence is shown; a reply goes on all the same."""


class ChatScreen(ChatActions, TurnActions, DialogActions):
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (50, "-narrow"), (72, "-normal"), (104, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (14, "-low"), (22, "-mid"), (32, "-tall")]  # noqa: RUF012
    AUTO_FOCUS = "#composer"
    BINDINGS = [  # noqa: RUF012
        Binding(a.keys, a.id, a.what, id=a.id, show=False, priority=a.priority) for a in ACTIONS if a.scope == "app"
    ]

    def __init__(self, size: Size) -> None:
        """`size` is the terminal's: classes that came only with the first layout would have every style worked out again."""
        wide = [name for least, name in self.HORIZONTAL_BREAKPOINTS or () if size.width >= least]
        tall = [name for least, name in self.VERTICAL_BREAKPOINTS or () if size.height >= least]
        super().__init__(classes=f"{wide[-1]} {tall[-1]}")
        self._drafts = {}
        self._digits_at = 0.0
        self._stage: tuple[object, ...] = ()
        """What the status line says in words; its digits follow at their own pace."""

    def compose(self) -> ComposeResult:
        app = self.chat_app
        yield Bar(id="header", keep_right=True)
        with Horizontal(id="body"):
            yield Transcript(app.state, id="transcript")
            yield SidePanel(id="side")
        yield MetricsStrip(id="strip")
        with Vertical(id="bottom"):
            yield Suggestions(id="suggestions")
            yield Bar(id="queued")
            with Horizontal(id="prompt"):
                yield Static("❯", id="mark", markup=False)
                yield Composer(id="composer")
        yield Bar(id="status")
        yield Bar(id="hints")
        yield Static(f"terminal too small (need {LEAST[0]}×{LEAST[1]})", id="too-small", markup=False)

    def on_mount(self) -> None:
        self.transcript = self.query_one("#transcript", Transcript)
        self.composer = self.query_one("#composer", Composer)
        self.side = self.query_one("#side", SidePanel)
        self.strip = self.query_one("#strip", MetricsStrip)
        self.suggestions = self.query_one("#suggestions", Suggestions)
        self.composer.suggestions = self.suggestions
        self.composer.suggest = self._suggested
        self.composer.submit = self.submit_text
        self.transcript.ascii = self.chat_app.ui.ascii
        self.apply_metrics()
        self.show_all()
        self.call_after_refresh(self.set_timer, PAINTED_S, self._begin)

    def _begin(self) -> None:
        """What the first paint does not wait for: the panels and the engine, with all that they import."""
        from ..panels.base import find_panels

        ui = self.chat_app.ui
        self.side.panels = self.strip.panels = find_panels(ui.panel_order, ui.panel_hide)
        self.show_all()
        self.chat_app.open_engine()

    def on_resize(self) -> None:
        self.apply_metrics()
        self.call_after_refresh(self.show_all)

    # ---- drawing

    @property
    def sizes(self) -> tuple[bool, bool]:
        """(wide, narrow) by the breakpoints."""
        width = self.app.size.width
        return width >= 104, width < 72

    def show_all(self) -> None:
        """Everything, whatever the clock says."""
        self._digits_at = 0.0
        self.show()

    def show(self) -> None:
        """After events were applied: text at once, digits at most twice a second."""
        if not self.is_running or not hasattr(self, "transcript"):
            return
        app, state = self.chat_app, self.chat_app.state
        now = app.clock()
        wide, narrow = self.sizes
        self.transcript.narrow, self.transcript.times = narrow, app.ui.timestamps
        if not state.turns:
            self.transcript.welcome = greeting(state, self.transcript.column, app.key)
        self.transcript.sync()
        self._show_queued()
        due = now - self._digits_at >= DIGITS_EVERY_S or not state.busy
        if due:
            self._digits_at = now
            self.query_one("#header", Bar).show(*header(state, wide, narrow))
            self.show_metrics()
            app.draw_pages()
        stage = (state.phase, state.running and state.running.status, state.mtp, state.mtp_notice, state.notice)
        if due or stage != self._stage:
            self._stage = stage
            self._show_status(now, narrow)

    def _show_status(self, now: float, narrow: bool) -> None:
        app, state = self.chat_app, self.chat_app.state
        width = self.app.size.width - 2
        left, right = status(state, now, narrow, app.ui.ascii, app.key("stop"))
        selected = self.focused is self.transcript
        keys = hints(app.keys, width, state, selected, app.ui.ascii)
        if narrow:
            right = hints(app.keys, width - left.cell_length - 2, state, selected, app.ui.ascii)
        self.query_one("#status", Bar).show(left, right)
        self.query_one("#hints", Bar).show(keys)

    def show_metrics(self) -> None:
        app = self.chat_app
        if not self.side.panels:
            return
        view = app.view()
        if self.side.display:
            self.side.show(view)
        if self.strip.display:
            self.strip.show(view)

    def apply_metrics(self) -> None:
        """Side, strip or nothing, by the setting and the room there is."""
        mode = self.chat_app.metrics
        wide, _ = self.sizes
        self.set_class(self.app.size.width < LEAST[0] or self.app.size.height < LEAST[1], "-small")
        small = self.has_class("-small")
        self.side.display = mode == "full" and wide and not small
        self.strip.display = (mode == "strip" or (mode == "full" and not wide)) and not small

    def _show_queued(self) -> None:
        state = self.chat_app.state
        bar = self.query_one("#queued", Bar)
        key, said, hint = self.chat_app.key, [], ""
        if self.editing is not None:
            before = one_line(state.turns[self.editing].text, 40)
            said += [("editing ", "bold $text-accent"), f"“{before}”: what follows it will be left out  "]
            hint = f"{key('stop')} leaves it"
        if state.queued is not None:
            first, more = state.queued.split("\n", 1)[0], state.queued.count("\n")
            said += [("queued ", "bold $text-accent"), first + (f" (+{numbers.plural(more, 'line')})" if more else "")]
            hint = f"{key('send')} edits it"
        bar.display = bool(said)
        bar.show(Content.assemble(*said), Content.styled(hint, "$text-muted"))

    # ---- what widgets report

    @on(Composer.Changed)
    def _typed(self) -> None:
        self.composer.list_open()
        self._show_attached()

    def _suggested(self) -> list[tuple[str, str]]:
        text = self.composer.text
        if text.startswith("/"):
            return [(c.name, f"{c.takes}  {c.what}".strip()) for c in commands.matching(text)]
        word = self.composer.word_at_cursor()
        if word.startswith("@") and len(word) > 1:
            found = suggest(word)
            return [] if found == [word] else [(name, "") for name in found]
        return []

    def _show_attached(self) -> None:
        """Say how much the attached files would add, before they are sent."""
        state = self.chat_app.state
        written = self.composer.written
        found = attachments(written) if "@" in written else []
        said = ""
        if found:
            problem = next((a.problem for a in found if a.problem), "")
            about = numbers.count(rough_tokens(sum(a.n_bytes for a in found)))
            said = problem or f"{numbers.plural(len(found), 'file')} attached, about {about} tokens"
        if said or self._attached:
            state.notice, self._attached = said, said
            self.show_all()

    _attached = ""

    def on_descendant_focus(self) -> None:
        self.show_all()  # other keys act now

    @on(Composer.QuitAsked)
    def _quit_asked(self) -> None:
        self.action_quit()

    def on_paste(self, event: events.Paste) -> None:
        """A paste that nothing with the focus took is for the prompt."""
        self.composer.focus()
        self.composer.post_message(events.Paste(event.text))

    @on(Transcript.Typed)
    def _typed_elsewhere(self, event: Transcript.Typed) -> None:
        self.composer.focus()
        self.composer.insert(event.character)

    @on(Transcript.Clicked)
    def _clicked(self, event: Transcript.Clicked) -> None:
        if event.action == "thought":
            self.transcript.fold(event.turn)
        elif event.action == "copy_code":
            self.copy_text(self.transcript.codes(event.turn)[event.index], "code block")
