"""A conversation as Markdown or JSON, for people and programs outside. Knows no screen; never overwrites a file."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from ..engine.errors import StorageError
from .conversation_records import SavedTurn
from .text.sanitise import clean, one_line

__all__ = ["Format", "file_name", "save", "to_json", "to_markdown"]

Format = Literal["md", "json"]
_NAMES = {"user": "You", "assistant": "Model", "system": "System"}


def to_markdown(title: str, turns: Sequence[SavedTurn], *, thinking: bool = True) -> str:
    """A heading a turn, thoughts folded; texts stand as they were written, control characters apart."""
    lines = [f"# {one_line(title) or 'Conversation'}", ""]
    for turn in turns:
        name = one_line(turn.model, 80) if turn.role == "assistant" and turn.model else _NAMES[turn.role]
        when = f" · {_when(turn.at)}" if turn.at else ""
        lines += [f"## {name}{when}", ""]
        if turn.thinking.strip() and thinking:
            lines += ["<details><summary>Thoughts</summary>", "", _closed(turn.thinking), "", "</details>", ""]
        if turn.text.strip():
            lines += [_closed(turn.text), ""]
        if turn.role == "assistant" and turn.finish_reason != "stop":
            lines += [f"*(ended early: {turn.finish_reason or 'interrupted'})*", ""]
    return "\n".join(lines).rstrip() + "\n"


def _closed(text: str) -> str:
    """The text, with a code fence that was left open closed, so that it does not swallow the next turn."""
    text = clean(text).strip("\n")
    fence = ""
    for line in text.split("\n"):
        m = re.match(r" {0,3}(`{3,}|~{3,})(.*)", line)
        if not m:
            continue
        if not fence:
            fence = m[1]
        elif m[1][0] == fence[0] and len(m[1]) >= len(fence) and not m[2].strip():
            fence = ""
    return f"{text}\n{fence}" if fence else text


def to_json(conversation_id: str, title: str, turns: Sequence[SavedTurn]) -> str:
    """One object with everything that is known of each turn."""
    told = [{k: v for k, v in _told(turn).items() if v not in ("", [], {}, 0.0)} for turn in turns]
    return json.dumps({"id": conversation_id, "title": title, "messages": told}, indent=2, ensure_ascii=True) + "\n"


def _told(turn: SavedTurn) -> dict[str, Any]:
    return {
        "role": turn.role,
        "at": _when(turn.at) if turn.at else "",
        "text": turn.text,
        "thinking": turn.thinking,
        "model": turn.model,
        "settings": dict(turn.settings),
        "finish_reason": turn.finish_reason,
        "token_ids": list(turn.token_ids),
        "tokenizer": turn.tokenizer,
        "numbers": dict(turn.numbers),
    }


def _when(at: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return ""


def file_name(title: str, kind: Format) -> str:
    """A file name made from a title: letters, digits and dashes."""
    stem = re.sub(r"[^\w]+", "-", title.casefold()).strip("-_")[:60].strip("-") or "conversation"
    return f"{stem}.{kind}"


def save(path: Path, text: str) -> Path:
    """Write a new file, readable by this user alone, and return its whole path. Raises StorageError, also when it exists."""
    path = Path(os.path.abspath(os.path.expanduser(path)))
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise StorageError(
            f"{path} is already there and was left alone.", "Give another name.", path=str(path)
        ) from None
    except OSError as e:
        raise StorageError(f"{path} cannot be written: {e.strerror}.", path=str(path)) from None
    try:
        with os.fdopen(fd, "w", encoding="utf-8", errors="replace") as f:
            f.write(text)
    except OSError as e:
        raise StorageError(f"{path} cannot be written: {e.strerror}.", path=str(path)) from None
    return path
