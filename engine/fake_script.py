"""What a fake engine is told to do: its model, its answers, its faults and its disk. Plain values, no behaviour."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field

from .errors import QwenChatError
from .events import ModelReady
from .types import MtpMode

__all__ = ["FakeDisk", "FakeReply", "FakeScript", "pieces", "token_id"]

_PIECE = re.compile(r"\s?[^\W_]{1,5}|\s+|.", re.DOTALL)


def pieces(text: str) -> list[str]:
    """The text cut into what stands for tokens: a few letters, a mark or white space each."""
    return _PIECE.findall(text)


def token_id(piece: str, vocab: int) -> int:
    return 3 + zlib.crc32(piece.encode("utf-8", "replace")) % max(1, vocab - 3)


@dataclass(frozen=True, slots=True)
class FakeDisk:
    """How the experts behave."""

    hit_rate: float = 0.91
    """Share of lookups that hit once the cache is warm."""
    warm_steps: int = 0
    """Steps until the cache is warm; the hit rate climbs from 0 meanwhile."""
    median_ms: float = 0.45
    spread: float = 0.6
    """Sigma of the logarithm of a read's duration."""
    reads: bool = True
    """False: all experts are resident and nothing is read."""
    cached_share: float | None = None
    """Share served by the page cache; None where the system does not tell."""


@dataclass(frozen=True, slots=True)
class FakeReply:
    """What one request is answered with."""

    text: str = "This is a scripted reply."
    thinking: str = ""
    error: QwenChatError | None = None
    """Raised instead of going on, once `error_after` tokens were emitted."""
    error_after: int = 0
    fatal: bool = False
    """The error ends the engine."""
    accept: tuple[float, ...] | None = None
    """Chance that the draft at each position is accepted, given the one before was; None takes the script's."""
    park_after: int | None = None
    """Tokens after which the rule parks drafting."""


@dataclass(frozen=True, slots=True)
class FakeScript:
    """Everything about a fake model. Durations are virtual seconds."""

    model: ModelReady = field(
        default_factory=lambda: ModelReady(
            name="Fake-35B-A3B", path="/models/fake", layers=48, experts_per_layer=512, top_k=10, context=32768,
            vocab_size=151936, dtype="bfloat16", has_mtp=True, supports_thinking=True,
            tokenizer_fingerprint="fake-tokenizer", checkpoint_fingerprint="fake-checkpoint",
            expert_cache_bytes=20 * 2**30, expert_bytes_total=60 * 2**30, load_s=0.0,
        )
    )  # fmt: skip
    load: tuple[tuple[str, int, str], ...] = (("reading headers", 40, "files"), ("loading weights", 1200, "tensors"))
    load_s: float = 1.0
    load_error: QwenChatError | None = None
    load_error_at: float = 0.5
    """Share of the load after which it fails."""
    replies: tuple[FakeReply, ...] = (FakeReply(),)
    """Answers in turn, from the start again when used up."""
    mtp: MtpMode = "auto"
    max_draft: int = 3
    zero_limit: int = 32
    warm_drafts: int = 32
    accept: tuple[float, ...] = (0.78, 0.78, 0.67, 0.6, 0.5)
    step_s: float = 0.08
    """A step without drafts; each draft makes a round 0.35 steps longer."""
    prefill_rate: float = 300.0
    prefill_step: int = 64
    disk: FakeDisk = FakeDisk()
    seed: int = 1
