"""Experts in slots: their arithmetic, their bytes, waves, arrival orders, and what is left when a read fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from qwen_chat_mlx.engine.checkpoint.quant import Stored
from qwen_chat_mlx.engine.errors import Cancelled, StorageError
from qwen_chat_mlx.engine.layers.expert import ExpertMath
from qwen_chat_mlx.engine.meter import Meter
from qwen_chat_mlx.engine.offload import shelf as shelves
from qwen_chat_mlx.engine.offload.experts import ExpertStore
from qwen_chat_mlx.engine.offload.files import os_pread
from qwen_chat_mlx.engine.offload.layer_buffer import LayerBuffer
from qwen_chat_mlx.engine.offload.layout import ExpertLayout, Part
from qwen_chat_mlx.engine.offload.memory import PAGE, Pool
from qwen_chat_mlx.engine.offload.reader import Reader
from qwen_chat_mlx.engine.offload.routed import routed

LAYERS, EXPERTS, HIDDEN, WIDTH = 2, 6, 16, 8


class Shelf:
    """A file of float32 experts, a reader that can be told to fail, and a store over both."""

    def __init__(self, folder: Path, slots: int, policy: str = "decay") -> None:
        rng = np.random.default_rng(0)
        self.gate_up = rng.standard_normal((LAYERS, EXPERTS, 2 * WIDTH, HIDDEN)).astype(np.float32) / 4
        self.down = rng.standard_normal((LAYERS, EXPERTS, HIDDEN, WIDTH)).astype(np.float32) / 4
        path = folder / "experts.bin"
        path.write_bytes(b"head" + self.gate_up.tobytes() + self.down.tobytes())
        sizes = 8 * WIDTH * HIDDEN, 4 * WIDTH * HIDDEN
        order = np.arange(LAYERS * EXPERTS).reshape(LAYERS, EXPERTS)
        offsets = np.stack([4 + order * sizes[0], 4 + LAYERS * EXPERTS * sizes[0] + order * sizes[1]], axis=-1)
        parts = (
            Part("gate_up", "F32", (2 * WIDTH, HIDDEN), 0, sizes[0]),
            Part("down", "F32", (HIDDEN, WIDTH), sizes[0], sizes[1]),
        )
        self.layout = ExpertLayout(
            prefixes=("a", "b"), parts=parts, stored={}, paths=(str(path),), files=np.zeros((LAYERS, EXPERTS, 2), np.int32),
            offsets=offsets,
        )  # fmt: skip
        self.meter = Meter()
        self.before = lambda offset: None
        self.reader = Reader(4, "off", pread=self._pread)
        self.math = ExpertMath(self.layout, mx.float32, [])
        self.store = ExpertStore(self.layout, self.reader, self.math, slots, policy, self.meter)

    def _pread(self, fd: int, view: memoryview, offset: int) -> int:
        most = self.before(offset)
        return os_pread(fd, view if most is None else view[:most], offset) if most != 0 else 0

    def place(self, layer: int, expert: int) -> int:
        """File offset of an expert's first matrix."""
        return self.layout.ranges(layer, expert)[0].offset

    def product(self, layer: int, x: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """[t, k, H] in float64."""
        out = np.zeros((*ids.shape, HIDDEN))
        for t, k in np.ndindex(ids.shape):
            gate, up = np.split(self.gate_up[layer, ids[t, k]].astype(np.float64) @ x[t], 2)
            out[t, k] = self.down[layer, ids[t, k]] @ (gate / (1 + np.exp(-gate)) * up)
        return out

    def consistent(self) -> None:
        """Every slot is empty or holds exactly the bytes of the expert in its book; nobody is there twice."""
        residents = self.store.table.residents()
        assert len({slot for *_, slot in residents}) == len(residents)
        assert len(residents) + len(self.store.table._free) == self.store.table.slots
        for layer, expert, slot in residents:
            stored = self.gate_up[layer, expert].tobytes() + self.down[layer, expert].tobytes()
            assert bytes(self.store.memory(slot))[: len(stored)] == stored, (layer, expert, slot)


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Any]:
    made: list[Shelf] = []

    def make(slots: int, policy: str = "decay") -> Shelf:
        made.append(Shelf(tmp_path, slots, policy))
        return made[-1]

    yield make
    for one in made:
        one.reader.close()


