"""The plain loop: one token a step. A step with drafts looks the same from outside, so whoever consumes steps needs not
know which it was."""

from __future__ import annotations

from collections.abc import Collection, Generator
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from .meter import Meter
from .sampling import Sampler

__all__ = ["Step", "Steps", "plain_steps"]


@dataclass(frozen=True, slots=True)
class Step:
    """What one step brought."""

    tokens: tuple[int, ...]
    """The sampled ids, in order; at least one."""
    drafted: int = 0
    accepted: int = 0


class Steps(Protocol):
    """What the plain loop needs of a session."""

    @property
    def position(self) -> int: ...

    @property
    def room(self) -> int:
        """Tokens that the context still takes."""
        ...

    @property
    def meter(self) -> Meter: ...

    def step(self, token: int) -> mx.array:
        """Logits [V] behind one more token."""
        ...


def plain_steps(
    session: Steps, logits: mx.array, sampler: Sampler, max_tokens: int, stops: Collection[int]
) -> Generator[Step, int | None, None]:
    """Sample from `logits` [V], then step by step, until a stop id, `max_tokens`, or the end of the context.

    The last sampled token is not part of the session's timeline: nothing was computed behind it. `send(n)` instead of
    `next` ends the reply.
    """
    made = 0
    while made < max_tokens:
        with session.meter.phase("plain"):
            picked = sampler.pick(sampler.filter(logits), session.position)
            with session.meter.wait("output_sync"):
                token = sampler.commit(int(picked))
        made += 1
        answer = yield Step((token,))
        if answer is not None or token in stops or session.room <= 0:
            return
        if made < max_tokens:
            with session.meter.phase("plain"):
                logits = session.step(token)
