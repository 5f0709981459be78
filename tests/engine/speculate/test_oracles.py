"""Strict checking on larger checkpoints: the ids of plain decoding at every depth, under settings that must not matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

TOKENS = 84
"""Six depths of this many on four checkpoints: 2,016 tokens in all."""
SETTINGS: dict[int, dict[str, Any]] = {
    0: {"mtp": "off", "expert_cache": "25 %", "policy": "decay"},
    1: {"expert_cache": "exactly top-k", "policy": "lru", "prefill_step": 7},
    2: {"expert_cache": "25 %", "policy": "lfu", "prefill_step": 64},
    3: {"expert_cache": "100 %", "policy": "decay", "prefill_step": 1},
    4: {"expert_cache": "exactly top-k", "policy": "decay", "layer_major_threshold": 1},
    5: {"expert_cache": "25 %", "policy": "lru", "layer_major_threshold": 1},
}


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize("k", SETTINGS)
def test_strict_ids_of_larger_checkpoints_are_those_of_plain_decoding(
    unseen: Any, plain_of: Callable[..., Any], open_session: Callable[..., Any], scripted: Callable[..., Any],
    continued: Callable[..., list[int]], k: int,
) -> None:  # fmt: skip
    plain = plain_of(unseen)
    truth = plain.reply(unseen.prompt, TOKENS)
    assert truth[: len(unseen.greedy)] == unseen.greedy[:TOKENS]
    settings = {"mtp": "fixed", "verify": "strict", "max_draft": max(1, k), **SETTINGS[k]}
    if settings["expert_cache"] == "exactly top-k":
        pool = plain.session.loaded.survey.needs.experts
        settings["expert_cache"] = pool.top_k * pool.slot_bytes
    session = open_session(unseen, **settings)
    if k:
        scripted(session, [*unseen.prompt, *truth], lambda r: (r * 7) % (k + 1))
    assert continued(session, unseen.prompt, TOKENS) == truth
    drafts = session.stats().drafts
    assert 0 < drafts.accepted < drafts.proposed or not k