def rows(t: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    ids = np.stack([rng.permutation(EXPERTS)[:k] for _ in range(t)]).astype(np.int32)
    return rng.standard_normal((t, HIDDEN)).astype(np.float32), ids


def nothing(_: object) -> None:
    """For side effects inside a lambda."""


def run(shelf: Shelf, layer: int, x: np.ndarray, ids: np.ndarray, together: bool = False) -> np.ndarray:
    return np.array(shelf.store.run(layer, [mx.array(x)], [ids], together=together)[0])


# ---- arithmetic


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(("t", "k"), [(1, 1), (1, 6), (5, 2), (40, 3)])
def test_outputs_are_the_experts_products_in_their_places(shelf: Any, t: int, k: int, together: bool) -> None:
    s = shelf(EXPERTS)
    x, ids = rows(t, k)
    np.testing.assert_allclose(run(s, 1, x, ids, together), s.product(1, x, ids), atol=1e-5)


def test_several_parts_share_one_read_of_each_expert(shelf: Any) -> None:
    s = shelf(EXPERTS)
    x, ids = rows(9, 2)
    whole = run(s, 0, x, ids)
    parts = s.store.run(
        0, [mx.array(x[i : i + 1]) for i in range(9)], [ids[i : i + 1] for i in range(9)], together=False
    )
    np.testing.assert_array_equal(np.concatenate([np.array(p) for p in parts]), whole)
    assert s.store.stats().read_bytes == len(np.unique(ids)) * s.layout.expert_bytes


FP8 = np.array(mx.from_fp8(mx.arange(256, dtype=mx.uint8), mx.float32))


@pytest.mark.parametrize(
    ("wide", "narrow", "block"),
    [(16, 32, (8, 16)), (20, 40, (8, 16)), (5, 7, (128, 128)), (8, 33, (8, 16)), (9, 16, (4, 16)), (1, 1, (128, 128))],
)
def test_fp8_experts_equal_their_numpy_dequantisation_with_cut_blocks(
    wide: int, narrow: int, block: tuple[int, int]
) -> None:
    """`wide` rows of gate and up by `narrow` columns; the last block of a side may be cut."""
    rng = np.random.default_rng(0)
    parts, stored, codes, scales, at = [], {}, {}, {}, 0
    for role, shape in (("gate", (wide, narrow)), ("up", (wide, narrow)), ("down", (narrow, wide))):
        parts.append(Part(role, "F8_E4M3", shape, at, wide * narrow))
        grid = tuple(-(-n // b) for n, b in zip(shape, block))
        stored[role] = Stored("fp8_block", "F8_E4M3", shape, scale="some", block=block)
        codes[role] = rng.integers(0, 120, shape, np.uint8) + 128 * rng.integers(0, 2, shape, np.uint8)
        bits = (rng.random((2, *grid), np.float32) / 50 + 0.001).view(np.uint32) >> 16
        scales[role] = bits.astype(np.uint16)
        at += wide * narrow
    layout = ExpertLayout(
        prefixes=("a",), parts=tuple(parts), stored=stored, paths=("x",), files=np.zeros((1, 2, 3), np.int32),
        offsets=np.zeros((1, 2, 3), np.int64),
    )  # fmt: skip

    def dense(role: str, expert: int) -> np.ndarray:
        full = (scales[role][expert].astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        full = full.repeat(block[0], 0).repeat(block[1], 1)[: codes[role].shape[0], : codes[role].shape[1]]
        return FP8[codes[role]].astype(np.float64) * full

    math = ExpertMath(layout, mx.float32, [scales])
    stacks = {role: mx.array(np.stack([c, 255 - c])) for role, c in codes.items()}
    x = rng.standard_normal((3, narrow)).astype(np.float32)
    for expert in (0, 1):
        gate, up = x @ dense("gate", expert).T, x @ dense("up", expert).T
        expected = (gate / (1 + np.exp(-gate)) * up) @ dense("down", expert).T
        got = np.array(math.together(mx.array(x), {role: stack[0] for role, stack in stacks.items()}, 0, expert))
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
        apart = math.apart(mx.array(x)[:, None], stacks, mx.array([0] * 3), 0, mx.array([expert] * 3))
        np.testing.assert_array_equal(np.array(apart)[:, 0], got)


@pytest.mark.parametrize("scale", [0.0, 2.0**-133, 0.0123, 127.0, 128.0, 3e38])
def test_every_finite_fp8_code_under_any_scale_has_the_bits_of_the_plain_conversion(scale: float) -> None:
    shape = (16, 16)
    parts = tuple(Part(role, "F8_E4M3", shape, 256 * i, 256) for i, role in enumerate(("gate", "up", "down")))
    stored = {p.role: Stored("fp8_block", "F8_E4M3", shape, scale="some", block=shape) for p in parts}
    layout = ExpertLayout(
        prefixes=("a",), parts=parts, stored=stored, paths=("x",), files=np.zeros((1, 1, 3), np.int32),
        offsets=np.zeros((1, 1, 3), np.int64),
    )  # fmt: skip
    bits = (np.full((1, 1, 1), scale, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    math = ExpertMath(layout, mx.float32, [{p.role: bits for p in parts}])
    codes = np.where(np.isnan(FP8), 0, np.arange(256)).astype(np.uint8).reshape(shape)
    with np.errstate(over="ignore"):
        expected = FP8[codes] * (bits.astype(np.uint32) << 16).view(np.float32)[0]
    np.testing.assert_array_equal(np.array(math._matrix(mx.array(codes), "gate", 0, 0)), expected)


def test_bfloat16_experts_are_computed_in_the_models_dtype(shelf: Any) -> None:
    s = shelf(1)
    math = ExpertMath(s.layout, mx.bfloat16, [])
    stacks = {"gate_up": mx.array(s.gate_up[0]), "down": mx.array(s.down[0])}
    x = mx.ones((2, HIDDEN), dtype=mx.bfloat16)
    assert math.together(x, {role: stack[0] for role, stack in stacks.items()}, 0, 0).dtype == mx.bfloat16
    assert math.apart(x[:, None], stacks, mx.array([1, 3]), 0, mx.array([1, 3])).dtype == mx.bfloat16


# ---- residency, waves, order of arrival


def test_results_do_not_depend_on_slots_policy_grouping_or_arrival(shelf: Any) -> None:
    x, ids = rows(30, 3, seed=5)
    expected = run(shelf(LAYERS * EXPERTS), 0, x, ids)
    random = np.random.default_rng(0)
    pause = threading.Event()

    def late(_: int) -> None:
        pause.wait(float(random.random()) / 300)

    for slots in (3, 4, 6, 12):
        for policy in ("decay", "lru", "lfu"):
            s = shelf(slots, policy)
            s.before = late
            for layer in (0, 1, 0):
                for together in (False, True):
                    got = run(s, layer, x, ids, together)
                    if layer == 0:
                        np.testing.assert_array_equal(got, expected)
            s.consistent()


def test_a_union_larger_than_the_slots_runs_in_waves_and_reads_each_expert_once(shelf: Any) -> None:
    s = shelf(2)
    x, ids = rows(10, 3)
    np.testing.assert_allclose(run(s, 0, x, ids), s.product(0, x, ids), atol=1e-5)
    stats = s.store.stats()
    assert (stats.waves, stats.misses, stats.hits) == (2, 6, 0)
    assert stats.read_bytes == EXPERTS * s.layout.expert_bytes
    s.consistent()


def test_one_slot_is_enough(shelf: Any) -> None:
    s = shelf(1)
    x, ids = rows(4, 6)
    np.testing.assert_allclose(run(s, 0, x, ids), s.product(0, x, ids), atol=1e-5)
    s.consistent()


def test_resident_experts_are_not_read_again(shelf: Any) -> None:
    s = shelf(EXPERTS)
    x, ids = rows(10, 3)
    run(s, 0, x, ids)
    s.before = lambda offset: pytest.fail("read")
    read = s.reader.stats().reads
    run(s, 0, x, ids)
    stats = s.store.stats()
    assert (stats.hits, stats.misses, s.reader.stats().reads) == (6, 6, read)


def test_resident_experts_are_computed_while_the_others_are_read(shelf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    s = shelf(EXPERTS)
    x, _ = rows(1, 1)
    run(s, 0, x, np.array([[2]], np.int32))
    computed, compute = threading.Event(), s.store._shelf.apart

    def seen(x: Any, layer: int, experts: Any, places: Any) -> Any:
        if 2 in experts:
            computed.set()
        return compute(x, layer, experts, places)

    def held(offset: int) -> None:
        assert computed.wait(10)

    s.before = held
    monkeypatch.setattr(s.store._shelf, "apart", seen)
    got = run(s, 0, x, np.array([[4, 2]], np.int32))
    np.testing.assert_allclose(got, s.product(0, x, np.array([[4, 2]])), atol=1e-5)


def test_all_misses_of_a_layer_are_in_flight_together(shelf: Any) -> None:
    s = shelf(EXPERTS)
    x, _ = rows(1, 1)
    together = threading.Barrier(4)
    s.before = lambda offset: nothing(together.wait(10))
    run(s, 0, x, np.array([[1, 3]], np.int32))


# ---- failures


@pytest.mark.parametrize("fault", ["EIO", "short", "end of file"])
@pytest.mark.parametrize("slots", [2, 6, 12])
def test_a_failed_read_leaves_a_consistent_table_and_the_next_run_works(shelf: Any, slots: int, fault: str) -> None:
    s = shelf(slots)
    x, ids = rows(8, 2, seed=1)
    run(s, 1, x, ids)
    place = s.place(0, 3)

    def broken(offset: int) -> int | None:
        if offset != place:
            return None
        if fault == "EIO":
            raise OSError(5, "Input/output error")
        return 0 if fault == "end of file" else 1

    s.before = broken
    if fault == "short":
        # Short reads are gone on with; only the end of the file is an error.
        np.testing.assert_allclose(run(s, 0, x, ids), s.product(0, x, ids), atol=1e-5)
    else:
        for _ in range(2):
            with pytest.raises(StorageError) as e:
                run(s, 0, x, ids)
            assert "experts.bin" in e.value.message
            assert s.store.table.slot(0, 3) is None
            s.consistent()
    s.before = lambda offset: None
    for layer in (0, 1):
        np.testing.assert_allclose(run(s, layer, x, ids), s.product(layer, x, ids), atol=1e-5)
    s.consistent()


def test_a_stop_while_waiting_for_the_disk_leaves_at_once_and_nobody_writes_later(shelf: Any) -> None:
    s = shelf(2)
    x, ids = rows(4, 2)
    asked, go_on = threading.Event(), threading.Event()

    def held(offset: int) -> None:
        asked.set()
        go_on.wait(0.3)

    s.before = held
    s.meter.cancel = asked.is_set
    with pytest.raises(Cancelled):
        run(s, 0, x, ids)
    written = bytes(s.store.memory(0))
    assert len(s.store.table) == 0
    go_on.set()
    assert bytes(s.store.memory(0)) == written
    s.meter.cancel, s.before = lambda: False, lambda offset: None
    np.testing.assert_allclose(run(s, 0, x, ids), s.product(0, x, ids), atol=1e-5)
    s.consistent()


def test_a_stop_between_waves_keeps_what_arrived(shelf: Any) -> None:
    s = shelf(2)
    x, ids = rows(8, 3)
    waves = iter([False, True])
    s.meter.cancel = lambda: next(waves, True) if s.store.stats().waves else False
    with pytest.raises(Cancelled):
        run(s, 0, x, ids)
    s.meter.cancel = lambda: False
    s.consistent()
    np.testing.assert_allclose(run(s, 0, x, ids), s.product(0, x, ids), atol=1e-5)


# ---- whole layers


def test_a_layer_buffer_reads_a_layer_once_and_computes_as_slots_do(shelf: Any) -> None:
    s = shelf(EXPERTS)
    x, ids = rows(20, 3)
    buffer = LayerBuffer(s.layout, s.reader, s.math, s.meter)
    for layer in (1, 0):
        assert buffer.load(layer) == EXPERTS * s.layout.expert_bytes
        buffer.wait()
        for together in (False, True):
            got = buffer.run(layer, [mx.array(x)], [ids], together=together)[0]
            np.testing.assert_array_equal(np.array(got), run(s, layer, x, ids, together))
    assert s.reader.stats().read_bytes >= 2 * EXPERTS * s.layout.expert_bytes


def test_experts_handed_over_from_a_buffer_have_their_own_bytes(shelf: Any) -> None:
    s = shelf(4)
    x, ids = rows(20, 2)
    buffer = LayerBuffer(s.layout, s.reader, s.math, s.meter)
    buffer.load(1)
    buffer.wait()
    s.store.table.prime(1, ids)
    s.store.hand_over(1, buffer, 3)
    assert s.store.stats().handed_over == 3
    s.consistent()
    np.testing.assert_allclose(run(s, 1, x, ids), s.product(1, x, ids), atol=1e-5)


def test_a_dropped_buffer_is_not_written_to_any_more(shelf: Any) -> None:
    s = shelf(1)
    buffer = LayerBuffer(s.layout, s.reader, s.math, s.meter)
    gate = threading.Event()
    s.before = lambda offset: nothing(gate.wait(0.2))
    buffer.load(0)
    buffer.drop()
    written = bytes(buffer.pool.memory(0))
    gate.set()
    assert bytes(buffer.pool.memory(0)) == written
    assert s.reader.stats().in_flight == 0


@pytest.mark.parametrize("together", [False, True])
def test_an_expert_that_was_not_computed_is_noticed(shelf: Any, together: bool) -> None:
    s = shelf(EXPERTS)
    run(s, 0, *rows(1, 1))
    places = routed([mx.ones((1, HIDDEN))], [np.array([[1, 2]], np.int32)], together=together)
    places.compute(s.store._shelf, 0, [(1, 0)])
    with pytest.raises(AssertionError, match="not computed"):
        places.outputs()


# ---- everything resident


def unread(shelf: Shelf, layer: int, parts: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
    made = shelf.store.run_unread(layer, [mx.array(x) for x, _ in parts], [mx.array(ids) for _, ids in parts])
    return [np.array(one) for one in made]


@pytest.mark.parametrize(("t", "k"), [(1, 1), (1, 6), (5, 3), (15, 4)])
def test_choices_that_nobody_reads_give_the_bits_of_those_that_are_read(shelf: Any, t: int, k: int) -> None:
    s = shelf(LAYERS * EXPERTS)
    x, ids = rows(t, k)
    assert not s.store.whole()
    first = run(s, 1, x, ids)
    s.store.fill()
    assert s.store.whole()
    np.testing.assert_array_equal(unread(s, 1, [(x, ids)])[0], first)
    parts = [(x[i : i + 1], ids[i : i + 1]) for i in range(t)]
    np.testing.assert_array_equal(np.concatenate(unread(s, 1, parts)), first)


def test_lookups_that_nobody_read_are_counted_like_the_others(shelf: Any) -> None:
    s = shelf(LAYERS * EXPERTS)
    s.store.fill()
    assert s.store.whole()
    x, ids = rows(7, 3)
    run(s, 0, x, ids)
    asked = s.store.stats().hits
    unread(s, 0, [(x, ids)])
    unread(s, 0, [(x[:1], ids[:1])])
    unread(s, 0, [(x[i : i + 1], ids[i : i + 1]) for i in range(7)])
    stats = s.store.stats()
    assert (stats.hits, stats.misses) == (3 * asked + 3, 0)
    for _ in range(300):
        unread(s, 0, [(x, ids)])
    assert s.store.stats().hits == 303 * asked + 3


def test_filling_reads_each_absent_expert_once_and_only_where_all_have_slots(shelf: Any) -> None:
    s = shelf(LAYERS * EXPERTS)
    run(s, 1, *rows(1, 2))
    told: list[tuple[int, int]] = []
    for _ in range(2):
        s.store.fill(lambda done, total: told.append((done, total)))
    assert told == [(8, 12), (12, 12)]
    assert s.reader.stats().read_bytes == LAYERS * EXPERTS * s.layout.expert_bytes
    s.consistent()
    crowded = shelf(LAYERS * EXPERTS - 1)
    crowded.store.fill()
    assert len(crowded.store.table) == 0
    assert not crowded.store.whole()


def test_a_read_that_fails_while_filling_is_told_and_the_next_filling_goes_on(shelf: Any) -> None:
    s = shelf(LAYERS * EXPERTS)

    def broken(offset: int) -> None:
        if offset == s.place(1, 2):
            raise OSError(5, "Input/output error")

    s.before = broken
    with pytest.raises(StorageError):
        s.store.fill()
    assert not s.store.whole()
    s.consistent()
    s.before = lambda offset: None
    s.store.fill()
    assert s.store.whole()
    s.consistent()


def test_who_listens_to_lookups_hears_them(shelf: Any) -> None:
    s = shelf(LAYERS * EXPERTS)
    s.store.fill()
    s.store.on_lookup = lambda layer, experts: None
    assert not s.store.whole()


def test_products_are_made_a_few_at_a_time_where_their_matrices_are_large(shelf: Any) -> None:
    s = shelf(LAYERS * EXPERTS)
    s.store.fill()
    x, ids = rows(7, 3)
    expected = run(s, 0, x, ids)
    assert s.store.whole()
    for most in (1, 2, 20, 21):
        s.math.most_apart = most
        np.testing.assert_array_equal(run(s, 0, x, ids), expected)
        np.testing.assert_array_equal(unread(s, 0, [(x, ids)])[0], expected)


@pytest.mark.parametrize("slots", [4, 12])
def test_a_pool_too_long_for_one_array_is_several_blocks(
    shelf: Any, monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    x, ids = rows(9, 3)
    expected = run(shelf(LAYERS * EXPERTS), 1, x, ids)
    for places, block in ((1, 1), (5, 5), (7, 6)):
        monkeypatch.setattr(shelves, "FLAT_BYTES", places * PAGE)
        s = shelf(slots)
        assert s.store._shelf.width == min(block, slots)
        for together in (False, True):
            np.testing.assert_array_equal(run(s, 1, x, ids, together), expected)
        s.store.fill()
        assert s.store.whole() == (slots == 12 and block == 6)
        if s.store.whole():
            np.testing.assert_array_equal(unread(s, 1, [(x, ids)])[0], expected)


# ---- memory


@pytest.mark.parametrize(("count", "size"), [(1, 1), (3, 4096), (5, 6000)])
def test_pieces_of_a_pool_begin_on_pages_and_are_one_memory_with_their_arrays(count: int, size: int) -> None:
    pool = Pool(count, size)
    arrays = pool.arrays(0, pool.stride, count, mx.uint8, (size,))
    mx.eval(arrays)
    for i in range(count):
        memory = pool.memory(i)
        assert np.frombuffer(memory, np.uint8).ctypes.data % PAGE == 0
        memory[:] = bytes([i + 1]) * size
        assert arrays[i].tolist() == [i + 1] * size
    assert [bytes(pool.memory(i)) for i in range(count)] == [bytes([i + 1]) * size for i in range(count)]
    assert pool.nbytes == Pool.bytes_for(count, size)


def test_arrays_of_a_pool_have_their_type_and_shape() -> None:
    pool = Pool(3, 40)
    for i in range(3):
        pool.memory(i)[8:32] = np.arange(6, dtype=np.float32).tobytes()
    arrays = pool.arrays(8, pool.stride, 3, mx.float32, (2, 3))
    assert arrays.tolist() == [[[0, 1, 2], [3, 4, 5]]] * 3
    assert pool.arrays(pool.stride + 28, 4, 1, mx.float32, (1,)).tolist() == [[5]]


@pytest.mark.slow
def test_a_piece_and_a_pool_may_be_larger_than_two_gibibytes() -> None:
    beyond = 2**31 + 5
    pool = Pool(1, beyond + 4096)
    pool.memory(0)[beyond : beyond + 3] = b"abc"
    array = pool.arrays(beyond, 3, 1, mx.uint8, (3,))
    mx.eval(array)
    assert bytes(array[0].tolist()) == b"abc"
    pool.memory(0)[beyond : beyond + 1] = b"x"
    assert bytes(array[0].tolist()) == b"xbc"
