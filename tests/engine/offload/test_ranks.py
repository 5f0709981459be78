"""Who leaves first: against a list that is sorted anew every time."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen_chat_mlx.engine.offload.ranks import LayerRanks

LAYERS, EXPERTS = 3, 4
KEYS = LAYERS * EXPERTS

keys = st.integers(0, KEYS - 1)
values = st.lists(st.integers(0, 3), min_size=EXPERTS, max_size=EXPERTS)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, LAYERS - 1), values),
        st.tuples(st.just("toggle"), keys),
        st.tuples(
            st.just("ask"),
            st.integers(0, KEYS + 1),
            st.sets(keys, max_size=4),
            st.lists(st.integers(0, 2), min_size=LAYERS, max_size=LAYERS),
        ),
    ),
    max_size=40,
)


@given(steps)
@settings(max_examples=60, deadline=None)
def test_victims_are_those_of_a_full_sort(script: list[tuple]) -> None:
    ranks = LayerRanks(LAYERS, EXPERTS)
    value = np.zeros((LAYERS, EXPERTS))
    resident: set[int] = set()
    for step in script:
        if step[0] == "put":
            value[step[1]] = step[2]
            ranks.put(step[1], np.array(step[2], float))
        elif step[0] == "toggle":
            (ranks.removed if step[1] in resident else ranks.added)(step[1])
            resident ^= {step[1]}
        else:
            _, count, blocked, offset = step
            order = sorted(
                resident - blocked, key=lambda k: (-(value.flat[k] + offset[k // EXPERTS]), k // EXPERTS, k % EXPERTS)
            )
            for _ in range(2):  # asking changes nothing
                assert ranks.victims(count, blocked, np.array(offset, float)) == order[:count]
