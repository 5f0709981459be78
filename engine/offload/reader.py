"""Reads byte ranges of files into memory with a pool of threads; nothing here knows what the bytes mean.

A ticket stands for one destination being filled. Once `wait` or `cancel` has returned or raised, no thread writes into
that destination any more: this is what makes a slot safe to give to somebody else.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from queue import SimpleQueue
from time import perf_counter

from ..errors import Cancelled, EngineClosedError, QwenChatError, StorageError
from ..stats import HistogramRecorder, SsdStats
from .files import DataFile, Pread, address_of, open_data_file
from .layout import ReadRange

__all__ = ["Reader", "Ticket"]

PIECE_BYTES = 4 << 20
"""Most bytes that one thread reads in place in one go."""
BOUNCE_BYTES = 1 << 20
"""Size of a thread's bounce buffer: the most that an unaligned direct read takes in one go."""

_HINTS = {
    errno.EMFILE: "Allow more open files (ulimit -n 1024) and start again.",
    errno.ENFILE: "Close other programs that hold many files open, then try again.",
    errno.EACCES: "Make the file readable for this user, then try again.",
}


@dataclass(slots=True, eq=False)
class _Piece:
    """A part of a ticket that one thread reads in one go."""

    ticket: Ticket
    file: DataFile
    offset: int
    view: memoryview
    address: int


class Ticket:
    """One submitted read. Its methods may be called from any thread, any number of times."""

    __slots__ = ("_failure", "_gate", "_left", "_over", "_reader", "_running", "n_bytes")

    def __init__(self, reader: Reader, n_bytes: int) -> None:
        self._reader = reader
        # A bare lock that is held until the end: far cheaper than an Event, and there is a ticket an expert.
        self._gate = threading.Lock()
        self._gate.acquire()
        self._over = False
        self._left = 0
        self._running = 0
        self._failure: QwenChatError | None = None
        self.n_bytes = n_bytes
        """Bytes asked for."""

    def done(self) -> bool:
        """Whether `wait` would return or raise at once."""
        return self._over

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until every byte is there: True, or False when the time ran out first.

        Raises StorageError if a read failed, Cancelled after `cancel`, EngineClosedError if the reader was closed.
        """
        if not self._ended(-1 if timeout_s is None else max(0.0, timeout_s)):
            return False
        if self._failure is not None:
            raise self._failure
        return True

    def _ended(self, timeout_s: float) -> bool:
        if not self._over:
            if not self._gate.acquire(timeout=timeout_s):
                return False
            self._gate.release()
        return True

    def _end(self) -> None:
        """No thread reads for this ticket any more, nor will. Called with the reader's lock held."""
        if not self._over:
            self._over = True
            self._gate.release()

    def cancel(self) -> None:
        """Drop what is still queued and wait for what is being read now. A finished ticket stays as it is."""
        self._reader._give_up(self)
        self._ended(-1)

    def hurry(self) -> None:
        """Move a background ticket's queued pieces before all other background work."""
        self._reader._hurry(self)


