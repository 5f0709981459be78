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
            st.just("evict"),
            st.integers(0, 3),
            st.integers(0, LAYERS - 1),
            st.lists(st.integers(0, EXPERTS - 1), max_size=2, unique=True),
            st.sets(keys, max_size=3),
            st.lists(st.integers(0, 2), min_size=LAYERS, max_size=LAYERS),
        ),
    ),
    max_size=40,
)


@given(st.sets(keys), steps)
@settings(max_examples=100, deadline=None)
def test_victims_are_those_of_a_full_sort(resident: set[int], script: list[tuple]) -> None:
    ranks = LayerRanks(LAYERS, EXPERTS)
    value = np.zeros((LAYERS, EXPERTS))
    for layer in range(LAYERS):
        ranks.added(layer, [k % EXPERTS for k in resident if k // EXPERTS == layer])
    for step in script:
        if step[0] == "put":
            value[step[1]] = step[2]
            ranks.put(step[1], np.array(step[2], float))
        elif step[0] == "toggle":
            if step[1] in resident:
                ranks.removed(step[1])
            else:
                ranks.added(step[1] // EXPERTS, [step[1] % EXPERTS])
            resident ^= {step[1]}
        else:
            _, count, layer, protected, pinned, offset = step
            order = sorted(
                resident - pinned - {layer * EXPERTS + e for e in protected},
                key=lambda k: (-(value.flat[k] + offset[k // EXPERTS]), k),
            )
            assert ranks.evict(count, layer, protected, pinned, np.array(offset, float)) == order[:count]
            resident -= set(order[:count])
