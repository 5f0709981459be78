"""The reader: the bytes of a plain read at any alignment, faults as one sentence, and nobody writes after the end."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen_chat_mlx.engine.errors import Cancelled, EngineClosedError, StorageError
from qwen_chat_mlx.engine.offload import files, reader
from qwen_chat_mlx.engine.offload.files import os_pread
from qwen_chat_mlx.engine.offload.layout import ReadRange
from qwen_chat_mlx.engine.offload.reader import Reader

PAGE = mmap.PAGESIZE
SIZE = 3 * (1 << 20) + 1234
UNTOUCHED = 0xA5


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    path = tmp_path_factory.mktemp("reader") / "data.bin"
    content = os.urandom(SIZE)
    path.write_bytes(content)
    return str(path), content


@pytest.fixture(scope="module")
def readers() -> Iterator[dict[str, Reader]]:
    with Reader(4, "on") as direct, Reader(4, "off") as buffered:
        yield {"on": direct, "off": buffered}


def memory(n_bytes: int) -> memoryview:
    """A page-aligned destination full of a pattern."""
    view = memoryview(mmap.mmap(-1, max(n_bytes, 1)))[:n_bytes]
    view[:] = bytes([UNTOUCHED]) * n_bytes
    return view


class Gate:
    """A pread that waits until it is opened, then reads; says how many are waiting."""

    def __init__(self, then: Callable[[int, memoryview, int], int] = os_pread) -> None:
        self.open = threading.Event()
        self.entered = threading.Semaphore(0)
        self.calls = 0
        self._then = then

    def __call__(self, fd: int, view: memoryview, offset: int) -> int:
        self.calls += 1
        self.entered.release()
        assert self.open.wait(10)
        return self._then(fd, view, offset)


spans = st.lists(
    st.tuples(st.integers(0, SIZE), st.integers(0, 5000), st.sampled_from([0, 1, 511, 512, 4096])), max_size=6
)


@pytest.mark.parametrize("direct", ["on", "off"])
@given(spans=spans)
@settings(max_examples=40, deadline=None)
def test_any_ranges_equal_a_plain_read(
    data: tuple[str, bytes], readers: dict[str, Reader], direct: str, spans: list[tuple[int, int, int]]
) -> None:
    path, content = data
    ranges, expected, at = [], b"", 0
    for offset, most, gap in spans:
        n = min(most, SIZE - offset)
        at += gap
        ranges.append(ReadRange(path, offset, n, at))
        expected = expected.ljust(at, bytes([UNTOUCHED])) + content[offset : offset + n]
        at += n
    target = memory(at + 100)
    ticket = readers[direct].submit(ranges, target)
    assert ticket.wait()
    assert ticket.done()
    assert ticket.n_bytes == sum(r.n_bytes for r in ranges)
    assert bytes(target) == expected.ljust(at + 100, bytes([UNTOUCHED]))


@pytest.mark.parametrize("direct", ["on", "off"])
@pytest.mark.parametrize(("offset", "slot"), [(0, 0), (PAGE, PAGE), (PAGE, 8), (7, 0), (7, 7), (512, 512)])
def test_whole_files_at_every_alignment(
    data: tuple[str, bytes], readers: dict[str, Reader], direct: str, offset: int, slot: int
) -> None:
    path, content = data
    target = memory(SIZE + slot)
    readers[direct].submit([ReadRange(path, offset, SIZE - offset, slot)], target).wait()
    assert target[slot : slot + SIZE - offset] == content[offset:]


def test_large_ranges_are_cut_so_that_every_worker_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: tuple[str, bytes]
) -> None:
    monkeypatch.setattr(reader, "PIECE_BYTES", 1 << 20)
    gate = Gate()
    with Reader(4, "off", pread=gate) as r:
        ticket = r.submit([ReadRange(data[0], 0, SIZE, 0)], memory(SIZE))
        for _ in range(4):
            assert gate.entered.acquire(timeout=10)
        assert r.stats().in_flight == 4
        gate.open.set()
        ticket.wait()
        assert r.stats().reads == 4
        assert r.stats().read_bytes == SIZE


def test_touching_ranges_are_one_read(data: tuple[str, bytes]) -> None:
    path, content = data
    with Reader(2, "off") as r:
        target = memory(300)
        r.submit(
            [ReadRange(path, 100, 100, 100), ReadRange(path, 0, 100, 0), ReadRange(path, 250, 50, 250)], target
        ).wait()
        assert r.stats().reads == 2
        assert target[:200] == content[:200]
        assert target[250:] == content[250:300]


def test_counters_add_up(data: tuple[str, bytes]) -> None:
    with Reader(2, "off") as r:
        assert r.stats().reads == 0
        for _ in range(3):
            r.submit([ReadRange(data[0], 0, 1000, 0)], memory(1000)).wait()
        s = r.stats()
        assert (s.reads, s.read_bytes, s.errors, s.in_flight, s.latency.total) == (3, 3000, 0, 0, 3)
        assert 0 < s.busy_s < 10
        assert s.cached_bytes <= s.judged_bytes


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the system does not say what is in its page cache")
def test_a_file_read_before_comes_from_the_page_cache(data: tuple[str, bytes]) -> None:
    path, content = data
    assert Path(path).read_bytes() == content
    with Reader(2, "off") as r:
        r.submit([ReadRange(path, 0, SIZE, 0)], memory(SIZE)).wait()
        s = r.stats()
        assert s.judged_bytes in (0, SIZE)
        assert s.cached_bytes >= 0.9 * s.judged_bytes


def test_direct_reads_are_judged_as_not_cached(data: tuple[str, bytes]) -> None:
    with Reader(2, "on") as r:
        r.submit([ReadRange(data[0], 3, 9000, 0)], memory(9000)).wait()
        s = r.stats()
        if s.direct_io:
            assert (s.cached_bytes, r.buffered_reason) == (0, "")
            assert s.judged_bytes >= 9000
        else:
            assert data[0] in r.buffered_reason


@pytest.mark.parametrize("told", [0, None])
def test_a_file_system_without_direct_io_is_read_through_the_cache(
    data: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch, told: int | None
) -> None:
    monkeypatch.setattr(files, "_told_alignment", lambda _: told)
    monkeypatch.setattr(files, "_probed_alignment", lambda _: 0)
    with Reader(2, "on") as r:
        target = memory(5000)
        r.submit([ReadRange(data[0], 3, 5000, 0)], target).wait()
        assert target == data[1][3:5003]
        if os.name == "posix" and hasattr(os, "O_DIRECT"):
            assert not r.stats().direct_io
            assert data[0] in r.buffered_reason


def test_the_alignment_is_probed_where_the_system_does_not_tell(
    data: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_told_alignment", lambda _: None)
    with Reader(2, "on") as r:
        target = memory(100_000)
        r.submit([ReadRange(data[0], 77, 100_000, 0)], target).wait()
        assert target == data[1][77 : 77 + 100_000]


def test_a_missing_file_is_one_sentence_with_a_way_out(tmp_path: Path) -> None:
    path = str(tmp_path / "gone.safetensors")
    with Reader(2) as r:
        ticket = r.submit([ReadRange(path, 0, 10, 0)], memory(10))
        assert ticket.done()
        with pytest.raises(StorageError, match=r"gone\.safetensors failed: No such file") as e:
            ticket.wait()
        assert e.value.hint
        assert e.value.path == path
        assert r.stats().errors == 1


@pytest.mark.parametrize("direct", ["on", "off"])
def test_a_file_that_became_shorter_is_told(tmp_path: Path, direct: str) -> None:
    path = tmp_path / "short.bin"
    path.write_bytes(b"x" * 10_000)
    with Reader(2, direct) as r:
        target = memory(10_000)
        r.submit([ReadRange(str(path), 0, 10_000, 0)], target).wait()
        os.truncate(path, 5000)
        for offset, n in ((0, 10_000), (4999, 2), (8192, 100), (6000, 1)):
            with pytest.raises(StorageError, match=r"shorter than it was: bytes up to \d+ were needed, it has 5000\."):
                r.submit([ReadRange(str(path), offset, n, 0)], target).wait()
        r.submit([ReadRange(str(path), 0, 5000, 0)], target).wait()
        assert target[:5000] == b"x" * 5000


def test_too_many_open_files_have_a_way_out_of_their_own(
    data: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, *_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    monkeypatch.setattr(reader, "open_data_file", refuse)
    with Reader(1) as r, pytest.raises(StorageError, match="ulimit"):
        r.submit([ReadRange(data[0], 0, 1, 0)], memory(1)).wait()


def test_a_deleted_file_that_is_open_is_still_read(tmp_path: Path) -> None:
    path = tmp_path / "deleted.bin"
    path.write_bytes(b"y" * 100)
    with Reader(2, "off") as r:
        target = memory(100)
        r.submit([ReadRange(str(path), 0, 100, 0)], target).wait()
        path.unlink()
        r.submit([ReadRange(str(path), 0, 50, 50)], target).wait()
        assert target == b"y" * 100


@pytest.mark.parametrize("direct", ["on", "off"])
@given(cuts=st.lists(st.integers(1, 9000), min_size=1, max_size=30))
@settings(max_examples=15, deadline=None)
def test_short_and_interrupted_reads_are_continued(data: tuple[str, bytes], direct: str, cuts: list[int]) -> None:
    """Direct reads never stop inside a block but at the end of the file."""
    left = list(cuts)

    def stingy(fd: int, view: memoryview, offset: int) -> int:
        if not left:
            return os_pread(fd, view, offset)
        n = left.pop()
        if n % 3 == 0:
            raise InterruptedError
        n = -(-n // 4096) * 4096 if direct == "on" else n
        return os_pread(fd, view[: max(n, 1)], offset)

    with Reader(2, direct, pread=stingy) as r:
        target = memory(50_000)
        r.submit([ReadRange(data[0], 4096, 50_000, 0)], target).wait()
        assert target == data[1][4096:54_096]


@pytest.mark.parametrize("failure", [OSError(errno.EIO, os.strerror(errno.EIO)), RuntimeError("odd")])
def test_a_failed_read_leaves_the_reader_usable(data: tuple[str, bytes], failure: Exception) -> None:
    broken = threading.Event()
    broken.set()

    def pread(fd: int, view: memoryview, offset: int) -> int:
        if broken.is_set():
            raise failure
        return os_pread(fd, view, offset)

    with Reader(2, "off", pread=pread) as r:
        target = memory(100)
        for _ in range(2):
            with pytest.raises(StorageError, match=r"data\.bin failed"):
                r.submit([ReadRange(data[0], 0, 100, 0)], target).wait()
        broken.clear()
        assert r.submit([ReadRange(data[0], 0, 100, 0)], target).wait()
        assert target == data[1][:100]
        assert r.stats().errors == 2
        assert r.stats().read_bytes == 100


def test_after_an_error_nobody_writes_into_the_destination(
    data: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first piece fails while the second still reads: wait raises only when the second is through."""
    monkeypatch.setattr(reader, "PIECE_BYTES", 1 << 20)
    slow, both = threading.Event(), threading.Barrier(2)

    def pread(fd: int, view: memoryview, offset: int) -> int:
        both.wait(10)
        if offset == 0:
            raise OSError(errno.EIO, "Input/output error")
        assert slow.wait(10)
        return os_pread(fd, view, offset)

    with Reader(2, "off", pread=pread) as r:
        target = memory(SIZE)
        ticket = r.submit([ReadRange(data[0], 0, SIZE, 0)], target)
        assert not ticket.wait(0.05)
        slow.set()
        with pytest.raises(StorageError, match="Input/output error"):
            ticket.wait()
        before = bytes(target)
        time.sleep(0.02)
        assert target == before
        assert r.stats().in_flight == 0
        assert r.stats().reads <= 2


