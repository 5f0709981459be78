"""Conversations on disk: one append-only file each. Pure Python; knows no screen and no engine.

Nothing that was written is ever changed. Whoever opens a file first locks it; others can only read it. The user's turn is
on the disk before anybody acts on it; a reply reaches the file every two seconds while it runs.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from ..engine.errors import StorageError, UsageError, nearest
from ..engine.types import FinishReason, Message, Role, TextKind
from .conversation_records import FORMAT, VERSION, Record, SavedTurn, auto_title, encode, grown, outline, replay
from .places import make_private_folder

__all__ = ["Conversation", "Entry", "Found", "Store"]

DELTA_EVERY_S = 2.0
DELTA_EVERY_CHARS = 4096
DELETED_KEPT_S = 7 * 86400.0
_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]*")


class Conversation:
    """One conversation that is open. A temporary one has no file; all else is the same.

    The file appears with the first turn. Every method that writes raises StorageError when the disk refuses; the turns in
    memory are then ahead of the file, and writing may be tried again.
    """

    def __init__(
        self, conversation_id: str, path: Path | None, clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """A new one; `path` None makes it temporary. `Conversation.open` opens what is on disk."""
        self.id = conversation_id
        self.path = path
        self.read_only = ""
        """Why nothing can be written, as a sentence; empty when it can."""
        self.notes: list[str] = []
        self._given_title = ""
        self._turns: list[SavedTurn] = []
        self._numbers: list[int] = []
        self._clock, self._monotonic = clock, monotonic
        self._fd: int | None = None
        self._whole_line = True
        self._unwritten: list[bytes] = []
        self._pending: dict[TextKind, str] = {}
        self._pending_since = 0.0

    @classmethod
    def open(cls, path: Path, **clocks: Callable[[], float]) -> Conversation:
        """A conversation from disk, locked if nobody else has it, else read-only. Raises StorageError."""
        self = cls(path.stem, path, **clocks)
        try:
            try:
                self._fd = os.open(path, os.O_RDWR | os.O_APPEND)
            except PermissionError:
                self._fd = os.open(path, os.O_RDONLY)
                self.read_only = "The file may not be written."
            if not self.read_only and not _lock(self._fd):
                self.read_only = "It is open in another qwen-chat."
            raw = path.read_bytes()
        except OSError as e:
            self.close()
            raise StorageError(f"{path} cannot be opened: {e.strerror}.", path=str(path)) from None
        try:
            found = replay(raw, str(path))
        except StorageError:
            self.close()
            raise
        if found.header["version"] > VERSION:
            self.read_only = "It was written by a newer qwen-chat."
        self._turns, self._numbers, self._given_title, self.notes = found.turns, found.numbers, found.title, found.notes
        self._whole_line = raw.endswith(b"\n")
        return self

    # ---- questions

    @property
    def temporary(self) -> bool:
        return self.path is None

    @property
    def behind(self) -> bool:
        """The file lacks something that the disk has refused so far."""
        return bool(self._unwritten)

    @property
    def turns(self) -> tuple[SavedTurn, ...]:
        return tuple(self._turns)

    @property
    def title(self) -> str:
        """The given title, else one made from the first user turn; may be empty."""
        return self._given_title or auto_title(self._turns)

    def messages(self) -> tuple[Message, ...]:
        """The current branch as the engine takes it; replies that never said anything are left out."""
        return tuple(t.message() for t in self._turns if t.role != "assistant" or t.text or t.token_ids)

    # ---- growing

    def add_turn(
        self, role: Role, text: str = "", *, model: str = "", settings: Mapping[str, Any] | None = None
    ) -> int:
        """Open a turn and return its number. When this returns, a user's turn is safely on the disk."""
        self.flush()
        turn = SavedTurn(role=role, text=text, at=self._clock(), model=model, settings=dict(settings or {}))
        n = self._numbers[-1] + 1 if self._numbers else 0
        record: Record = {"type": "turn", "n": n, "role": role, "at": round(turn.at, 3), "text": text}
        record |= {k: v for k, v in (("model", model), ("settings", dict(turn.settings))) if v}
        self._turns.append(turn)
        self._numbers.append(n)
        self._write(record, safely=role != "assistant")
        return len(self._turns) - 1

    def add_text(self, kind: TextKind, text: str) -> None:
        """Text of the reply that runs. It reaches the file every two seconds, or when much has come."""
        if not self._turns:
            return
        if not self._pending:
            self._pending_since = self._monotonic()
        self._pending[kind] = self._pending.get(kind, "") + text
        last = self._turns[-1]
        self._turns[-1] = (
            replace(last, thinking=last.thinking + text, token_ids=())
            if kind == "thinking"
            else replace(last, text=last.text + text, token_ids=())
        )
        if sum(map(len, self._pending.values())) >= DELTA_EVERY_CHARS:
            self.flush()
        else:
            self.flush_due()

    def flush_due(self) -> None:
        """Write what is pending if it has waited for two seconds; to be called now and then while a reply runs."""
        if self._pending and self._monotonic() - self._pending_since >= DELTA_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Write what is pending now."""
        if self._pending:
            pending, self._pending = self._pending, {}
            self._write({"type": "delta", "n": self._numbers[-1], **pending})

    def finish(
        self, finish_reason: FinishReason, token_ids: Iterable[int] = (), tokenizer: str = "",
        numbers: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """The reply that ran has ended; its ids and measurements go on record, and all of it is safely on the disk."""
        if not self._turns:
            return
        pending, self._pending = self._pending, {}
        end: Record = {"finish_reason": finish_reason}
        end |= {
            k: v
            for k, v in (("token_ids", list(token_ids)), ("tokenizer", tokenizer), ("numbers", dict(numbers or {})))
            if v
        }
        ended = grown(self._turns[-1], end)
        if ended is not None:
            self._turns[-1] = ended
        self._write({"type": "delta", "n": self._numbers[-1], **pending, **end}, safely=True)

    def rewind(self, keep: int) -> list[SavedTurn]:
        """Go back to the first `keep` turns; the rest stays in the file as an old branch, and is returned."""
        self.flush()
        dropped: list[SavedTurn] = []
        if 0 <= keep < len(self._turns):
            record = {"type": "rewind", "keep": self._numbers[keep]}
            dropped = self._turns[keep:]
            del self._turns[keep:], self._numbers[keep:]
            self._write(record)
        return dropped

    def take_back(self, turns: Iterable[SavedTurn]) -> None:
        """Put turns that a rewind returned at the end again."""
        for t in turns:
            self.add_turn(t.role, t.text if t.role != "assistant" else "", model=t.model, settings=t.settings)
            if t.role == "assistant":
                self._pending = {"thinking": t.thinking, "answer": t.text}
                self._turns[-1] = replace(self._turns[-1], thinking=t.thinking, text=t.text)
                reason: FinishReason = next((r for r in get_args(FinishReason) if r == t.finish_reason), "cancelled")
                self.finish(reason, t.token_ids, t.tokenizer, t.numbers)
            self._turns[-1] = replace(self._turns[-1], at=t.at)

    def rename(self, title: str) -> None:
        """Give a title; an empty one brings the automatic title back."""
        self._given_title = " ".join(title.split())[:200]
        if self._turns or self._fd is not None:
            self._write({"type": "title", "title": self._given_title})

    def close(self) -> None:
        """Write what is pending and let go of the file. Calling it again is harmless."""
        try:
            if self._fd is not None and not self.read_only:
                self.flush()
        finally:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None

    # ---- the file

    def _write(self, record: Record, *, safely: bool = False) -> None:
        """Append one record; `safely` returns only when the disk has it."""
        if self.path is None:
            return
        if self.read_only:
            raise StorageError(
                f"This conversation is read-only. {self.read_only}", "/new starts another.", path=str(self.path)
            )
        try:
            self._unwritten.append(encode(record))
            if self._fd is None:
                self._fd = self._create(self.path)
            while self._unwritten:
                # After a write that failed half-way the next record starts on a line of its own.
                data = self._unwritten[0] if self._whole_line else b"\n" + self._unwritten[0]
                self._whole_line = False
                _write_all(self._fd, data)
                self._whole_line = True
                del self._unwritten[0]
            if safely:
                os.fsync(self._fd)
        except (OSError, ValueError) as e:
            reason = e.strerror if isinstance(e, OSError) else str(e)
            raise StorageError(
                f"{self.path} cannot be written: {reason}.",
                "The chat goes on; saving is tried again.",
                path=str(self.path),
            ) from None

    def _create(self, path: Path) -> int:
        make_private_folder(path.parent)
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        header = {"type": "header", "format": FORMAT, "version": VERSION, "id": self.id, "at": round(self._clock(), 3)}
        try:
            _lock(fd)
            _write_all(
                fd,
                encode(header) + (encode({"type": "title", "title": self._given_title}) if self._given_title else b""),
            )
        except OSError:
            os.close(fd)
            os.unlink(path)
            raise
        return fd


@dataclass(frozen=True, slots=True)
class Entry:
    """A conversation in the list."""

    id: str
    title: str
    changed: float
    """Seconds since 1970."""
    turns: int
    path: Path
    problem: str = ""
    """Why it cannot be opened; empty when it can."""


@dataclass(frozen=True, slots=True)
class Found:
    """A place where a searched text occurs."""

    entry: Entry
    turn: int
    """Index into the turns; -1 for the title."""
    excerpt: str
    """One line around it."""


class Store:
    """The folder of conversations."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._clock = clock

    @property
    def _bin(self) -> Path:
        return self.folder / "deleted"

    def new(self, *, temporary: bool = False) -> Conversation:
        """A new conversation; its file appears with the first turn, that of a temporary one never."""
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(self._clock()))
        new_id = f"{stamp}-{secrets.token_hex(3)}"
        return Conversation(new_id, None if temporary else self._path(new_id), clock=self._clock)

    def open(self, start_of_id: str) -> Conversation:
        """The conversation of this id; a start that fits only one is enough. Raises UsageError or StorageError."""
        return Conversation.open(self._path(self.find(start_of_id)), clock=self._clock)

    def find(self, start_of_id: str) -> str:
        """The whole id. Raises UsageError naming the nearest, or those that fit."""
        ids = [p.stem for p in self._paths()]
        fitting = [i for i in ids if i == start_of_id] or [i for i in ids if start_of_id and i.startswith(start_of_id)]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            raise UsageError(
                f"{len(fitting)} conversations start with {start_of_id!r}: {', '.join(fitting[:4])}.",
                "Give more of the id.",
            )
        near = nearest(start_of_id, ids, 1)
        said = f"Did you mean {near[0]}?" if near else "/chats in a chat lists them."
        raise UsageError(f"There is no conversation {start_of_id!r}.", said)

    def entries(self) -> Iterator[Entry]:
        """The conversations, the latest first, without those whose only prompt was refused."""
        found = (self._entry(path, outline)[0] for path in self._paths())
        return (e for e in found if e.turns or e.problem)

    def list(self, wanted: str = "") -> list[Entry]:
        """The conversations whose titles or ids contain every word of `wanted`, the latest first."""
        words = wanted.casefold().split()
        return [e for e in self.entries() if all(w in f"{e.title} {e.id}".casefold() for w in words)]

    def search(self, wanted: str) -> Iterator[Found]:
        """Where the text occurs, in titles, turns and thoughts of current branches; the latest conversation first."""
        needle = " ".join(wanted.casefold().split())
        if not needle:
            return
        for path in self._paths():
            entry, turns = self._entry(path)
            places = [(-1, entry.title), *((i, f"{t.text}\n{t.thinking}") for i, t in enumerate(turns))]
            for i, text in places:
                flat = " ".join(text.split())
                at = flat.casefold().find(needle)
                if at >= 0:
                    start = max(0, at - 30)
                    yield Found(entry, i, ("…" if start else "") + flat[start : at + len(needle) + 50])

    def rename(self, conversation_id: str, title: str) -> None:
        """Give a closed conversation a title. Raises UsageError or StorageError."""
        conversation = self.open(conversation_id)
        try:
            conversation.rename(title)
        finally:
            conversation.close()

    def delete(self, conversation_id: str) -> None:
        """Put a conversation aside; `restore` brings it back for seven days. Raises UsageError or StorageError."""
        path = self._path(self.find(conversation_id))
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError as e:
            raise StorageError(f"{path} cannot be opened: {e.strerror}.", path=str(path)) from None
        try:
            if not _lock(fd):
                raise StorageError(
                    f"{path.stem} cannot be deleted: it is open in another qwen-chat.", "Close it there first."
                )
            changed = os.fstat(fd).st_mtime
            self._move(path, self._bin / path.name)
            # The time of access says when it was deleted, so that a restored one keeps its place in the list.
            os.utime(self._bin / path.name, (self._clock(), changed))
        finally:
            os.close(fd)

    def restore(self, conversation_id: str) -> None:
        """Undo a delete. Raises StorageError when it is gone for good."""
        self._move(self._bin / f"{conversation_id}.jsonl", self._path(conversation_id))

    def purge(self, older_than_s: float = DELETED_KEPT_S) -> int:
        """Remove for good what was deleted longer ago; the number of files removed."""
        removed = 0
        for path in self._bin.glob("*.jsonl"):
            try:
                if self._clock() - path.stat().st_atime > older_than_s:
                    path.unlink()
                    removed += 1
            except OSError:
                continue
        return removed

    def _move(self, path: Path, to: Path) -> None:
        try:
            make_private_folder(to.parent)
            if to.exists():
                raise StorageError(f"{to} is already there.", path=str(to))
            os.rename(path, to)
        except OSError as e:
            raise StorageError(f"{path} cannot be moved: {e.strerror}.", path=str(path)) from None

    def _path(self, conversation_id: str) -> Path:
        if not _ID.fullmatch(conversation_id):
            raise UsageError(f"{conversation_id!r} is no id of a conversation.")
        return self.folder / f"{conversation_id}.jsonl"

    def _paths(self) -> list[Path]:
        """The files, the one that changed last first."""
        dated = []
        for path in self.folder.glob("*.jsonl"):
            if not _ID.fullmatch(path.stem):
                continue
            try:
                dated.append((path.stat().st_mtime_ns, path.name, path))
            except OSError:
                continue
        return [path for *_, path in sorted(dated, reverse=True)]

    def _entry(self, path: Path, part: Callable[[bytes], bytes] = bytes) -> tuple[Entry, list[SavedTurn]]:
        try:
            changed, raw = path.stat().st_mtime, path.read_bytes()
        except OSError as e:
            return Entry(path.stem, path.stem, 0.0, 0, path, f"cannot be read: {e.strerror}"), []
        try:
            found = replay(part(raw), path.name)
        except StorageError as e:
            return Entry(path.stem, path.stem, changed, 0, path, e.message), []
        title = found.title or auto_title(found.turns) or path.stem
        return Entry(path.stem, title, changed, len(found.turns), path), found.turns


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _lock(fd: int) -> bool:
    """Take the file for this process; False when another has it. A file system without locks counts as free."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        return e.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
    return True
