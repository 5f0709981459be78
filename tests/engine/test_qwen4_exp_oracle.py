"""Qwen4-Exp against transformers: logits, routes and greedy ids, under every setting that must not change them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

LOGITS_WITHIN = 2e-4
NEVER, ALWAYS = 1 << 30, 1
"""Layer-major thresholds."""
EXACTLY_TOP_K = "exactly top-k"


class Knobs(NamedTuple):
    """The settings that must not change what the model says."""

    expert_cache: str | int
    prefill_step: int
    layer_major_threshold: int
    policy: str
    direct_io: str


def turned(session_of: Callable[..., Any], model: Any, knobs: Knobs) -> Any:
    """A session; expert_cache EXACTLY_TOP_K becomes the bytes of one token's experts."""
    if knobs.expert_cache == EXACTLY_TOP_K:
        probe = session_of(model)
        pool = probe.loaded.survey.needs.experts
        probe.close()
        knobs = knobs._replace(expert_cache=pool.top_k * pool.slot_bytes)
    return session_of(model, **knobs._asdict())


def agree(session: Any, oracle: Any, tokens: int = 4) -> None:
    """Logits, routes and greedy ids are the reference's."""
    seen: list[list[np.ndarray]] = [[] for _ in oracle.routes]
    session.forward.on_routes = lambda layer, parts: seen[layer].extend(parts)
    assert np.abs(session.score(oracle.prompt) - oracle.logits).max() <= LOGITS_WITHIN
    session.forward.on_routes = None
    np.testing.assert_array_equal(np.sort([np.concatenate(parts) for parts in seen], axis=-1), oracle.routes)
    ids = [t for step in session.generate(oracle.prompt, tokens, ignore_eos=True) for t in step.tokens]
    assert ids == oracle.greedy[:tokens]


def test_every_checkpoint_agrees_with_the_reference(oracle: Any, open_session: Callable[..., Any]) -> None:
    session = open_session(oracle)
    agree(session, oracle, tokens=24)
    routes = session.routes(oracle.prompt)
    assert (routes.dtype, routes.shape) == (np.int32, oracle.routes.shape)
    np.testing.assert_array_equal(routes, oracle.routes)


@pytest.mark.parametrize(
    "knobs",
    [
        Knobs(EXACTLY_TOP_K, 64, NEVER, "decay", "off"),
        Knobs(EXACTLY_TOP_K, 64, ALWAYS, "lru", "on"),
        Knobs("25 %", 7, NEVER, "lfu", "on"),
        Knobs("25 %", 64, ALWAYS, "lru", "off"),
        Knobs("100 %", 7, ALWAYS, "decay", "on"),
    ],
    ids=str,
)
def test_no_setting_changes_what_the_model_says(layout: Any, open_session: Callable[..., Any], knobs: Knobs) -> None:
    session = turned(open_session, layout, knobs)
    agree(session, layout)
    stats = session.stats()
    assert stats.experts.resident <= stats.experts.slots
    assert (stats.experts.layer_reads > 0) == (knobs.layer_major_threshold == ALWAYS and knobs.expert_cache != "100 %")
    assert stats.experts.slots == {EXACTLY_TOP_K: 2, "25 %": 8, "100 %": 32}[knobs.expert_cache]
    assert (stats.experts.waves > 0) == (knobs.expert_cache == EXACTLY_TOP_K and knobs.layer_major_threshold == NEVER)


def test_a_prompt_fed_token_by_token_agrees_with_the_reference(layout: Any, open_session: Callable[..., Any]) -> None:
    session = open_session(layout, prefill_step=1)
    assert np.abs(session.score(layout.prompt[:40]) - layout.logits[:40]).max() <= LOGITS_WITHIN


def test_bfloat16_stays_close_to_the_reference(layout: Any, open_session: Callable[..., Any]) -> None:
    session = open_session(layout, dtype="bfloat16")
    ours, theirs = session.score(layout.prompt), layout.logits
    alike = [np.corrcoef(a, b)[0, 1] for a, b in zip(ours, theirs)]
    assert np.median(alike) > 0.999
    same_routes = (session.routes(layout.prompt) == layout.routes).mean()
    assert same_routes > 0.9


GRID = list(itertools.product((EXACTLY_TOP_K, "25 %", "100 %"), (1, 7, 64), (NEVER, ALWAYS)))
REST = itertools.cycle(itertools.product(("decay", "lru", "lfu"), ("off", "on")))
"""Policies and direct I/O take turns over the grid."""


@pytest.mark.slow
@pytest.mark.parametrize("knobs", [Knobs(*g, *r) for g, r in zip(GRID, REST)], ids=str)
def test_no_combination_of_settings_changes_what_the_model_says(
    layout: Any, open_session: Callable[..., Any], knobs: Knobs
) -> None:
    session = turned(open_session, layout, knobs)
    agree(session, layout)


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize(
    "knobs",
    [
        Knobs("100 %", 64, NEVER, "decay", "off"),
        Knobs(EXACTLY_TOP_K, 64, ALWAYS, "lru", "on"),
        Knobs(EXACTLY_TOP_K, 7, NEVER, "lfu", "off"),
        Knobs("25 %", 7, ALWAYS, "decay", "on"),
        Knobs("25 %", 1, NEVER, "lru", "off"),
    ],
    ids=str,
)
def test_checkpoints_of_other_sizes_and_seeds_agree_with_the_reference(
    unseen: Any, open_session: Callable[..., Any], knobs: Knobs
) -> None:
    session = turned(open_session, unseen, knobs)
    agree(session, unseen, tokens=12)
