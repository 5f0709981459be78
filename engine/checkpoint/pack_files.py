"""Writing files so that they are there completely or not at all: temporary name, fsync, rename. Knows no model.

What goes wrong on the disk leaves here as a StorageError of one sentence, and the unfinished file is removed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import StorageError
from .pack_manifest import PackedFile

__all__ = ["PART", "Output", "safetensors_header", "storage_error", "write_file"]

PART = ".part"
"""Follows the name of a file that is not written to its end."""


def storage_error(error: OSError, path: str) -> StorageError:
    """The sentence for a failed write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            f"{path}: there is no space left on the disk.",
            "Make room and run the same command again; finished files are kept.",
            path=path,
        )
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return StorageError(
            f"{path} cannot be written ({os.strerror(error.errno)}).", "Choose a folder you may write to.", path=path
        )
    return StorageError(
        f"{path} cannot be written ({error.strerror or error}).", "Check the disk, or choose another folder.", path=path
    )


class Output:
    """The file being written: counts and hashes what passes."""

    def __init__(self, file: Any, told: Callable[[int], None]) -> None:
        self._file, self._told = file, told
        self._digest = hashlib.sha256()
        self.n_bytes = 0

    def write(self, data: Any) -> None:
        """Append bytes-like data completely."""
        view = memoryview(data).cast("B")
        self._digest.update(view)
        n = len(view)
        while view:
            view = view[self._file.write(view) :]
        self.n_bytes += n
        self._told(n)

    def pad(self, to: int) -> None:
        """Zeros up to a file size of `to` bytes."""
        if to > self.n_bytes:
            self.write(bytes(to - self.n_bytes))

    def result(self) -> PackedFile:
        return PackedFile(self.n_bytes, self._digest.hexdigest())


@contextlib.contextmanager
def _removed_on_failure(path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def write_file(path: Path, fill: Callable[[Output], None], told: Callable[[int], None] = lambda n: None) -> PackedFile:
    """Let `fill` write the file; it has its name only when everything is on the disk. Raises StorageError.

    `told(n)` hears of every n bytes.
    """
    part = path.with_name(path.name + PART)
    with _removed_on_failure(part):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(part, "wb", buffering=0) as file:
                out = Output(file, told)
                fill(out)
                os.fsync(file.fileno())
            os.replace(part, path)
            _sync_folder(path.parent)
        except OSError as error:
            raise storage_error(error, str(path)) from error
    return out.result()


def _sync_folder(folder: Path) -> None:
    """Make the rename itself lasting, where the system can."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


def safetensors_header(tensors: Sequence[tuple[str, str, tuple[int, ...], int]]) -> bytes:
    """The beginning of a safetensors file that holds (name, dtype, shape, bytes) one after another."""
    table: dict[str, Any] = {}
    end = 0
    for name, dtype, shape, n_bytes in tensors:
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + n_bytes]}
        end += n_bytes
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
