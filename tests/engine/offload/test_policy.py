"""The slot book and the policies: against slow versions, and what must hold whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen_chat_mlx.engine.offload import decay
from qwen_chat_mlx.engine.offload.decay import DecayPolicy
from qwen_chat_mlx.engine.offload.policy import POLICIES, LfuPolicy, SlotTable

LAYERS, EXPERTS = 3, 6
everyone = pytest.mark.parametrize("policy", sorted(POLICIES))


def leave(
    resident: list[int], count: int, layer: int, protected: Sequence[int], pinned: Container[int],
    rank: Callable[[int], Any],
) -> list[int]:  # fmt: skip
    """Take the first `count` of all that may leave, sorted anew, out of `resident`."""
    may = [k for k in resident if k not in pinned and k not in {layer * EXPERTS + e for e in protected}]
    found = sorted(may, key=rank)[:count]
    for key in found:
        resident.remove(key)
    return found


class SlowLru:
    """Least recently used, by searching all residents."""

    def __init__(self) -> None:
        self.clock = 0
        self.last: dict[int, int] = {}
        self.resident: list[int] = []

    def record(self, layer: int, experts: Sequence[int]) -> None:
        for e in experts:
            self.clock += 1
            self.last[layer * EXPERTS + e] = self.clock

    def added(self, layer: int, experts: Sequence[int]) -> None:
        for e in experts:
            self.clock += 1
            self.last[layer * EXPERTS + e] = self.clock
            self.resident.append(layer * EXPERTS + e)

    def removed(self, key: int) -> None:
        self.resident.remove(key)

    def evict(self, count: int, layer: int, protected: Sequence[int], pinned: Container[int]) -> list[int]:
        return leave(self.resident, count, layer, protected, pinned, lambda k: self.last[k])


class SlowLfu:
    """Least often used, every layer's counts halved after so many of its turns, by searching all residents."""

    def __init__(self) -> None:
        self.counts = [0.0] * (LAYERS * EXPERTS)
        self.turns = [0] * LAYERS
        self.resident: list[int] = []

    def record(self, layer: int, experts: Sequence[int]) -> None:
        for e in experts:
            self.counts[layer * EXPERTS + e] += 1
        self.turns[layer] += 1
        if self.turns[layer] % LfuPolicy.HALVE_AFTER == 0:
            for e in range(EXPERTS):
                self.counts[layer * EXPERTS + e] /= 2

    def added(self, layer: int, experts: Sequence[int]) -> None:
        self.resident += [layer * EXPERTS + e for e in experts]

    def removed(self, key: int) -> None:
        self.resident.remove(key)

    def evict(self, count: int, layer: int, protected: Sequence[int], pinned: Container[int]) -> list[int]:
        return leave(self.resident, count, layer, protected, pinned, lambda k: (self.counts[k], k))


class SlowDecay(DecayPolicy):
    """The same expectations, by sorting all residents."""

    def __init__(self) -> None:
        super().__init__(LAYERS, EXPERTS)
        self.resident: list[int] = []
        self.added, self.removed = self._added, self.resident.remove

    def _added(self, layer: int, experts: Sequence[int]) -> None:
        self.resident += [layer * EXPERTS + e for e in experts]

    def evict(self, count: int, layer: int, protected: Sequence[int], pinned: Container[int]) -> list[int]:
        def rank(key: int) -> tuple[float, int]:
            at, expert = divmod(key, EXPERTS)
            return -(float(self._ranks.value[at][expert]) + self._offset[at]), key

        return leave(self.resident, count, layer, protected, pinned, rank)


forwards = st.lists(
    st.tuples(
        st.integers(0, LAYERS - 1), st.lists(st.integers(0, EXPERTS - 1), min_size=1, max_size=3, unique=True)
    ),
    max_size=60,
)  # fmt: skip


def drive(table: SlotTable, forwards: list[tuple[int, list[int]]]) -> list[tuple]:
    """Every forward looked up and its misses claimed; what happened."""
    seen = []
    for layer, experts in forwards:
        found = table.lookup(layer, experts)
        seen.append((found, table.claim_all(layer, found.misses, experts)))
    return seen


@pytest.mark.parametrize(("name", "slow"), [("lru", SlowLru), ("lfu", SlowLfu), ("decay", SlowDecay)])
@given(forwards=forwards, slots=st.integers(3, 12))
@settings(max_examples=25, deadline=None)
def test_the_fast_policy_evicts_whom_the_slow_one_evicts(
    name: str, slow: type, forwards: list[tuple[int, list[int]]], slots: int
) -> None:
    fast = drive(SlotTable(slots, LAYERS, EXPERTS, name), forwards)
    assert fast == drive(SlotTable(slots, LAYERS, EXPERTS, slow()), forwards)


@given(forwards=forwards)
@settings(max_examples=10, deadline=None)
def test_lfu_halves_its_counts_a_layer_at_a_time(forwards: list[tuple[int, list[int]]]) -> None:
    forwards = forwards * 5
    fast, slow = SlotTable(4, LAYERS, EXPERTS, "lfu"), SlotTable(4, LAYERS, EXPERTS, SlowLfu())
    assert drive(fast, forwards) == drive(slow, forwards)


