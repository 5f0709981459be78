"""Keeps the conversation file in step with the state. What the disk refuses becomes a sentence; the chat goes on.

The user's turn is on the disk before the engine sees it. Knows no widget.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..engine.errors import QwenChatError
from .state import ChatState, Turn, TurnStatus
from .text.sanitise import clean, one_line

if TYPE_CHECKING:
    from pathlib import Path

    from ..engine.events import Event, TextDelta
    from ..engine.types import FinishReason
    from .conversation_records import SavedTurn
    from .conversations import Conversation, Store

__all__ = ["Recorder"]

_STATUS: dict[str, TurnStatus] = {
    "stop": "done", "length": "length", "context": "context", "cancelled": "stopped", "error": "failed",
    "": "stopped",
}  # fmt: skip


@dataclass(slots=True)
class _Left:
    """A reply that still ran when its conversation was let go of, and what the engine has said of it since."""

    turn: Turn
    conversation: str
    ids: tuple[int, ...]
    """Those that the reply had before it was gone on with."""
    came: list[TextDelta] = field(default_factory=list)


class Recorder:
    def __init__(self, state: ChatState, folder: Path | None, *, temporary: bool = False) -> None:
        """Without a folder no conversation is kept; with `temporary` no new one is."""
        self.state, self._folder, self._all_temporary = state, folder, temporary
        self.state.temporary = temporary and folder is not None
        self.problem = ""
        """The latest sentence about what could not be written; the screen takes it away when it has shown it."""
        self._told = ""
        self._dropped: list[SavedTurn] = []
        self._conversation: Conversation | None = None
        """None until something is asked of it: an empty chat needs no file and nothing of what reads and writes one."""
        self._left: _Left | None = None

    @cached_property
    def store(self) -> Store | None:
        from .conversations import Store

        return None if self._folder is None else Store(self._folder)

    @property
    def conversation(self) -> Conversation:
        if self._conversation is None:
            self._conversation = self._new()
        return self._conversation

    def _new(self) -> Conversation:
        from .conversations import Conversation

        if self.store is None:
            return Conversation("temporary", None)
        return self.store.new(temporary=self.state.temporary)

    def _try(self, what: Callable[[], object]) -> bool:
        try:
            what()
        except QwenChatError as e:
            # A full disk refuses every record; that is one thing to say, until the file has caught up.
            if str(e) != self._told:
                self.problem = self._told = str(e)
            return False
        if self._conversation is None or not self._conversation.behind:
            self._told = ""
        return True

    # ---- what the user does

    def asked(self, settings: Mapping[str, Any], *, user: bool = True) -> None:
        """Record the last user turn of the state (`user`) and the empty reply after it; before the engine is asked."""
        if user:
            text = self.state.turns[-2].text
            self._try(lambda: self.conversation.add_turn("user", text))
        model = self.state.turns[-1].model
        self._try(lambda: self.conversation.add_turn("assistant", model=model, settings=settings))
        self.state.title = one_line(self.conversation.title, 60)

    def rewind(self, keep: int) -> None:
        def go_back() -> None:
            self._dropped = self.conversation.rewind(keep)

        self._try(go_back)

    def refused(self) -> None:
        """The prompt was not taken: it goes with its empty reply, and what went before it was sent comes back."""
        dropped, self._dropped = self._dropped, []
        new = self.state.refused is not None and self.state.refused.text
        self._try(lambda: self.conversation.rewind(len(self.conversation.turns) - (2 if new else 1)))
        self._try(lambda: self.conversation.take_back(dropped))
        self.state.title = one_line(self.conversation.title, 60)

    def rename(self, title: str) -> None:
        self._try(lambda: self.conversation.rename(title))
        self.state.title = one_line(self.conversation.title, 60)

    def start_new(self, *, temporary: bool = False) -> None:
        """Let go of this conversation and begin another."""
        self.close()
        self._conversation = None
        self.state.clear()
        self.state.temporary = self._folder is not None and (temporary or self._all_temporary)

    def resume(self, conversation_id: str) -> None:
        """Go on with a conversation from disk. Raises UsageError or StorageError, and then changes nothing."""
        if self.store is None:
            return
        found = self.store.open(conversation_id)
        self.close()
        if self._left is not None and self._left.conversation == found.id:
            self._left = None  # from here on the file may be written to by the one that is open
        self._conversation = found
        self.state.clear()
        self.state.temporary = False
        self.state.turns += [_turn(t) for t in found.turns]
        self.state.title = one_line(found.title, 60)
        self.state.revision += 1
        if found.read_only:
            self.problem = f"This conversation is read-only. {found.read_only}"
        elif found.notes:
            self.problem = one_line(" ".join(found.notes), 400)

    def flush_due(self) -> None:
        """Called now and then while a reply runs, so that what came reaches the disk though nothing follows."""
        if self._conversation is not None:
            self._try(self._conversation.flush_due)

    def stop(self) -> None:
        """The reply that runs is over, whatever the engine still says of it."""
        turn = self.state.stop()
        if turn is not None:
            self._finish(turn, "cancelled")

    def close(self) -> None:
        turn = self.state.running
        if turn is not None:
            self._left = _Left(turn, self.conversation.id, turn.token_ids)
        self.stop()
        if self._conversation is not None:
            self._try(self._conversation.close)

    # ---- what the engine says, after the state has taken it in

    def apply(self, event: Event, turn: Turn | None) -> None:
        """`turn` is the one the event belongs to, or None."""
        from ..engine.events import EngineFailed, TextDelta, TurnFinished

        left = self._left
        if turn is None:
            if left is not None and getattr(event, "request_id", None) == left.turn.id:
                if isinstance(event, TextDelta):
                    left.came.append(event)
                else:
                    self._complete(left, event)
            return
        if isinstance(event, TextDelta):
            text = clean(event.text)
            self._try(lambda: self.conversation.add_text(event.kind, text))
        elif isinstance(event, TurnFinished):
            self._finish(turn, event.finish_reason)
        elif isinstance(event, EngineFailed):
            if self.state.refused is not None:
                self.refused()
            else:
                self._finish(turn, "error")

    def _complete(self, left: _Left, event: Event) -> None:
        """Put behind a conversation that was let go of what came since, and the ids, which stand for the whole reply. What is
        deleted, open elsewhere or refused by the disk stays as it was."""
        from ..engine.events import EngineFailed, TurnFinished

        if isinstance(event, (TurnFinished, EngineFailed)):
            self._left = None
        if not isinstance(event, TurnFinished) or self.store is None:
            return
        with suppress(QwenChatError), closing(self.store.open(left.conversation)) as conversation:
            for e in left.came:
                conversation.add_text(e.kind, clean(e.text))
            model = self.state.model
            ids, of = left.ids + event.token_ids, model.tokenizer_fingerprint if model is not None else ""
            conversation.finish(event.finish_reason, ids, of, conversation.turns[-1].numbers)

    def _finish(self, turn: Turn, reason: FinishReason) -> None:
        known = {"tokens": turn.tokens, "thinking_tokens": turn.thinking_tokens, "ttft_s": turn.ttft_s}
        known |= {"tok_per_s": turn.tok_per_s, "thought_s": turn.thought_s}
        numbers = {k: round(v, 4) for k, v in known.items() if v}
        self._dropped = []
        self._try(lambda: self.conversation.finish(reason, turn.token_ids, turn.fingerprint, numbers))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _turn(saved: SavedTurn) -> Turn:
    """A turn from disk as the screen has it; nothing in a file is trusted."""
    numbers = saved.numbers
    return Turn(
        role=saved.role,
        text=clean(saved.text),
        thinking=clean(saved.thinking),
        status="done" if saved.role != "assistant" else _STATUS.get(saved.finish_reason, "stopped"),
        at=time.strftime("%H:%M", time.localtime(saved.at)) if 0 < saved.at < 1e11 else "",
        tokens=int(_number(numbers.get("tokens")) or 0),
        thinking_tokens=int(_number(numbers.get("thinking_tokens")) or 0),
        ttft_s=_number(numbers.get("ttft_s")),
        tok_per_s=_number(numbers.get("tok_per_s")),
        thought_s=_number(numbers.get("thought_s")),
        token_ids=saved.token_ids,
        fingerprint=saved.tokenizer,
        model=one_line(saved.model, 60),
    )