def test_cancel_waits_for_what_is_being_read_and_drops_the_rest(data: tuple[str, bytes]) -> None:
    gate = Gate()
    with Reader(1, "off", pread=gate) as r:
        first, second = memory(100), memory(100)
        running = r.submit([ReadRange(data[0], 0, 100, 0)], first)
        queued = r.submit([ReadRange(data[0], 0, 100, 0)], second)
        assert gate.entered.acquire(timeout=10)
        queued.cancel()
        assert queued.done()
        stopper = threading.Thread(target=running.cancel)
        stopper.start()
        stopper.join(0.05)
        assert stopper.is_alive()
        assert not running.done()
        gate.open.set()
        stopper.join(10)
        assert not stopper.is_alive()
        for ticket in (running, queued):
            with pytest.raises(Cancelled):
                ticket.wait()
            ticket.cancel()
        assert gate.calls == 1
        assert second == bytes([UNTOUCHED]) * 100
        first[:] = bytes(100)
        assert r.submit([ReadRange(data[0], 0, 100, 0)], second).wait()
        assert first == bytes(100)


def test_cancel_of_a_finished_read_changes_nothing(data: tuple[str, bytes]) -> None:
    with Reader(1, "off") as r:
        ticket = r.submit([ReadRange(data[0], 0, 100, 0)], memory(100))
        ticket.wait()
        ticket.cancel()
        assert ticket.wait()


