"""What can be done with a message: copy, edit and send again, answer again, go on. A mixin of ChatScreen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import ChatBase

if TYPE_CHECKING:
    from ..state import Turn

__all__ = ["TurnActions"]


class TurnActions(ChatBase):
    def _target(self) -> Turn | None:
        """The focused message, else the last reply."""
        return self.transcript.focused_turn or self.chat_app.state.last_reply

    def _free(self) -> bool:
        if self.chat_app.state.running is not None:
            self.chat_app.say(f"A reply is running: {self.chat_app.key('stop')} stops it first.", "warning")
            return False
        if self.chat_app.state.phase != "ready":
            self.chat_app.say("The model is not ready yet.", "warning")
            return False
        return True

    # ---- copying

    def action_copy(self) -> None:
        turn = self._target()
        if turn is None or not turn.text:
            self.chat_app.say("There is nothing to copy yet.")
        else:
            self.copy_text(turn.text, "message")

    def copy_nth(self, n: str) -> None:
        """`/copy 2` copies the reply before the last one."""
        replies = [t for t in reversed(self.chat_app.state.turns) if t.role == "assistant" and t.text]
        if n.isdecimal() and 1 <= int(n) <= len(replies):
            self.copy_text(replies[int(n) - 1].text, "message")
        else:
            self.chat_app.say(f"/copy takes a number from 1 (the last reply) to {len(replies)}.", "warning")

    def action_copy_code(self) -> None:
        turn = self._target()
        codes = self.transcript.codes(turn) if turn is not None else []
        if not codes:
            self.chat_app.say("This message has no code block.")
            return
        at = self._code_at.get(id(turn), 0) % len(codes)
        self._code_at = {id(turn): at + 1}
        which = f"code block {at + 1} of {len(codes)}" if len(codes) > 1 else "code block"
        self.copy_text(codes[at], which)

    _code_at: dict[int, int] = {}  # noqa: RUF012

    def code_nth(self, n: str) -> None:
        turn = self._target()
        codes = self.transcript.codes(turn) if turn is not None else []
        if n.isdecimal() and 1 <= int(n) <= len(codes):
            self.copy_text(codes[int(n) - 1], f"code block {n}")
        else:
            self.chat_app.say(
                f"/code takes a number from 1 to {len(codes)}." if codes else "There is no code block.", "warning"
            )

    # ---- changing what was said

    def _prompt_index(self) -> int:
        """The user turn at or before the focused turn (the last one when none is focused); -1 when there is none."""
        state, turn = self.chat_app.state, self.transcript.focused_turn
        index = state.turns.index(turn) if turn is not None else len(state.turns) - 1
        while index >= 0 and state.turns[index].role != "user":
            index -= 1
        return index

    def action_edit(self) -> None:
        """Put a user turn into the composer; sending it drops everything after."""
        state = self.chat_app.state
        if not self._free():
            return
        index = self._prompt_index()
        if index < 0:
            self.chat_app.say("There is no prompt to edit yet.")
            return
        if self.editing is None:
            self._aside = self.composer.text
        self.editing = index
        self.composer.put(self.as_typed(state.turns[index].text))
        self.composer.focus()
        self.show_all()

    def leave_editing(self) -> bool:
        """Edit nothing any more; the draft of before is back in the composer. False when nothing was edited."""
        if self.editing is None:
            return False
        self.editing = None
        self.composer.put(self._aside)
        self.show_all()
        return True

    def rewind_to(self, keep: int) -> None:
        self.chat_app.recorder.rewind(keep)
        self.chat_app.state.rewind(keep)

    def action_regenerate(self) -> None:
        state = self.chat_app.state
        if not self._free():
            return
        index = self._prompt_index()
        if index < 0:
            self.chat_app.say("There is no reply to make again yet.")
            return
        self.leave_editing()
        self.rewind_to(index + 1)
        self.chat_app.start(state.again(), user=False)
        self._after_start()

    def action_continue(self) -> None:
        state = self.chat_app.state
        if not self._free():
            return
        if not state.cut_off:
            self.chat_app.say("There is no reply that was cut off.")
            return
        self.leave_editing()
        self.chat_app.start(state.ask("", continue_last=True), record=False)
        self._after_start()

    def _after_start(self) -> None:
        self.composer.focus()
        self.transcript.follow()
        self.show_all()

    # ---- walking

    def action_message_prev(self) -> None:
        self.transcript.move_focus(-1)

    def action_message_next(self) -> None:
        self.transcript.move_focus(1)

    def action_fold(self) -> None:
        if self.transcript.focused_turn is not None:
            self.transcript.fold(self.transcript.focused_turn)
