"""What rounds sample is distributed as what plain decoding samples, for both acceptance rules."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from qwen_chat_mlx.engine.sampling import Sampler
from qwen_chat_mlx.engine.speculate.draft import Draft
from qwen_chat_mlx.engine.speculate.verify import accept
from qwen_chat_mlx.engine.types import Sampling

V = 6
TRUNK = np.random.default_rng(5).normal(0, 1.2, (V + 1, V)).astype(np.float32)
"""Row t: logits behind token t; the last row: behind the anchor."""
DRAFT = TRUNK + np.random.default_rng(6).normal(0, 0.8, (V + 1, V)).astype(np.float32)


def p_value(seen: np.ndarray, expected: np.ndarray) -> float:
    """Of a chi-square test over the cells that can occur, by Wilson and Hilferty's approximation."""
    can = expected > 0
    assert not seen[~can].any(), "a token that the filters drop came out"
    x, k = float(((seen - expected)[can] ** 2 / expected[can]).sum()), int(can.sum()) - 1
    z = ((x / k) ** (1 / 3) - (1 - 2 / (9 * k))) / math.sqrt(2 / (9 * k))
    return 0.5 * math.erfc(z / math.sqrt(2))


def exact(sampler: Sampler) -> np.ndarray:
    """[V, V] probabilities of the first two tokens."""
    rows = [np.array(sampler.probabilities(sampler.filter(mx.array(row)))) for row in TRUNK]
    return rows[V][:, None] * np.stack(rows[:V])


def first_two(sampler: Sampler, position: int, *, rejection: bool) -> tuple[int, int]:
    """The first two tokens of a round with one draft, and of the next step where that brought only one."""
    weights = sampler.filter(mx.array(DRAFT[V]))
    draft = Draft(int(sampler.pick(weights, position)), 0.5, weights)
    logits = [mx.array(TRUNK[V]), mx.array(TRUNK[draft.token])]
    verdict = accept(sampler, logits, [draft], position, rejection=rejection)
    if verdict.accepted:
        return draft.token, verdict.token
    weights = sampler.filter(mx.array(TRUNK[verdict.token]))
    return verdict.token, int(sampler.pick(weights, position + 1))


def check(draws: int, temperature: float, rejection: bool, seed: int) -> None:
    sampler: Any = Sampler(Sampling(temperature=temperature, top_k=5, top_p=0.92), V, (), seed)
    seen = np.zeros((V, V))
    for i in range(draws):
        seen[first_two(sampler, 2 * i, rejection=rejection)] += 1
    assert p_value(seen, exact(sampler) * draws) > 0.01


@pytest.mark.parametrize("rejection", [False, True])
def test_a_few_draws_of_rounds_follow_plain_sampling(rejection: bool) -> None:
    check(200, 0.7, rejection, 3)


@pytest.mark.slow
@pytest.mark.parametrize("rejection", [False, True])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_twenty_thousand_draws_of_rounds_follow_plain_sampling(temperature: float, rejection: bool) -> None:
    check(20_000, temperature, rejection, 1)


def test_the_test_would_see_a_wrong_rule() -> None:
    sampler: Any = Sampler(Sampling(temperature=1.0), V, (), 1)
    drafts = np.array(sampler.probabilities(mx.array(DRAFT[V])))
    want = exact(sampler).sum(axis=1) * 1500
    assert p_value(np.round(drafts * 1500), want) < 0.01
