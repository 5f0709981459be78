"""What the parts of the chat screen know of each other: its widgets, its app, and the few methods they share."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from textual.screen import Screen

if TYPE_CHECKING:
    from ..app import QwenChatApp
    from ..widgets.composer import Composer
    from ..widgets.metrics import MetricsStrip, SidePanel
    from ..widgets.suggestions import Suggestions
    from ..widgets.transcript import Transcript

__all__ = ["ChatBase"]


class ChatBase(Screen[None]):
    if TYPE_CHECKING:
        transcript: Transcript
        composer: Composer
        side: SidePanel
        strip: MetricsStrip
        suggestions: Suggestions

        @property
        def sizes(self) -> tuple[bool, bool]: ...
        def show(self) -> None: ...
        def show_all(self) -> None: ...
        def apply_metrics(self) -> None: ...
        def stop_reply(self) -> bool: ...
        def action_unqueue(self) -> None: ...
        def send_text(self, prompt: str) -> None: ...
        def as_typed(self, prompt: str) -> str: ...
        def copy_text(self, text: str, what: str) -> None: ...
        def rewind_to(self, keep: int) -> None: ...
        def leave_editing(self) -> bool: ...
        def action_edit(self) -> None: ...
        def new_chat(self, *, temporary: bool = False) -> None: ...

    editing: int | None = None
    """Index of the user turn that the composer's text will replace."""
    _aside = ""
    """What stood in the composer before the editing."""

    @property
    def chat_app(self) -> QwenChatApp:
        return cast("QwenChatApp", self.app)
