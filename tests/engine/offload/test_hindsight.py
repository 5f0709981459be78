"""Hindsight: as many hits as any choice could have had, and a share that is judged now and then only."""

from __future__ import annotations

from functools import cache
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from qwen_chat_mlx.engine.offload import hindsight
from qwen_chat_mlx.engine.offload.hindsight import Hindsight, most_hits
from qwen_chat_mlx.engine.offload.policy import SlotTable


def by_trying(forwards: list[list[int]], resident: frozenset[int], slots: int) -> int:
    @cache
    def best(at: int, here: frozenset[int]) -> int:
        if at == len(forwards):
            return 0
        keys = frozenset(forwards[at])
        after = here | keys
        out = max(0, len(after) - slots)
        choices = combinations(sorted(after - keys), out)
        return len(here & keys) + max(best(at + 1, after - frozenset(gone)) for gone in choices)

    return best(0, resident)


@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=2, unique=True), max_size=7),
    st.frozensets(st.integers(0, 5), max_size=3),
    st.integers(3, 4),
)
def test_no_choice_of_who_leaves_has_more_hits(forwards: list[list[int]], resident: frozenset[int], slots: int) -> None:
    assert most_hits(forwards, resident, slots) == by_trying(forwards, resident, slots)


def test_a_stretch_is_judged_when_it_is_over_and_the_next_begins_later(monkeypatch) -> None:
    monkeypatch.setattr(hindsight, "LOOKUPS", 6)
    table, time = SlotTable(2, 1, 4, "lru"), [0.0]
    table.claim_all(0, [0, 1])
    seen = Hindsight(table, lambda: time[0])
    seen.note(0, [0], 1)
    seen.restart()
    # Knowing the future, 0 would have stayed: five hits. Two were had.
    for expert, hits in ((0, 1), (2, 0), (0, 0), (0, 1), (0, 0), (0, 0)):
        assert seen.share is None
        seen.note(0, [expert], hits)
    assert seen.share == 2 / 5
    for _ in range(20):
        seen.note(0, [0], 1)
    assert seen.share == 2 / 5
    time[0] = hindsight.EVERY_S
    for _ in range(6):
        seen.note(0, [0], 1)
    assert seen.share == 1