def test_background_reads_start_when_nothing_else_waits_and_can_be_hurried(data: tuple[str, bytes]) -> None:
    order: list[int] = []
    gate = Gate(lambda fd, view, offset: order.append(offset) or os_pread(fd, view, offset))
    with Reader(1, "off", pread=gate) as r:
        ranges = [[ReadRange(data[0], i, 10, 0)] for i in range(6)]
        first = r.submit(ranges[0], memory(10))
        assert gate.entered.acquire(timeout=10)
        late = [r.submit(ranges[i], memory(10), background=True) for i in (1, 2)]
        early = [r.submit(ranges[i], memory(10)) for i in (3, 4)]
        late[1].hurry()
        first.hurry()
        gate.open.set()
        for ticket in (first, *late, *early):
            ticket.wait()
        assert order == [0, 3, 4, 2, 1]


def test_nothing_to_read_is_done_at_once(data: tuple[str, bytes]) -> None:
    with Reader(1) as r:
        for ranges in ([], [ReadRange(data[0], 5, 0, 0)], [ReadRange("/nowhere/at/all", 5, 0, 0)]):
            ticket = r.submit(ranges, memory(0))
            assert ticket.done()
            assert ticket.wait()
        assert r.stats().reads == 0


def test_wrong_destinations_are_refused(data: tuple[str, bytes]) -> None:
    with Reader(1) as r:
        for bad in (ReadRange(data[0], 0, 11, 0), ReadRange(data[0], 0, 1, 10), ReadRange(data[0], -1, 1, 0)):
            with pytest.raises(ValueError, match="does not fit"):
                r.submit([bad], memory(10))
        with pytest.raises(ValueError, match="writable"):
            r.submit([ReadRange(data[0], 0, 1, 0)], memoryview(b"12"))
    with pytest.raises(ValueError, match="at least one worker"):
        Reader(0)