@everyone
@given(forwards=forwards, slots=st.integers(3, LAYERS * EXPERTS))
@settings(max_examples=20, deadline=None)
def test_a_victim_is_never_protected_and_every_key_has_its_own_slot(
    policy: str, forwards: list[tuple[int, list[int]]], slots: int
) -> None:
    table = SlotTable(slots, LAYERS, EXPERTS, policy)
    book: dict[int, tuple[int, int]] = {}
    for layer, experts in forwards:
        found = table.lookup(layer, experts)
        assert sorted([e for e, _ in found.hits] + found.misses) == sorted(experts)
        assert all(book[s] == (layer, e) for e, s in found.hits)
        for claim in table.claim_all(layer, found.misses, experts):
            assert claim.evicted == book.get(claim.slot)
            assert claim.evicted is None or claim.evicted not in {(layer, e) for e in experts}
            book[claim.slot] = (layer, claim.expert)
        assert {s: (la, e) for la, e, s in table.residents()} == book
        assert len(table) == len(book) <= slots


@everyone
@given(forwards=forwards)
@settings(max_examples=15, deadline=None)
def test_the_same_forwards_give_the_same_victims(policy: str, forwards: list[tuple[int, list[int]]]) -> None:
    a, b = (drive(SlotTable(4, LAYERS, EXPERTS, policy), forwards) for _ in range(2))
    assert a == b


@everyone
def test_a_pinned_expert_stays_until_its_last_unpin(policy: str) -> None:
    table = SlotTable(3, 1, EXPERTS, policy)
    table.claim_all(0, [0, 1, 2])
    table.pin(0, 0)
    table.pin(0, 0)
    table.unpin(0, 0)
    for _ in range(3):
        for e in (3, 4, 5):
            table.lookup(0, [e])
            if table.slot(0, e) is None:
                table.claim(0, e, [e])
    assert table.slot(0, 0) is not None
    assert table.free_slots(0) == 2
    table.unpin(0, 0)
    assert table.free_slots(0) == 3
    with pytest.raises(ValueError, match="not pinned"):
        table.unpin(0, 0)
    with pytest.raises(ValueError, match="not resident"):
        table.pin(0, 1 if table.slot(0, 1) is None else 2)


@everyone
def test_a_claim_that_cannot_be_met_changes_nothing(policy: str) -> None:
    table = SlotTable(3, 2, EXPERTS, policy)
    table.claim_all(0, [0, 1])
    before = table.residents()
    for layer, asked, protected in ((0, [2, 3, 4], [0]), (0, [2, 2], []), (0, [0], []), (1, [0, 1, 2, 3], [])):
        with pytest.raises(ValueError, match=r"slots|claimed"):
            table.claim_all(layer, asked, protected)
        assert table.residents() == before
    assert [c.expert for c in table.claim_all(0, [2, 3], [0])] == [2, 3]
    assert table.slot(0, 0) is not None


@everyone
def test_released_slots_are_empty_again_and_come_first(policy: str) -> None:
    table = SlotTable(3, 1, EXPERTS, policy)
    claims = table.claim_all(0, [0, 1, 2])
    table.release(0, 1)
    assert table.slot(0, 1) is None
    assert len(table) == 2
    again = table.claim(0, 4, [0, 2])
    assert (again.slot, again.evicted) == (claims[1].slot, None)
    with pytest.raises(ValueError, match="not resident"):
        table.release(0, 1)
    table.pin(0, 4)
    table.clear()
    assert len(table) == 0
    assert table.free_slots(0) == 3


@everyone
def test_waves_put_residents_first_and_never_exceed_what_fits(policy: str) -> None:
    table = SlotTable(4, 2, EXPERTS, policy)
    table.claim_all(0, [4, 5])
    table.claim_all(1, [0])
    assert table.waves(0, []) == []
    assert table.waves(0, [5]) == [[5]]
    assert table.waves(0, [0, 1, 2, 3, 4, 5]) == [[4, 5, 0, 1], [2, 3]]
    table.pin(1, 0)
    table.pin(0, 4)
    assert table.waves(0, [0, 1, 2, 3, 4, 5]) == [[4, 5, 0], [1, 2, 3]]
    for wave in table.waves(0, [0, 1, 2, 3, 4, 5]):
        absent = [e for e in wave if table.slot(0, e) is None]
        table.claim_all(0, absent, wave)
        assert all(table.slot(0, e) is not None for e in wave)
        if 4 in wave:
            table.unpin(0, 4)
    for e in (1, 2, 3):
        table.pin(0, e)
    with pytest.raises(ValueError, match="pinned"):
        table.waves(0, [5])


@everyone
@pytest.mark.parametrize("slots", [1, 2, 12])
def test_one_slot_and_all_slots_work(policy: str, slots: int) -> None:
    table = SlotTable(slots, 2, EXPERTS, policy)
    rounds = [(la, [e]) for _ in range(3) for la in range(2) for e in range(EXPERTS)]
    drive(table, rounds)
    assert len(table) == slots
    if slots == 2 * EXPERTS:
        assert all(not table.lookup(la, [e]).misses for la in range(2) for e in range(EXPERTS))


