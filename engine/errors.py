"""Every error that the engine raises on purpose: one tree, worded once, with a way out.

QwenChatError                 exit code 1
├── UsageError                exit code 2: a flag or an argument is wrong
│   └── ConfigError           exit code 2: a setting is wrong; names file, line and key where known
├── CheckpointError           a model folder cannot be used; names the file and the tensor
├── StorageError              the disk failed while the model was in use; the next request may work
├── MemoryPlanError           the budgets asked for do not fit this machine
│   └── BudgetError           exit code 2: a budget that cannot hold one token's experts
├── TemplateError             the chat template refused the conversation
├── RequestError              one request cannot be answered (unknown token id, empty prompt, ...)
├── ContextFullError          the conversation does not fit the context
├── UnavailableError          something was asked for that this model or machine does not have
├── EngineClosedError         the engine was closed, or its thread is gone
└── Cancelled                 not a failure: the user stopped the request
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "BudgetError",
    "Cancelled",
    "CheckpointError",
    "ConfigError",
    "ContextFullError",
    "EngineClosedError",
    "MemoryPlanError",
    "QwenChatError",
    "RequestError",
    "StorageError",
    "TemplateError",
    "UnavailableError",
    "UsageError",
    "nearest",
]


class QwenChatError(Exception):
    """Base of all expected errors: `message` is one clear sentence, `hint` the way out (may be empty)."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class UsageError(QwenChatError):
    """A command line that cannot be carried out as written."""

    exit_code = 2


class ConfigError(UsageError):
    """A setting that cannot be used. `file`, `line` (one-based) and `key` ("table.key") are None where unknown."""

    def __init__(
        self, message: str, hint: str = "", *, file: str | None = None, line: int | None = None, key: str | None = None
    ) -> None:
        where = f"{file}:{line}: " if file and line else f"{file}: " if file else ""
        super().__init__(f"{where}{message}", hint)
        self.file, self.line, self.key = file, line, key


class CheckpointError(QwenChatError):
    """A model folder that cannot be used. `path` is the file at fault, `tensor` the tensor's name, if any."""

    def __init__(self, message: str, hint: str = "", *, path: str | None = None, tensor: str | None = None) -> None:
        super().__init__(message, hint)
        self.path, self.tensor = path, tensor


class StorageError(QwenChatError):
    """A read that failed while the model was in use."""

    def __init__(self, message: str, hint: str = "", *, path: str | None = None) -> None:
        super().__init__(message, hint)
        self.path = path


class MemoryPlanError(QwenChatError):
    """Budgets that do not fit; the message carries the numbers."""


class BudgetError(MemoryPlanError):
    """A budget in the settings that cannot hold what one token needs, on any machine."""

    exit_code = 2


class TemplateError(QwenChatError):
    """The chat template refused or failed on a conversation."""


class RequestError(QwenChatError):
    """One request that cannot be answered as asked."""


class ContextFullError(RequestError):
    """The prompt does not fit the context."""


class UnavailableError(QwenChatError):
    """A feature that this model or machine does not have was asked for explicitly."""


class EngineClosedError(QwenChatError):
    """The engine no longer takes requests."""


class Cancelled(QwenChatError):
    """The request was stopped by the user; raised inside the engine only, never shown as an error."""


def nearest(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """The up to `most` known names most like `name`, best first; for "did you mean" sentences."""
    return difflib.get_close_matches(name, list(known), n=most, cutoff=0.5)