def test_close_while_busy_ends_every_ticket_and_thread(data: tuple[str, bytes]) -> None:
    gate = Gate()
    r = Reader(1, "off", pread=gate)
    running = r.submit([ReadRange(data[0], 0, 100, 0)], memory(100))
    queued = [r.submit([ReadRange(data[0], 0, 100, 0)], memory(100), background=b) for b in (False, True)]
    assert gate.entered.acquire(timeout=10)
    closer = threading.Thread(target=r.close)
    closer.start()
    for ticket in queued:
        with pytest.raises(EngineClosedError):
            ticket.wait(10)
    assert not running.done()
    gate.open.set()
    closer.join(10)
    assert running.wait(0)
    with pytest.raises(EngineClosedError):
        r.submit([], memory(0))
    r.close()


def test_files_are_opened_once_and_closed(data: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(
        reader, "open_data_file", lambda path, *rest: opened.append(path) or files.open_data_file(path, *rest)
    )
    r = Reader(2, "off")
    for _ in range(3):
        r.submit([ReadRange(data[0], 0, 10, 0)], memory(10)).wait()
    fds = [f.fd for f in r._files.values()]
    r.close()
    assert opened == [data[0]]
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_many_tickets_in_flight_from_several_threads(data: tuple[str, bytes]) -> None:
    path, content = data
    wrong: list[int] = []

    def ask(seed: int, r: Reader) -> None:
        for i in range(20):
            offset = (seed * 7919 + i * 10_007) % (SIZE - 5000)
            target = memory(5000)
            r.submit([ReadRange(path, offset, 5000, 0)], target).wait()
            if target != content[offset : offset + 5000]:
                wrong.append(offset)

    with Reader(4) as r:
        askers = [threading.Thread(target=ask, args=(i, r)) for i in range(4)]
        for t in askers:
            t.start()
        for t in askers:
            t.join()
        assert not wrong
        assert r.stats().in_flight == 0


@pytest.mark.parametrize(
    ("offset", "n_bytes"), [(1, 100), (700, SIZE - 700), (PAGE - 1, 2), (1234, 20_000), (PAGE, 5000)]
)
def test_a_range_that_lies_as_in_its_file_is_read_in_place_but_for_its_ends(
    data: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch, offset: int, n_bytes: int
) -> None:
    copied: list[int] = []
    move = ctypes.memmove
    monkeypatch.setattr(ctypes, "memmove", lambda to, of, n: copied.append(n) or move(to, of, n))
    target = memory(SIZE + PAGE)
    at = offset % PAGE
    with Reader(2, "on") as r:
        r.submit([ReadRange(data[0], offset, n_bytes, at)], target).wait()
        assert r.stats().read_bytes == n_bytes
    assert target[at : at + n_bytes] == data[1][offset : offset + n_bytes]
    assert target[:at] == bytes([UNTOUCHED]) * at
    assert target[at + n_bytes :] == bytes([UNTOUCHED]) * (len(target) - at - n_bytes)
    assert sum(copied) < 2 * PAGE