@everyone
def test_a_prompt_hands_over_its_hottest_experts(policy: str) -> None:
    table = SlotTable(8, 2, EXPERTS, policy)
    rows = np.array([[0, 1], [0, 2], [0, 1]])
    for layer in range(2):
        table.prime(layer, rows)
        claims = table.hand_over(layer, 4)
        assert [c.slot for c in claims] == list(dict.fromkeys(c.slot for c in claims))
        assert len(claims) <= 4
        assert {0, 1, 2} <= {c.expert for c in claims}
    assert table.hand_over(0, 0) == []
    assert len(table) <= 8


def test_a_hand_over_takes_from_colder_experts_only() -> None:
    table = SlotTable(2, 2, EXPERTS, "lfu")
    table.prime(0, np.array([[0, 1], [0, 2], [0, 1]]))
    assert [c.expert for c in table.hand_over(0)] == [0, 1]
    table.prime(1, np.array([[5, 3], [5, 4], [5, 3]]))
    assert [(c.expert, c.evicted) for c in table.hand_over(1)] == [(5, (0, 1))]
    assert table.hand_over(1) == []


def test_wide_forwards_are_learned_row_by_row() -> None:
    rows = np.array([[0, 1]] * 8 + [[0, 2]] * 8)
    wide, primed = SlotTable(4, 1, EXPERTS, "decay"), SlotTable(4, 1, EXPERTS, "decay")
    wide.lookup(0, [0, 1, 2], rows)
    primed.prime(0, rows)
    np.testing.assert_array_equal(wide.policy.worth(0), primed.policy.worth(0))


def test_decay_is_a_least_squares_fit_of_fading_memories() -> None:
    rng = np.random.default_rng(3)
    policy = DecayPolicy(2, EXPERTS)
    keep = np.array(decay.KEEP)
    memory = np.zeros((2, EXPERTS, len(keep) + 1))
    memory[..., -1] = 1
    mean = 2 / EXPERTS
    sure = decay.PRIOR_TURNS * np.r_[np.full(len(keep), 2 * mean), 2]
    squares, products = np.diag(sure), sure * np.r_[np.full(len(keep), 0.9 / len(keep)), 0.1 * mean]
    for turn in range(40):
        layer = turn % 2
        asked = rng.choice(EXPERTS, 2, replace=False, p=[0.5, 0.3, 0.1, 0.05, 0.03, 0.02])
        squares = squares + memory[layer].T @ memory[layer]
        products = products + memory[layer, asked].sum(0)
        memory[layer, :, :-1] *= keep
        memory[layer, asked, :-1] += 1 - keep
        policy.record(layer, asked.tolist())
        if layer == 1:
            weights = np.linalg.solve(squares, products)
            squares, products = squares * decay.FORGET, products * decay.FORGET
    np.testing.assert_allclose(policy.worth(1), np.maximum(memory[1] @ weights, decay.LEAST_CHANCE), rtol=2e-3)


@given(n=st.integers(0, 12))
@settings(max_examples=13, deadline=None)
def test_a_long_prompt_leaves_the_memories_that_its_rows_leave(n: int) -> None:
    rng = np.random.default_rng(n)
    rows = np.array([rng.choice(EXPERTS, 2, replace=False) for _ in range(decay.STUDIED_ROWS + n)])
    whole, parts = DecayPolicy(1, EXPERTS), DecayPolicy(1, EXPERTS)
    whole.prime(0, rows)
    for row in rows:
        parts.prime(0, row[None])
    np.testing.assert_allclose(
        whole._memory * whole._scale[:, None], parts._memory * parts._scale[:, None], rtol=1e-4, atol=1e-6
    )


def test_decay_prefers_the_layer_whose_turn_is_near() -> None:
    table = SlotTable(3, 3, EXPERTS, "decay")
    for layer in (0, 1, 2):
        table.lookup(layer, [0])
        table.claim(layer, 0, [0])
    table.lookup(0, [1])
    # Layer 1 is next, layer 2 after it; both keep what is as likely as what layer 0 will not need for a whole turn.
    assert table.claim(0, 1, [1]).evicted == (0, 0)


@everyone
def test_a_scan_longer_than_the_pool_still_hits_unless_it_is_lru(policy: str) -> None:
    layers, experts, rng = 8, 16, np.random.default_rng(0)
    share = np.r_[np.full(4, 0.2), np.full(12, 0.2 / 12)]
    table = SlotTable(24, layers, experts, policy)
    hits = 0
    for _ in range(200):
        for layer in range(layers):
            asked = rng.choice(experts, 4, replace=False, p=share).tolist()
            found = table.lookup(layer, asked)
            hits += len(found.hits)
            table.claim_all(layer, found.misses, asked)
    assert (hits < 100) if policy == "lru" else (hits > 200 * layers)


@pytest.mark.parametrize("bad", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_an_empty_table_is_refused(bad: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        SlotTable(*bad)
