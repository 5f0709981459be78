"""What goes into the engine: plain frozen values, no arrays, no MLX."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["FinishReason", "GenerationRequest", "Message", "MtpMode", "MtpState", "Role", "Sampling", "TextKind"]

Role = Literal["system", "user", "assistant"]
MtpMode = Literal["auto", "fixed", "off"]
MtpState = Literal["WARM", "ON", "PARKED", "FALLBACK", "OFF", "UNAVAILABLE"]
TextKind = Literal["thinking", "answer"]
FinishReason = Literal["stop", "length", "context", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation as the chat template sees it."""

    role: Role
    text: str
    thinking: str = ""
    token_ids: tuple[int, ...] = ()
    """Sampled ids of an assistant turn, stop id included; replayed instead of re-tokenised text when they fit."""
    tokenizer_fingerprint: str = ""
    """Fingerprint of the tokenizer that made `token_ids`; with another tokenizer they are ignored."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is chosen from logits. Temperature 0 is greedy; the neutral value of each filter switches it off."""

    temperature: float = 1.0
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    """None draws a seed per request; the one used is reported in TurnFinished."""

    @property
    def greedy(self) -> bool:
        """Below this temperature no second choice is ever drawn, and dividing by it would overflow."""
        return self.temperature < 1e-4


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One reply asked of the engine."""

    id: str
    messages: tuple[Message, ...]
    sampling: Sampling | None = None
    """None takes the config's settings over the checkpoint's generation_config.json."""
    sampling_changes: tuple[tuple[str, float | int | None], ...] = ()
    """(field of Sampling, value) pairs that replace single settings of `sampling`, or of what it would be as None."""
    think: bool | None = None
    """None leaves the template's own default."""
    max_tokens: int | None = None
    """None goes on until a stop or the end of the context."""
    stop: tuple[str, ...] = ()
    """Further stop strings; the text ends before the first of them."""
    continue_last: bool = False
    """Go on writing the last assistant message instead of starting a new one."""
    raw_prompt: str | None = None
    """Text used as the prompt as it is, without a template; `messages` is then ignored."""
    template_options: tuple[tuple[str, str], ...] = field(default=())
    """Further variables for the chat template, such as ("reasoning_effort", "low")."""
