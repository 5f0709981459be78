"""The file format of conversations: one JSON record a line, read leniently and never trusted. Opens and writes no file.

header   format, version, id, at: the first line of every file
turn     n, role, at, text; model and settings for a reply: opens turn n; numbers only grow
delta    n; answer and thinking that came; when the reply ended also finish_reason, token_ids, tokenizer, numbers
rewind   keep: turns with a number from `keep` on belong to an old branch; they stay in the file
title    title: given by the user; empty brings the automatic one back
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard, get_args

from ..engine.errors import StorageError
from ..engine.types import FinishReason, Message, Role

__all__ = [
    "FORMAT",
    "VERSION",
    "Record",
    "Replayed",
    "SavedTurn",
    "auto_title",
    "encode",
    "grown",
    "made_as",
    "outline",
    "read_records",
    "replay",
]

FORMAT = "qwen-chat conversation"
VERSION = 1
_ROLES: tuple[str, ...] = get_args(Role)
_REASONS: tuple[str, ...] = get_args(FinishReason)
# Legal inside JSON texts, but not harmless in a terminal or to a line-based tool that reads the file.
_UNSAFE = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SavedTurn:
    """One turn as the file has it."""

    role: Role
    text: str = ""
    thinking: str = ""
    at: float = 0.0
    """Seconds since 1970."""
    token_ids: tuple[int, ...] = ()
    tokenizer: str = ""
    """Fingerprint of the tokenizer that made `token_ids`."""
    finish_reason: str = ""
    """Empty while a reply runs, and for ever when the program ended in its middle."""
    model: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings in force for this reply, by "table.key"."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """What was measured: tokens, ttft_s, tok_per_s."""

    def message(self) -> Message:
        """The turn as the engine takes it."""
        return Message(self.role, self.text, self.thinking, self.token_ids, self.tokenizer)


@dataclass(slots=True)
class Replayed:
    """What a file says when read from its start."""

    header: Record
    turns: list[SavedTurn] = field(default_factory=list)
    """The current branch."""
    numbers: list[int] = field(default_factory=list)
    """The turns' numbers, ascending; one is missing where a line could not be read."""
    title: str = ""
    notes: list[str] = field(default_factory=list)
    """Sentences on what could not be read."""


def encode(record: Mapping[str, Any]) -> bytes:
    """One line. Raises ValueError for what JSON cannot hold."""
    line = json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return (_UNSAFE.sub(lambda m: f"\\u{ord(m[0]):04x}", line) + "\n").encode("utf-8")


def read_records(raw: bytes) -> Iterable[tuple[int, Record | None]]:
    """(one-based line, record) of every line that is not blank; None for a line that is no record."""
    for n, line in enumerate(raw.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError):
            record = None
        yield n, record if isinstance(record, dict) and isinstance(record.get("type"), str) else None


def replay(raw: bytes, name: str) -> Replayed:
    """The state of a conversation file. Raises StorageError when it has no header of ours; it is then no conversation."""
    records = iter(read_records(raw))
    n, header = next(records, (1, None))
    if (
        header is None
        or header.get("type") != "header"
        or header.get("format") != FORMAT
        or not _is_count(header.get("version"))
    ):
        raise StorageError(f"{name}:{n}: this is no conversation of qwen-chat.", "It was left as it is.", path=name)
    found = Replayed(header)
    damaged = []
    for n, record in records:
        if record is None or not _apply(found, record):
            damaged.append(n)
    if damaged:
        tail = raw[-1:] != b"\n" and damaged[-1] == raw.count(b"\n") + 1
        shown = ", ".join(str(n) for n in damaged[:5]) + (" and more" if len(damaged) > 5 else "")
        cut = " (the last one was cut off while it was written)" if tail else ""
        found.notes.append(f"{name}: line {shown} could not be read and was left out{cut}.")
    return found


def outline(raw: bytes) -> bytes:
    """The file without its deltas, which are most of it: enough for the title and the number of turns."""
    return b"\n".join(line for line in raw.split(b"\n") if not line.startswith(b'{"type":"delta"'))


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53


