"""What every key and command of the chat does: a mixin of ChatScreen, so that the layout and the deeds stay apart."""

from __future__ import annotations

from .. import commands
from ..attach import expand
from ..text.sanitise import clean
from .base import ChatBase

__all__ = ["ChatActions"]


class ChatActions(ChatBase):
    # ---- prompts

    def submit_text(self, text: str) -> None:
        """Run a command; else send, queue, or bring the queued prompt back when there is one already."""
        app, state = self.chat_app, self.chat_app.state
        if not text.strip():
            self.action_unqueue()
            return
        command, argument, near = commands.parse(text)
        if near and text != self._asked_about:
            self._asked_about = text
            state.notice = f"Did you mean {near}? {app.key('send')} again sends it as it is."
            self.show_all()
            return
        if command is not None:
            if command.needs and not argument:
                return
            self.composer.take()
            command.run(self, argument)
            return
        if state.phase == "failed":
            app.say("The model is not loaded: /model shows the models, /retry tries again.", "warning")
            return
        prompt, problem = expand(text, self.composer.written)
        if problem:
            app.say(problem, "warning")
            return
        self._drafts[clean(prompt)] = self.composer.text
        if state.busy:
            self._queue(prompt)
        elif state.context_limit and state.context_used >= state.context_limit and self.editing is None:
            self._context_full(prompt)
        else:
            self.composer.take()
            self.send_text(prompt)

    _asked_about = ""
    _sent_editing: int | None = None
    _drafts: dict[str, str]
    """Prompt as it was sent -> as it stood in the composer."""

    def as_typed(self, prompt: str) -> str:
        """A prompt as it stood in the composer before its pastes and files were put in."""
        return self._drafts.get(clean(prompt)) or self.composer.foreign(prompt)

    def _queue(self, prompt: str) -> None:
        state = self.chat_app.state
        before, state.queued = state.queued, prompt
        self.composer.put(self.as_typed(before) if before is not None else "")
        self.show_all()

    def send_text(self, prompt: str) -> None:
        """Send a prompt in place of the one that is being edited, else behind all turns."""
        self.composer.remember(self.as_typed(prompt))
        self._sent_editing = self.editing
        if self.editing is not None:
            self.rewind_to(self.editing)
            self.editing = None
            self._bring_back(self._aside)
        self.chat_app.start(self.chat_app.state.ask(prompt))
        self.transcript.follow()
        self.show_all()

    def _bring_back(self, text: str) -> None:
        """Put a text before anything that was typed since."""
        self.composer.put(f"{text}\n{self.composer.text}".strip("\n"))

    def give_back(self) -> None:
        """A prompt was refused: it goes back to where it was typed, before anything typed since, and why is said."""
        state = self.chat_app.state
        refused, state.refused = state.refused, None
        if refused is None:
            return
        if refused.text:
            self.editing = self._sent_editing
            self._aside = self.composer.take() if self.editing is not None else ""
            self._bring_back(self.as_typed(refused.text))
        self.chat_app.say(f"{refused.failure.message} {refused.failure.hint}".strip(), "warning")
        self.show_all()

    def send_queued(self) -> None:
        """Called when a reply ended or the model is ready."""
        state = self.chat_app.state
        if state.queued is not None and not state.busy and state.phase == "ready":
            text, state.queued = state.queued, None
            self.send_text(text)

    def _context_full(self, text: str) -> None:
        """The choice at 100 %: nothing is ever dropped silently."""
        from .picker import Item, Picked, Picker

        items = [
            Item("new", "Start a new chat with this prompt"),
            Item("edit", "Edit an earlier prompt: what follows it is left out"),
            Item("anyway", "Send it anyway: the engine says whether it fits"),
        ]

        def done(picked: Picked | None) -> None:
            if picked is None:
                return
            if picked.item.id == "edit":
                self.action_edit()
                return
            self.composer.take()
            if picked.item.id == "new":
                self.new_chat()
            self.send_text(text)

        self.app.push_screen(Picker("The context is full", lambda _: items, placeholder=""), done)

    def action_unqueue(self) -> None:
        state = self.chat_app.state
        if state.queued is not None:
            text, state.queued = state.queued, None
            self.composer.put(f"{self.composer.text}\n{self.as_typed(text)}".strip("\n"))
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
        if self.suggestions.open:
            self.suggestions.show(())
        elif self.selections:
            self.clear_selection()
        elif not self.stop_reply() and not (self.composer.has_focus and self.leave_editing()):
            self.composer.focus()

    def action_interrupt(self) -> None:
        app = self.chat_app
        selected = self.get_selected_text() or self.composer.selected_text
        if selected:
            self.copy_text(selected, "selection")
            self.clear_selection()
            self.composer.move_cursor(self.composer.cursor_location)
        elif self.stop_reply() or self.leave_editing():
            pass
        elif self.composer.text:
            self.composer.put("")
        elif app.asked_to_quit(f"{app.key('interrupt')} again quits."):
            app.leave()

    def action_quit(self) -> None:
        """Quit at once, but ask once more while a reply runs."""
        app = self.chat_app
        if app.state.running is None or app.asked_to_quit("A reply is running: once more quits."):
            app.leave()

    def action_redraw(self) -> None:
        self.app.refresh(repaint=True, layout=True)
        self.show_all()

    # ---- drafting, panels, thoughts

    def action_toggle_mtp(self) -> None:
        state = self.chat_app.state
        self.chat_app.set_mtp("off" if state.wanted_mtp != "off" else state.last_mode)

    def action_toggle_metrics(self) -> None:
        wide, _ = self.sizes
        after = {
            "full": "strip" if wide else "off",
            "strip": "off",
            "off": "full",
        }  # where it is not wide, full is a strip
        self.chat_app.metrics = after[self.chat_app.metrics]
        self.chat_app.choose("ui.metrics", self.chat_app.metrics)
        self.apply_metrics()
        self.call_after_refresh(self.show_all)

    def action_toggle_thoughts(self) -> None:
        self.transcript.fold()

    # ---- the external editor

    def action_editor(self) -> None:
        """Write the prompt in $VISUAL or $EDITOR."""
        from ..editor import edit_text

        text, problem = edit_text(self.composer.expanded, self.chat_app.suspended)
        if problem:
            self.chat_app.say(problem, "warning")
        else:
            self.composer.put_edited(text.rstrip("\n"))

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
        if self.composer.complete():
            return
        if self.transcript.has_focus or not self.chat_app.state.turns:
            self.composer.focus()
        else:
            self.transcript.focus()

    # ---- copying

    def copy_text(self, text: str, what: str) -> None:
        self.chat_app.copy(text, what)