class Reader:
    """A pool of threads that reads ranges of files, past the page cache where asked and possible.

    `direct_io`: "on" and "auto" use direct I/O on every file whose file system allows it, "off" never.
    `pread` replaces the system's positional read, for tests of faults.
    """

    def __init__(self, workers: int = 16, direct_io: str = "auto", *, pread: Pread | None = None) -> None:
        if workers < 1:
            raise ValueError("a reader needs at least one worker")
        self._direct = direct_io != "off"
        self._pread = pread
        self._lock = threading.Lock()
        # One True for every piece that was ever queued, one False a thread at the end.
        self._calls: SimpleQueue[bool] = SimpleQueue()
        self._queue: deque[_Piece] = deque()
        self._background: deque[_Piece] = deque()
        self._files: dict[str, DataFile] = {}
        self._files_lock = threading.Lock()
        self._closed = False
        self._latency = HistogramRecorder()
        self._reads = self._bytes = self._errors = self._cached = self._judged = 0
        self._in_flight = 0
        self._busy_s = self._busy_since = 0.0
        self._threads = [threading.Thread(target=self._serve, name=f"reader-{i}", daemon=True) for i in range(workers)]
        for thread in self._threads:
            thread.start()

    # ---- asking

    def submit(self, ranges: Iterable[ReadRange], destination: memoryview, *, background: bool = False) -> Ticket:
        """Start reading every range to `destination[slot_offset : slot_offset + n_bytes]`; returns at once.

        The destination must be writable and contiguous and must not be moved or freed before the ticket is done.
        Background pieces start only when nothing else waits. All failures, opening a file included, come out of
        `Ticket.wait`; raises ValueError for ranges outside the destination and EngineClosedError after `close`.
        """
        target = destination.cast("B") if destination.format != "B" or destination.ndim != 1 else destination
        if target.readonly:
            raise ValueError("the destination of a read must be writable")
        merged = _merged(ranges, len(target))
        ticket = Ticket(self, sum(r.n_bytes for r in merged))
        try:
            pieces = self._pieces(ticket, merged, target)
        except OSError as e:
            ticket._failure = _told(str(e.filename), e)
            pieces = []
        with self._lock:
            if self._closed:
                raise EngineClosedError("The reader was closed.")
            if ticket._failure is not None:
                self._errors += 1
            ticket._left = len(pieces)
            (self._background if background else self._queue).extend(pieces)
            if not pieces:
                ticket._end()
        for _ in pieces:
            self._calls.put(True)
        return ticket

    def stats(self) -> SsdStats:
        """Everything counted so far."""
        with self._lock:
            busy_s = self._busy_s + (perf_counter() - self._busy_since if self._in_flight else 0.0)
            return SsdStats(
                reads=self._reads,
                read_bytes=self._bytes,
                busy_s=busy_s,
                errors=self._errors,
                cached_bytes=self._cached,
                judged_bytes=self._judged,
                latency=self._latency.copy(),
                in_flight=self._in_flight,
                direct_io=any(f.direct for f in self._files.values()),
                buffered_reason=self.buffered_reason,
            )

    @property
    def buffered_reason(self) -> str:
        """Why some file is read through the page cache although direct I/O was asked for; empty when none is."""
        return next((f.buffered_reason for f in list(self._files.values()) if f.buffered_reason), "")

    def close(self) -> None:
        """Drop queued work (its tickets raise EngineClosedError), wait for running reads, end the threads, close files."""
        with self._lock:
            self._closed = True
            for piece in (*self._queue, *self._background):
                self._fail(piece.ticket, EngineClosedError("The reader was closed."))
            self._queue.clear()
            self._background.clear()
        for _ in self._threads:
            self._calls.put(False)
        for thread in self._threads:
            thread.join()
        with self._files_lock:
            for file in self._files.values():
                file.close()
            self._files.clear()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- cutting

    def _file(self, path: str) -> DataFile:
        file = self._files.get(path)
        if file is None:
            with self._files_lock:
                file = self._files.get(path)
                if self._closed:
                    raise EngineClosedError("The reader was closed.")
                if file is None:
                    file = self._files[path] = open_data_file(path, self._direct, self._pread)
        return file

    def _pieces(self, ticket: Ticket, ranges: list[ReadRange], target: memoryview) -> list[_Piece]:
        """Cut ranges so that all threads can help, and each piece is either read in place or fits a bounce buffer.

        A range that lies as far into a block as its destination is read in place but for the blocks at its ends.
        """
        pieces: list[_Piece] = []
        base = address_of(target) if ranges else 0
        for r in ranges:
            file = self._file(os.fspath(r.path))
            at, start, end = r.slot_offset, r.offset, r.offset + r.n_bytes
            while start < end:
                inside = start % file.align
                if (base + at - start) % file.align:
                    n = min(end - start, BOUNCE_BYTES - inside)
                elif inside:
                    n = min(end - start, file.align - inside)
                else:
                    n = min(end - start, PIECE_BYTES)
                    if n >= file.align:
                        n -= n % file.align
                pieces.append(_Piece(ticket, file, start, target[at : at + n], base + at))
                start, at = start + n, at + n
        return pieces

    # ---- reading

    def _serve(self) -> None:
        """What each thread does: take a piece, read it, report it."""
        bounce = memoryview(mmap.mmap(-1, BOUNCE_BYTES))
        bounce_address = address_of(bounce)
        while self._calls.get():
            piece = self._next()
            if piece is None:
                continue
            failure, seconds, cached, judged = None, 0.0, 0, 0
            begun = perf_counter()
            try:
                seconds, cached, judged = _read(piece, bounce, bounce_address)
            except StorageError as e:
                failure = e
            except OSError as e:
                failure = _told(piece.file.path, e)
            except Exception as e:  # noqa: BLE001 - a dead thread would leave the waiter hanging
                failure = StorageError(f"Reading {piece.file.path} failed: {e!r}.", path=piece.file.path)
            if failure is not None:
                seconds = perf_counter() - begun
            self._report(piece, seconds, cached, judged, failure)

    def _report(self, piece: _Piece, seconds: float, cached: int, judged: int, failure: StorageError | None) -> None:
        ticket = piece.ticket
        with self._lock:
            self._in_flight -= 1
            if not self._in_flight:
                self._busy_s += perf_counter() - self._busy_since
            self._latency.record(seconds)
            self._reads += 1
            self._cached += cached
            self._judged += judged
            ticket._running -= 1
            ticket._left -= 1
            if failure is None:
                self._bytes += len(piece.view)
            else:
                self._errors += 1
                self._fail(ticket, failure)
            if not ticket._left or (ticket._failure and not ticket._running):
                ticket._end()

    def _next(self) -> _Piece | None:
        """The piece to read now, counted as in flight; None if it was dropped."""
        with self._lock:
            queue = self._queue or self._background
            if not queue:
                return None
            piece = queue.popleft()
            if piece.ticket._failure is not None:
                return None
            if not self._in_flight:
                self._busy_since = perf_counter()
            self._in_flight += 1
            piece.ticket._running += 1
            return piece

    def _fail(self, ticket: Ticket, failure: QwenChatError) -> None:
        """First failure wins; queued pieces of a failed ticket are never started. Called with the lock held."""
        if ticket._failure is None:
            ticket._failure = failure
        if not ticket._running:
            ticket._end()

    def _give_up(self, ticket: Ticket) -> None:
        with self._lock:
            if not ticket._over:
                self._fail(ticket, Cancelled("The read was cancelled."))

    def _hurry(self, ticket: Ticket) -> None:
        with self._lock:
            moved = [p for p in self._background if p.ticket is ticket]
            if moved:
                self._background = deque(p for p in self._background if p.ticket is not ticket)
                self._queue.extend(moved)


