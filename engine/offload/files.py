"""One open data file: how it must be read (aligned or not), and reading a piece of it into memory.

Knows the page cache and O_DIRECT / F_NOCACHE; knows nothing of threads, queues, experts or tensors.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import StorageError

__all__ = ["DataFile", "Pread", "address_of", "open_data_file", "os_pread"]

Pread = Callable[[int, memoryview, int], int]
"""(fd, writable view, file offset) -> bytes read, 0 at the end of the file; raises OSError."""

_F_NOCACHE = 48
_STATX_DIOALIGN = 0x2000
_AT_FDCWD = -100


def address_of(view: memoryview) -> int:
    """Address of the first byte of a writable, contiguous, non-empty view."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def _libc_pread() -> Pread:
    """pread(2) through ctypes, for Pythons built without os.preadv; the call gives up the interpreter lock."""
    call = ctypes.CDLL(None, use_errno=True).pread
    call.restype = ctypes.c_ssize_t
    call.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64)

    def pread(fd: int, view: memoryview, offset: int) -> int:
        n = call(fd, address_of(view), len(view), offset)
        if n < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return n

    return pread


def _os_pread(fd: int, view: memoryview, offset: int) -> int:
    return os.preadv(fd, (view,), offset)


os_pread: Pread = _os_pread if hasattr(os, "preadv") else _libc_pread()
"""The operating system's positional read into a view."""


@dataclass(slots=True)
class DataFile:
    """A file held open for positional reads from several threads. `align` is 1 when it is read through the page cache."""

    path: str
    fd: int
    align: int
    """Offset, length and address of a direct read must be multiples of this; 1 = buffered."""
    buffered_reason: str
    """Why direct I/O was asked for and is not used; empty otherwise."""
    pread: Pread
    judges: bool
    """Whether the system is asked what the page cache holds; turned off by the first refusal."""

    @property
    def direct(self) -> bool:
        return self.align > 1

    def in_place(self, offset: int, n_bytes: int, address: int) -> bool:
        """Whether a read of this range can go straight to this address."""
        return (offset | n_bytes | address) % self.align == 0

    def read(self, view: memoryview, offset: int, need: int) -> tuple[int, int]:
        """Fill at least the first `need` bytes of `view` from `offset` on; returns (cached, judged) bytes.

        With direct I/O, view, its length and offset are aligned. Raises OSError, or StorageError at the end of the file.
        """
        cached, judged, got = 0, 0, 0
        if self.direct:
            judged = need
        elif self.judges:
            got = cached = self._read_cached(view, offset)
            judged = len(view) if self.judges else 0
        while got < need:
            at = got - got % self.align
            try:
                n = self.pread(self.fd, view[at:], offset + at)
            except InterruptedError:
                continue
            if at + n <= got:
                raise StorageError(
                    f"{self.path} is shorter than it was: bytes up to {offset + need} were needed, it has "
                    f"{os.fstat(self.fd).st_size}.",
                    "Was it changed or is it still being downloaded? Fetch the model again and restart.",
                    path=self.path,
                )
            got = at + n
        return cached, judged

    def _read_cached(self, view: memoryview, offset: int) -> int:
        """Read the leading part that is in the page cache, without waiting for the disk."""
        try:
            return os.preadv(self.fd, (view,), offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            self.judges = False
            return 0

    def close(self) -> None:
        os.close(self.fd)


def open_data_file(path: str, direct: bool, pread: Pread | None = None) -> DataFile:
    """Open a file for reading, past the page cache when `direct` and the file system allows it. Raises OSError."""
    own = pread is None
    read = os_pread if pread is None else pread
    if direct:
        fd, align, reason = _open_direct(path)
        if align > 1:
            return DataFile(path, fd, align, "", read, False)
    else:
        fd, reason = os.open(path, os.O_RDONLY), ""
    return DataFile(path, fd, 1, reason, read, own and hasattr(os, "RWF_NOWAIT"))


def _open_direct(path: str) -> tuple[int, int, str]:
    """(fd, alignment, reason why it is buffered after all). The alignment is 1 for a buffered file."""
    if sys.platform == "darwin":
        import fcntl

        fd = os.open(path, os.O_RDONLY)
        try:
            fcntl.fcntl(fd, _F_NOCACHE, 1)
        except OSError as e:
            return fd, 1, f"F_NOCACHE is refused for {path}: {e.strerror}"
        return fd, min(os.fstat(fd).st_blksize, mmap.PAGESIZE), ""
    flag = getattr(os, "O_DIRECT", None)
    if flag is None:
        return os.open(path, os.O_RDONLY), 1, "this system has no direct I/O"
    told = _told_alignment(path)
    if told == 0:
        return os.open(path, os.O_RDONLY), 1, f"the file system of {path} has no direct I/O"
    try:
        fd = os.open(path, os.O_RDONLY | flag)
    except OSError as e:
        if e.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        return os.open(path, os.O_RDONLY), 1, f"the file system of {path} refuses direct I/O"
    if told:
        return fd, told, ""
    align = _probed_alignment(fd)
    if align:
        return fd, align, ""
    os.close(fd)
    return os.open(path, os.O_RDONLY), 1, f"the file system of {path} refuses direct reads"


def _told_alignment(path: str) -> int | None:
    """What statx(2) says a direct read of this file needs: 0 = it cannot be done, None = it does not say."""
    statx = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
    if statx is None:
        return None
    out = ctypes.create_string_buffer(256)
    if statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_DIOALIGN, out) != 0:
        return None
    (mask,) = struct.unpack_from("=I", out, 0)
    memory, offset = struct.unpack_from("=II", out, 152)
    if not mask & _STATX_DIOALIGN:
        return None
    return max(memory, offset) if memory and offset else 0


def _probed_alignment(fd: int) -> int:
    """The file's block size if a direct read of one block works, else 0."""
    align = max(os.fstat(fd).st_blksize, mmap.PAGESIZE)
    with mmap.mmap(-1, align) as page, memoryview(page) as view:
        try:
            os.preadv(fd, (view,), 0)
        except OSError:
            return 0
    return align
