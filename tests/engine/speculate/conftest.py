"""Sessions whose drafts are scripted: random weights accept nothing, so the drafts are taken from a plain run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest


class Script:
    """Makes a session's drafts: the right next tokens, the first `right(round)` of each round, wrong ones behind."""

    def __init__(self, session: Any, truth: Sequence[int], right: Callable[[int], int]) -> None:
        self.rounds = 0
        self.truth = truth
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
            token = self.truth[position] if position < len(self.truth) else made.token
            if self._made >= right(self.rounds - 1):
                token = (token + 1) % len(made.weights)
            self._made += 1
            return Draft(token, made.confidence, made.weights)

        drafter.start, drafter.choose = counted, scripted


@pytest.fixture(scope="session")
def scripted() -> Callable[..., Script]:
    """`scripted(session, truth, right)`; `truth` are prompt and reply of a plain run."""
    return Script


class Plain:
    """A session that never drafts, and its replies, each made once."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self._made: dict[Any, list[int]] = {}

    def reply(self, prompt: Sequence[int], count: int, sampling: Any = None) -> list[int]:
        """The first `count` ids behind `prompt`, greedy unless a sampling is given."""
        made = self._made.get((*prompt, sampling), [])
        if len(made) < count:
            steps = self.session.generate(prompt, count, sampling=sampling, ignore_eos=True)
            made = self._made[(*prompt, sampling)] = [t for step in steps for t in step.tokens]
        return made[:count]

    def with_reply(self, prompt: Sequence[int], count: int, sampling: Any = None) -> list[int]:
        """`prompt` and the first `count` ids behind it."""
        return [*prompt, *self.reply(prompt, count, sampling)]


@pytest.fixture(scope="package")
def plain_of() -> Iterator[Callable[[Any], Plain]]:
    """`plain_of(oracle)`: plain decoding of a checkpoint, opened once."""
    from qwen_chat_mlx.engine.config import EngineConfig
    from qwen_chat_mlx.engine.session import Session

    made: dict[Any, Plain] = {}

    def find(oracle: Any) -> Plain:
        if oracle.path not in made:
            made[oracle.path] = Plain(Session.open(EngineConfig(
                model=str(oracle.path), memory_limit="4 GiB", direct_io="off", read_workers=3, mtp="off",
            )))  # fmt: skip
        return made[oracle.path]

    yield find
    for plain in made.values():
        plain.session.close()


@pytest.fixture(scope="package")
def plain(tiny: Any, plain_of: Callable[[Any], Plain]) -> Plain:
    """Plain decoding of the tiny checkpoint."""
    found = plain_of(tiny)
    # The longest reply that the tests ask for: it is made once.
    found.reply(tiny.prompt, 80)
    return found


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
        together = expert.ExpertMath.together
        monkeypatch.setattr(
            expert.ExpertMath, "together",
            lambda self, x, *rest: together(self, x, *rest) * (1 + size * (x.shape[0] - 1)),
        )  # fmt: skip

    return start