def _read(piece: _Piece, bounce: memoryview, bounce_address: int) -> tuple[float, int, int]:
    """Read one piece; returns (seconds at the device, cached bytes, judged bytes)."""
    file, offset, n = piece.file, piece.offset, len(piece.view)
    begun = perf_counter()
    if file.in_place(offset, n, piece.address):
        cached, judged = file.read(piece.view, offset, n)
        return perf_counter() - begun, cached, judged
    skip = offset % file.align
    whole = -(-(skip + n) // file.align) * file.align
    cached, judged = file.read(bounce[:whole], offset - skip, skip + n)
    seconds = perf_counter() - begun
    ctypes.memmove(
        piece.address, bounce_address + skip, n
    )  # gives up the interpreter lock, a slice assignment does not
    return seconds, cached, judged


def _merged(ranges: Iterable[ReadRange], room: int) -> list[ReadRange]:
    """The non-empty ranges in file order, those that touch both in the file and in the destination made one."""
    merged: list[ReadRange] = []
    for r in sorted(ranges, key=attrgetter("path", "offset")):
        if r.offset < 0 or r.n_bytes < 0 or r.slot_offset < 0 or r.slot_offset + r.n_bytes > room:
            raise ValueError(f"range {r} does not fit a destination of {room} bytes")
        last = merged[-1] if merged else None
        if not r.n_bytes:
            continue
        if (
            last is not None
            and last.path == r.path
            and last.offset + last.n_bytes == r.offset
            and last.slot_offset + last.n_bytes == r.slot_offset
        ):
            merged[-1] = ReadRange(last.path, last.offset, last.n_bytes + r.n_bytes, last.slot_offset)
        else:
            merged.append(r)
    return merged


def _told(path: str, error: OSError) -> StorageError:
    """An operating system error as one sentence with a way out."""
    why = error.strerror or repr(error)
    hint = _HINTS.get(
        error.errno or 0, "Check that the disk is connected and the model is still there, then try again."
    )
    return StorageError(f"Reading {path} failed: {why}.", hint, path=path)
