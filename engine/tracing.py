"""Writes what a session does to a trace: routes as routers are read back, and one line a step of a reply."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .decode import Step
from .trace import Kind, Pool, StepRecord, TraceHeader, TraceWriter

if TYPE_CHECKING:
    from .session import Session

__all__ = ["SessionTrace"]

_KINDS: dict[str, Kind] = {"prefill": "prompt", "plain": "plain", "verify": "verify", "draft": "draft"}


class SessionTrace:
    """One trace file over the life of a session. Writing never raises; `error` says when it ended early."""

    def __init__(self, session: Session, path: str) -> None:
        """Raises UsageError when the file cannot be opened."""
        s = session.loaded.survey
        self._session = session
        self._writer = TraceWriter(
            path,
            TraceHeader(
                layers=s.shape.layers,
                experts=s.shape.experts,
                top_k=s.shape.top_k,
                fingerprint=s.index.fingerprint,
                expert_bytes=s.layout.expert_bytes,
                slots=s.plan.slots,
                draft_slots=s.plan.draft_slots,
                policy=session.config.policy,
                settings={"mtp": session.config.mtp, "max_draft": session.config.max_draft},
            ),
        )
        self._step = 0

    @property
    def error(self) -> str:
        return self._writer.error

    def routes(self, layer: int, parts: Sequence[np.ndarray], pool: Pool = "trunk") -> None:
        """ids [t, k] of each part of one read-back."""
        kind = _KINDS.get(self._session.meter.phase_name)
        if kind is not None:
            self._writer.routes(self._step, layer, kind, np.concatenate(list(parts)).tolist(), pool)

    def steps(self, steps: Generator[Step, int | None, None]) -> Generator[Step, int | None, None]:
        """The same steps, each written down when it is handed out."""
        meter, at, answer = self._session.meter, self._session.position, None
        try:
            while True:
                before = meter.copy()
                try:
                    step = steps.send(answer)
                except StopIteration:
                    return
                after = meter.copy()
                spent = {n: getattr(after, f"{n}_s") - getattr(before, f"{n}_s") for n in (*_KINDS, "rewind")}
                seconds = {n: s for n, s in spent.items() if s > 0}
                self._writer.step(StepRecord(self._step, at, len(step.tokens), step.drafted, step.accepted, seconds))
                self._step += 1
                at += len(step.tokens)
                answer = yield step
        finally:
            steps.close()

    def close(self) -> None:
        self._writer.close()
