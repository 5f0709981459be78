"""Sessions whose drafts are scripted: random weights accept nothing, so the drafts are taken from a plain run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest


class Script:
    """Makes a session's drafts: the right next tokens, the first `right(round)` of each round, wrong ones behind."""

    def __init__(self, session: Any, truth: Sequence[int], right: Callable[[int], int]) -> None:
        self.rounds = 0
        drafter, choose = session._rounds.drafter, session._rounds.drafter.choose
        start = drafter.start
        self._made = 0

        def counted(tokens: Sequence[int], anchor: int) -> Any:
            self._made = 0
            self.rounds += 1
            return start(tokens, anchor)

        def scripted(logits: Any, sampler: Any, extra: Sequence[int], position: int) -> Any:
            from qwen_chat_mlx.engine.speculate.draft import Draft

            made = choose(logits, sampler, extra, position)
            token = truth[position] if position < len(truth) else made.token
            if self._made >= right(self.rounds - 1):
                token = (token + 1) % len(made.weights)
            self._made += 1
            return Draft(token, made.confidence, made.weights)

        drafter.start, drafter.choose = counted, scripted


@pytest.fixture(scope="session")
def scripted() -> Callable[..., Script]:
    """`scripted(session, truth, right)`; `truth` are prompt and reply of a plain run."""
    return Script


@pytest.fixture
def count_rows(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """`count_rows(size)` makes every product, attention and expert depend on how many rows it has, as on GPUs."""

    def start(size: float) -> None:
        from qwen_chat_mlx.engine.layers import expert, gated_delta, hyper_connection, moe, ngram, sparse_attention
        from qwen_chat_mlx.engine.layers import linear as linear_module
        from qwen_chat_mlx.engine.models import qwen4_exp

        linear = linear_module.linear

        def counting(weight: Any) -> Any:
            product = linear(weight)
            return lambda x: product(x) * (1 + size * (x.shape[0] - 1))

        for module in (gated_delta, hyper_connection, moe, ngram, sparse_attention, qwen4_exp):
            monkeypatch.setattr(module, "linear", counting)
        attend = sparse_attention.SparseAttention._attend
        monkeypatch.setattr(
            sparse_attention.SparseAttention, "_attend",
            lambda self, q, k, v, m: attend(self, q, k, v, m) * (1 + size * (q.shape[1] - 1)),
        )  # fmt: skip
        call = expert.ExpertMath.__call__
        monkeypatch.setattr(
            expert.ExpertMath, "__call__",
            lambda self, x, *rest: call(self, x, *rest) * (1 + size * (x.shape[0] - 1)),
        )  # fmt: skip

    return start
