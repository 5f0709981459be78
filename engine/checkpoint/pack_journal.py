"""The journal of a packing run: what is finished so far, of which source, with which settings. Knows no file's content."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, UsageError
from .header import parse_json
from .pack_files import PART, storage_error, write_file
from .pack_manifest import FORMAT, JOURNAL, PackedFile
from .pack_source import Source

__all__ = ["Journal", "other_source"]


def other_source(target: Path) -> CheckpointError:
    return CheckpointError(
        f"{target} was packed from another model, or its source was changed since.",
        "Give another folder, or delete this one.",
        path=str(target),
    )


class Journal:
    """What was packed so far: stands in the target until the manifest does, and keeps a second run away."""

    def __init__(self, target: Path, source: Source, settings: dict[str, Any]) -> None:
        self._target, self._source, self._path = target, source, target / JOURNAL
        self._table: dict[str, Any] = {
            "format": FORMAT, "settings": settings, "source": source.index.fingerprint, "files_read": source.stamps(),
            "done": {},
        }  # fmt: skip
        self._fd = -1

    @property
    def files_read(self) -> dict[str, list[int]]:
        """Size and time of change of every file of the source, as the run found them."""
        return self._table["files_read"]

    def __enter__(self) -> Journal:
        try:
            self._target.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self._target, os.O_RDONLY)
        except NotADirectoryError:
            raise UsageError(f"{self._target} is not a folder.", "Give a folder to pack into.") from None
        except FileExistsError:
            raise UsageError(f"{self._target} is not a folder.", "Give a folder to pack into.") from None
        except OSError as error:
            raise storage_error(error, str(self._target)) from error
        try:
            self._lock()
            if self._path.exists():
                self._continue()
            elif any(path.name != JOURNAL + PART for path in self._target.iterdir()):
                raise UsageError(f"{self._target} is not empty.", "Give an empty folder, or one that does not exist.")
            self._save()
        except BaseException:
            os.close(self._fd)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def _lock(self) -> None:
        """One run at a time; the lock goes with the process, so a killed one leaves none."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{self._target}: another run is packing into it.", "Wait for it to end.") from None
        except OSError:
            return  # a file system without locks

    def _continue(self) -> None:
        """Take over what an earlier run finished; refuses when it packed something else."""
        try:
            raw = self._path.read_bytes()
        except OSError as error:
            raise storage_error(error, str(self._path)) from error
        found = parse_json(raw, str(self._path), "the journal", "Delete the folder and pack the model again.")
        done = found.get("done")
        if found.get("format") != FORMAT or not isinstance(done, dict):
            raise UsageError(f"{self._path} is not a journal of packing.", "Give an empty folder.")
        if found.get("source") != self._table["source"] or found.get("files_read") != self._table["files_read"]:
            raise other_source(self._target)
        if found.get("settings") != self._table["settings"]:
            was = " ".join(f"--{key} {value}" for key, value in dict(found.get("settings") or {}).items())
            raise UsageError(f"{self._target}: packing began with {was}.", "Use the same, or give another folder.")
        self._table["done"] = done

    def kept(self, name: str, n_bytes: int) -> PackedFile | None:
        """What is known of a file that was finished earlier and is still there with this size."""
        known = self._table["done"].get(name)
        try:
            size = (self._target / name).stat().st_size
        except OSError:
            return None
        return PackedFile(size, str(known)) if known is not None and size == n_bytes else None

    def add(self, name: str, file: PackedFile) -> None:
        self._table["done"][name] = file.sha256
        self._save()

    def check_source(self) -> None:
        """Refuse to finish when the source was touched meanwhile."""
        if self._source.stamps() != self._table["files_read"]:
            raise other_source(self._target)

    def _save(self) -> None:
        write_file(self._path, lambda out: out.write(json.dumps(self._table).encode()))

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()
