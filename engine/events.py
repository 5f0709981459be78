"""What comes out of the engine, in order, through `emit`: frozen values, one class an event.

Order for one request: PrefillProgress* TurnStarted TextDelta* StatsTaken TurnFinished, with MtpChanged and further
StatsTaken anywhere between; EngineFailed takes the place of TurnFinished when the request failed. Before the first
request: ModelLoading* ModelReady, or EngineFailed(fatal=True).
"""

from __future__ import annotations

from dataclasses import dataclass

from .stats import EngineStats
from .types import FinishReason, MtpMode, MtpState, TextKind

__all__ = [
    "EngineFailed",
    "Event",
    "ModelLoading",
    "ModelReady",
    "MtpChanged",
    "PrefillProgress",
    "StatsTaken",
    "TextDelta",
    "TurnFinished",
    "TurnStarted",
]


@dataclass(frozen=True, slots=True)
class ModelLoading:
    """Progress of opening a model."""

    phase: str
    """What is being done, in words: "reading headers", "loading weights", "warming up"."""
    done: int
    total: int
    """0 while unknown."""
    unit: str = "tensors"


@dataclass(frozen=True, slots=True)
class ModelReady:
    """The model answers from now on."""

    name: str
    path: str
    layers: int
    experts_per_layer: int
    top_k: int
    context: int
    """Tokens that fit, as planned."""
    vocab_size: int
    dtype: str
    has_mtp: bool
    supports_thinking: bool
    tokenizer_fingerprint: str
    checkpoint_fingerprint: str
    expert_cache_bytes: int
    expert_bytes_total: int
    load_s: float
    notes: tuple[str, ...] = ()
    """Things the user should know once, each a sentence: why this dtype, what was skipped."""
    is_demo: bool = False
    """True for the embedded tiny model."""


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """The prompt on its way through the model."""

    request_id: str
    phase: str
    """"reading experts", "prompt" or "draft cache"."""
    reused: int
    """Prompt tokens whose state was kept from earlier turns."""
    done: int
    """New tokens through the model so far; layer-major prefill counts layers done × tokens / layers."""
    total: int
    """New tokens to go through, reused ones apart."""
    rate: float
    """New tokens per second so far; 0.0 only before the first chunk has ended."""


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The prompt is in; the first token follows."""

    request_id: str
    prompt_tokens: int
    reused: int
    prefill_s: float


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that appeared. `text` may be empty when tokens ended inside a character."""

    request_id: str
    kind: TextKind
    text: str
    tokens: int
    """Tokens that this delta stands for."""


@dataclass(frozen=True, slots=True)
class MtpChanged:
    """Drafting changed its mode or state."""

    at_token: int
    """Generated tokens of the running reply when it took effect; 0 between replies."""
    mode: MtpMode
    state: MtpState
    reason: str


@dataclass(frozen=True, slots=True)
class TurnFinished:
    """The reply is complete; everything emitted for it came before."""

    request_id: str
    token_ids: tuple[int, ...]
    """Sampled ids in order, stop id included when there is one."""
    finish_reason: FinishReason
    stats: EngineStats
    """Counters of this turn alone; gauges as they are now."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """A request, the load, or the engine itself failed."""

    message: str
    hint: str = ""
    request_id: str | None = None
    fatal: bool = False
    """True when the engine takes no further request."""
    kind: str = "QwenChatError"
    """Name of the error's class in engine/errors."""


@dataclass(frozen=True, slots=True)
class StatsTaken:
    """Counters since the model was opened; sent at 4 Hz while something runs and once at the end. The first one comes before
    any weight is read, and says what memory is planned for."""

    stats: EngineStats
    at_s: float
    """time.monotonic() when the copy was made."""


Event = (
    ModelLoading
    | ModelReady
    | PrefillProgress
    | TurnStarted
    | TextDelta
    | MtpChanged
    | TurnFinished
    | EngineFailed
    | StatsTaken
)
