"""A constructed near-tie where bits depend on the number of rows: batched checking turns it over, strict does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

SETTINGS: dict[str, Any] = {"prefill_step": 1, "layer_major_threshold": 1 << 30}
COUNT = 16
TIED = 9
"""Which token of the reply is all but tied."""
SIZE = 1e-3


def rows_of(session: Any) -> dict[int, Any]:
    """Residual of the last layer by position, filled while the session runs."""
    seen: dict[int, Any] = {}
    head = session.model.head

    def watched(x: Any) -> Any:
        for i in range(x.shape[0]):
            seen[session.position + i] = x[i]
        return head(x)

    session.model.head = watched
    return seen


def tie(session: Any, alone: Any, batched: Any, token: int) -> None:
    """Make `token` win the head by a hair for residuals nearer to `batched` than to `alone`, at that place only."""
    head, middle = session.model.head, (alone + batched) / 2
    along = batched - alone
    reach = mx.sum(along * along)

    def tied(x: Any) -> Any:
        logits = head(x)
        off = x - middle
        here = mx.sum(off * off, axis=-1) < 4 * reach
        by = mx.sum(off * along, axis=-1) / reach
        near = mx.max(logits, axis=-1) + 1e-4 * by
        return mx.concatenate(
            [logits[:, :token], mx.where(here, near, logits[:, token])[:, None], logits[:, token + 1 :]], axis=1
        )

    session.model.head = tied


@pytest.mark.slow
def test_a_near_tie_turns_over_in_batched_checking_and_not_in_strict(
    tiny: Any, open_session: Callable[..., Any], scripted: Callable[..., Any], count_rows: Callable[[float], None]
) -> None:
    count_rows(SIZE)

    def ids(session: Any) -> list[int]:
        return [t for s in session.generate(tiny.prompt, COUNT, ignore_eos=True) for t in s.tokens]

    def drafting(verify: str, truth: list[int]) -> Any:
        session = open_session(tiny, mtp="fixed", max_draft=3, verify=verify, **SETTINGS)
        scripted(session, truth, lambda _: 3)
        return session

    plain = open_session(tiny, **SETTINGS)
    alone = rows_of(plain)
    reply = ids(plain)
    truth = [*tiny.prompt, *reply]
    first = drafting("batched", truth)
    batched = rows_of(first)
    assert ids(first) == reply, "without a near-tie so small a difference must not show"
    # The row that chooses token TIED is that of the token before it.
    at = len(tiny.prompt) + TIED - 1
    other = (reply[TIED] + 1) % tiny.logits.shape[-1]
    told: dict[str, list[int]] = {}
    for name, session in (
        ("plain", open_session(tiny, **SETTINGS)),
        ("strict", drafting("strict", truth)),
        ("batched", drafting("batched", truth)),
    ):
        tie(session, alone[at], batched[at], other)
        told[name] = ids(session)
    assert told["plain"] == reply
    assert told["strict"] == reply
    assert told["batched"][:TIED] == reply[:TIED]
    assert told["batched"][TIED] == other
