"""Reading ahead: bits and books stay right whatever was guessed and however reads end, and it stops where it costs time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from qwen_chat_mlx.engine.errors import StorageError
from qwen_chat_mlx.engine.offload import prefetch
from qwen_chat_mlx.engine.offload.policy import SlotTable
from qwen_chat_mlx.engine.offload.prefetch import STRETCH, TRIALS, Prefetch


class Read:
    """A ticket that ends when it is told to."""

    def __init__(self, expert: int) -> None:
        self.expert, self.over, self.hurried, self.cancelled = expert, False, False, False
        self.failure: StorageError | None = None

    def done(self) -> bool:
        return self.over

    def wait(self) -> bool:
        if self.failure is not None:
            raise self.failure
        return True

    def hurry(self) -> None:
        self.hurried = True

    def cancel(self) -> None:
        self.cancelled = self.over = True


class Desk:
    """Two layers of 16 experts over `slots` slots, with reads that end by hand and a clock that is set by hand."""

    def __init__(self, slots: int = 24) -> None:
        self.table, self.reads, self.time = SlotTable(slots, 2, 16, "lru"), {}, 0.0
        self.ahead = Prefetch(self.table, self._read, lambda: self.time)  # pyright: ignore[reportArgumentType]
        self.table.claim_all(0, [0, 1, 2])

    def _read(self, layer: int, expert: int, slot: int) -> Any:
        assert self.table.slot(layer, expert) == slot
        self.reads[layer, expert] = Read(expert)
        return self.reads[layer, expert]

    def guess(self, *experts: int) -> None:
        self.ahead.expect(experts)
        self.ahead.start(0, [0, 1, 2])


def test_what_was_guessed_right_is_taken_over_with_its_read() -> None:
    d = Desk()
    d.guess(5, 6, 7, 8)
    assert set(d.reads) == {(1, 5), (1, 6), (1, 7)}, "an eighth of the slots at most"
    d.reads[1, 6].over = True
    found = d.ahead.take(1, [6, 7, 9])
    assert found == {(7, d.table.slot(1, 7)): d.reads[1, 7]}
    assert d.reads[1, 7].hurried
    assert (d.ahead.issued, d.ahead.useful) == (3, 2)


def test_a_wrong_guess_is_left_to_come_and_cannot_be_evicted_meanwhile() -> None:
    d = Desk()
    d.guess(5)
    assert d.ahead.take(1, [9]) == {}
    d.table.claim_all(1, [e for e in range(16) if e != 5])
    d.table.claim_all(0, list(range(3, 9)), list(range(9)))
    assert d.table.slot(1, 5) is not None
    d.reads[1, 5].over = True
    assert d.ahead.take(0, [3]) == {}
    d.table.claim_all(0, list(range(9, 16)), list(range(16)))
    d.table.claim_all(1, [0], [0]) if d.table.slot(1, 0) is None else None
    assert d.ahead.useful == 0


def test_a_guess_evicts_nobody_who_is_in_use() -> None:
    d = Desk(slots=24)
    d.table.claim_all(1, list(range(16)))
    d.table.claim_all(0, [3, 4, 5, 6, 7])
    d.table.release(1, 15)
    d.table.claim_all(0, [8])
    d.ahead.expect([15])
    d.ahead.start(0, list(range(9)))
    assert all(d.table.slot(0, e) is not None for e in range(9))
    assert d.table.slot(1, 15) is not None


def test_a_guess_whose_read_fails_is_forgotten() -> None:
    d = Desk()
    d.guess(5)
    d.reads[1, 5].failure, d.reads[1, 5].over = StorageError("broken"), True
    assert d.ahead.take(1, [5]) == {}
    assert d.table.slot(1, 5) is None
    assert d.ahead.useful == 0


def test_dropping_stops_every_read() -> None:
    d = Desk()
    d.guess(5, 6)
    d.ahead.drop()
    assert all(read.cancelled for read in d.reads.values())
    assert len(d.table) == 3
    d.table.clear()


def test_with_few_slots_nothing_is_guessed() -> None:
    d = Desk(slots=7)
    assert not d.ahead.wanted
    d.guess(5)
    assert not d.reads
    assert d.ahead.state == "off: too few slots"


@pytest.mark.parametrize(("with_it", "chosen"), [(0.9, True), (0.99, False), (1.0, False), (1.5, False)])
def test_the_faster_way_is_chosen_and_the_other_looked_at_again(with_it: float, chosen: bool) -> None:
    d = Desk()
    ways = []
    for _ in range(STRETCH * (2 * TRIALS + 3 * prefetch.LOOK_EVERY)):
        ways.append(d.ahead.wanted)
        d.ahead.begin(1)
        d.time += with_it if d.ahead.wanted else 1.0
        d.ahead.end()
    assert d.ahead.state.startswith("on: " if chosen else "off: ")
    later = ways[STRETCH * 2 * TRIALS :]
    share = sum(later) / len(later)
    assert share > 0.9 if chosen else share < 0.1
    assert 0 < share < 1


def test_a_chosen_way_is_given_up_when_the_other_becomes_faster() -> None:
    d = Desk()
    for turn in range(STRETCH * 40 * prefetch.LOOK_EVERY):
        d.ahead.begin(1)
        d.time += 1.0 if turn < 1000 or not d.ahead.wanted else 0.5
        d.ahead.end()
    assert d.ahead.state.startswith("on: ")


# ---- in a session


def test_reading_ahead_changes_no_bit(layout: Any, open_session: Callable[..., Any], continued: Any) -> None:
    texts = []
    for settings in ({}, {"prefetch": True}, {"prefetch": True, "mtp": "fixed", "max_draft": 2, "verify": "strict"}):
        session = open_session(layout, expert_cache="50 %", **settings)
        texts.append(continued(session, layout.prompt, 20))
        stats = session.stats().experts
        assert (stats.guessed > 0) == bool(settings)
        assert 0 <= stats.guessed_right <= stats.guessed
        assert bool(stats.prefetch) == bool(settings)
    assert texts[0] == texts[1] == texts[2] == layout.greedy[:20]


def test_reads_that_fail_ahead_harm_nobody(
    tiny: Any, disk: Any, open_session: Callable[..., Any], continued: Any
) -> None:
    session = open_session(tiny, expert_cache="50 %", prefetch=True)
    expected = continued(session, tiny.prompt, 12)
    fail = np.random.default_rng(0)

    def broken(kind: str, number: int) -> None:
        if kind == "experts" and fail.random() < 0.1:
            raise OSError(5, "Input/output error")

    for _ in range(12):
        disk.before = broken
        with contextlib.suppress(StorageError):
            assert continued(session, tiny.prompt, 12) == expected
        disk.before = lambda kind, number: None
        assert continued(session, tiny.prompt, 12) == expected
