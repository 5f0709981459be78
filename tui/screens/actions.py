"""What every key and command of the chat does: a mixin of ChatScreen, so that the layout and the deeds stay apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..text.sanitise import one_line

if TYPE_CHECKING:
    from textual.screen import Screen

    from ..app import QwenChatApp
    from ..widgets.composer import Composer
    from ..widgets.transcript import Transcript

    Base = Screen[None]
else:
    Base = object

__all__ = ["ChatActions"]

QUIT_WITHIN_S = 2.0


class ChatActions(Base):
    if TYPE_CHECKING:
        transcript: Transcript
        composer: Composer

        @property
        def chat_app(self) -> QwenChatApp: ...
        def show(self) -> None: ...
        def show_all(self) -> None: ...
        def apply_metrics(self) -> None: ...

    _quit_asked_at = -1e9

    # ---- prompts

    def submit_text(self, text: str) -> None:
        """Send, queue, or bring the queued prompt back when there is one already."""
        app, state = self.chat_app, self.chat_app.state
        if state.phase == "failed":
            app.say("The model is not loaded: F6 shows what can be done.", "warning")
            return
        if state.busy:
            if state.queued is not None:
                before, state.queued = state.queued, self.composer.take()
                self.composer.put(before)
            else:
                state.queued = self.composer.take()
            self.show()
            return
        self.composer.take()
        self.send_text(text)

    def send_text(self, text: str) -> None:
        self.composer.remember(text)
        if not self.chat_app.state.title:
            self.chat_app.state.title = one_line(text, 48)
        self.chat_app.start(self.chat_app.state.ask(text))
        self.transcript.follow()
        self.show_all()

    def send_queued(self) -> None:
        """Called when a reply ended or the model is ready."""
        state = self.chat_app.state
        if state.queued is not None and not state.busy:
            text, state.queued = state.queued, None
            self.send_text(text)

    def action_unqueue(self) -> None:
        state = self.chat_app.state
        if state.queued is not None:
            text, state.queued = state.queued, None
            self.composer.put(f"{self.composer.text}\n{text}".strip("\n"))
            self.composer.focus()
            self.show()

    # ---- stopping and leaving

    def stop_reply(self) -> bool:
        """Stop the running reply; a queued prompt goes back into the composer. False when nothing ran."""
        turn = self.chat_app.state.running
        if turn is None:
            return False
        self.action_unqueue()
        self.chat_app.engine_do("cancel", turn.id)
        return True

    def action_stop(self) -> None:
        if self.selections:
            self.clear_selection()
        elif not self.stop_reply():
            self.transcript.focus_turn(None)
            self.composer.focus()

    def action_interrupt(self) -> None:
        app = self.chat_app
        selected = self.get_selected_text() or self.composer.selected_text
        if selected:
            self.copy_text(selected, "selection")
        elif self.stop_reply():
            pass
        elif self.composer.text:
            self.composer.put("")
        elif app.clock() - self._quit_asked_at <= QUIT_WITHIN_S:
            app.leave()
        else:
            self._quit_asked_at = app.clock()
            app.state.notice = "ctrl+c again quits"
            self.show()

    def action_quit(self) -> None:
        self.chat_app.leave()

    def action_redraw(self) -> None:
        self.app.refresh(repaint=True, layout=True)
        self.show_all()

    # ---- drafting, panels, thoughts

    def action_toggle_mtp(self) -> None:
        state = self.chat_app.state
        self.chat_app.set_mtp("off" if state.mtp_mode != "off" else state.last_mode)

    def action_toggle_metrics(self) -> None:
        modes = ("full", "strip", "off")
        self.chat_app.metrics = modes[(modes.index(self.chat_app.metrics) + 1) % 3]
        self.apply_metrics()
        self.call_after_refresh(self.show_all)

    def action_toggle_thoughts(self) -> None:
        self.transcript.fold()

    # ---- moving

    def action_scroll_up(self) -> None:
        self.transcript.page(-1)

    def action_scroll_down(self) -> None:
        self.transcript.page(1)

    def action_follow(self) -> None:
        self.transcript.follow()

    def action_top(self) -> None:
        self.transcript.scroll_to(y=0, animate=False)

    def action_focus_transcript(self) -> None:
        if self.transcript.has_focus or not self.chat_app.state.turns:
            self.composer.focus()
        else:
            self.transcript.focus()

    # ---- copying

    def copy_text(self, text: str, what: str) -> None:
        self.chat_app.copy(text, what)