def _apply(found: Replayed, r: Record) -> bool:
    """Take one record into the state; False when it makes no sense here."""
    kind, n = r["type"], r.get("n")
    if kind == "turn":
        turn = _turn(r)
        if turn is None or not _is_count(n) or (found.numbers and n <= found.numbers[-1]):
            return False
        found.turns.append(turn)
        found.numbers.append(n)
        return True
    if kind == "delta":
        at = found.numbers.index(n) if n in found.numbers else None
        turn = grown(found.turns[at], r) if at is not None else None
        if at is None or turn is None:
            return False
        found.turns[at] = turn
        return True
    if kind == "rewind":
        keep = r.get("keep")
        if not _is_count(keep):
            return False
        while found.numbers and found.numbers[-1] >= keep:
            found.numbers.pop()
            found.turns.pop()
        return True
    if kind == "title" and isinstance(r.get("title"), str):
        found.title = r["title"]
        return True
    return False


def _turn(r: Record) -> SavedTurn | None:
    text, model, settings, at = r.get("text", ""), r.get("model", ""), r.get("settings", {}), r.get("at", 0.0)
    good = r.get("role") in _ROLES and isinstance(text, str) and isinstance(model, str) and isinstance(settings, dict)
    if not good or isinstance(at, bool) or not isinstance(at, (int, float)) or not abs(at) < 1e11:
        return None
    return SavedTurn(role=r["role"], text=text, at=float(at), model=model, settings=_plain(settings))


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are one text or finite number each; a hand-edited file may hold anything."""
    return {k: v for k, v in values.items() if isinstance(v, (str, int)) or (isinstance(v, float) and math.isfinite(v))}


def grown(turn: SavedTurn, r: Record) -> SavedTurn | None:
    """The turn with a delta record added; None when the record makes no sense."""
    answer, thinking, reason = r.get("answer", ""), r.get("thinking", ""), r.get("finish_reason", turn.finish_reason)
    ids, tokenizer = r.get("token_ids"), r.get("tokenizer", turn.tokenizer)
    texts = all(isinstance(v, str) for v in (answer, thinking, reason, tokenizer))
    if not texts or (reason and reason not in _REASONS) or not isinstance(r.get("numbers", {}), dict):
        return None
    if ids is not None and not (isinstance(ids, list) and set(map(type, ids)) <= {int} and min(ids, default=0) >= 0):
        return None
    return replace(
        turn,
        text=turn.text + answer,
        thinking=turn.thinking + thinking,
        finish_reason=reason,
        tokenizer=tokenizer,
        # Ids of a part never stand for the whole text: a reply that goes on has none until its end tells them all.
        token_ids=tuple(ids) if ids is not None else () if answer or thinking else turn.token_ids,
        numbers=_plain(r["numbers"]) if "numbers" in r else turn.numbers,
    )


def made_as(
    turns: Sequence[SavedTurn], system: str, think: bool | None, origins: Mapping[str, str]
) -> tuple[str, bool | None]:
    """System prompt and thinking to go on with: as the latest reply had them, where the command line says nothing else.

    `system` and `think` are the settings, `origins` where they came from.
    """
    before = next((t.settings for t in reversed(turns) if t.settings), None)
    if before is not None and not origins.get("chat.system", "").startswith("--"):
        system = str(before.get("chat.system", ""))
    if before is not None and not origins.get("chat.think", "").startswith("--"):
        said = before.get("chat.think")
        think = said if isinstance(said, bool) else None
    return system, think


def auto_title(turns: Iterable[SavedTurn], most: int = 60) -> str:
    """A title from the first thing the user said: its first line with words, cut at a word."""
    for turn in turns:
        if turn.role != "user":
            continue
        for line in turn.text.splitlines():
            words = " ".join(line.strip("#>*`-=_ \t").split())
            if any(c.isalnum() for c in words):
                return words if len(words) <= most else words[:most].rsplit(" ", 1)[0].rstrip(" ,;:.") + "…"
    return ""
