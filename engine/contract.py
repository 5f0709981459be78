"""The engine's door as a protocol. The real engine and FakeEngine both keep it; one test suite runs over both."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .events import Event
    from .types import GenerationRequest, MtpMode

__all__ = ["Emit", "Engine"]

Emit = Callable[["Event"], None]
"""Called on the engine's thread; must return at once and never raise (the UI appends to a deque)."""


class Engine(Protocol):
    """A model that is loading or loaded. Every method returns at once and may be called from any thread.

    Requests run one at a time in the order of submission; one may be submitted while the model still loads.
    """

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request. Its events carry `request.id`. Raises EngineClosedError after close."""
        ...

    def cancel(self, request_id: str) -> None:
        """Stop a running or queued request; it ends with TurnFinished("cancelled"). Unknown ids are ignored."""
        ...

    def set_mtp(self, mode: MtpMode) -> None:
        """Change the drafting mode, also while a reply streams; MtpChanged says from which token."""
        ...

    def close(self, timeout_s: float = 2.0) -> bool:
        """Stop everything and end the thread. True if it ended in time. Calling it again is harmless."""
        ...
