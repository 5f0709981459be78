"""The engine's settings: names, tables, defaults, ranges and how a value is checked. Reads no file and knows no flag.

Every setting is declared once, as a field of EngineConfig; the config file, the flags, the environment, the example file
and `qwen-chat config` are all derived from that declaration.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import PurePath
from typing import Any

from .errors import ConfigError, nearest
from .types import MtpMode

__all__ = ["Budget", "EngineConfig", "Setting", "check", "parse_budget", "setting", "settings_of"]

_UNITS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_MOST_BYTES = 2**50


@dataclass(frozen=True, slots=True)
class Budget:
    """A memory budget as written: exactly one of bytes, a share (0..1) of the whole, or neither for "auto"."""

    n_bytes: int | None = None
    share: float | None = None

    def resolve(self, whole_bytes: int, auto_bytes: int) -> int:
        """Bytes, given what everything would take and what the memory plan would choose."""
        if self.n_bytes is not None:
            return self.n_bytes
        if self.share is not None:
            return round(self.share * whole_bytes)
        return auto_bytes


def parse_budget(value: int | str) -> Budget:
    """A budget: "7.5 GiB", "512MB", "12 %", a number of bytes, or "auto". Raises ValueError with the accepted forms."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_BYTES:
        return Budget(n_bytes=value)
    text = str(value).strip().lower()
    if text == "auto":
        return Budget()
    m = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*(%|[kmgt]?b|[kmgt]ib|)", text)
    if not m:
        raise ValueError(
            'a size such as "7.5 GiB" or 536870912 (units B, KB, MB, GB, TB, KiB, MiB, GiB, TiB), a share such as "12 %", or '
            '"auto"'
        )
    number, unit = float(m[1]), m[2]
    if unit == "%":
        if number > 100:
            raise ValueError("a share of at most 100 %")
        return Budget(share=number / 100)
    if number * _UNITS[unit] > _MOST_BYTES:
        raise ValueError("a size of at most 1024 TiB")
    return Budget(n_bytes=int(number * _UNITS[unit]))


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: where it stands in the file, what it may be, what it means."""

    field: str
    table: str
    key: str
    default: Any
    doc: str
    """One or more sentences for the example file."""
    parse: Callable[[Any], Any]
    """Returns the checked value or raises ValueError(what is accepted)."""

    @property
    def name(self) -> str:
        return f"{self.table}.{self.key}"


def setting(table: str, key: str, default: Any, parse: Callable[[Any], Any], doc: str) -> Any:
    """A dataclass field that is a setting."""
    meta = {"table": table, "key": key, "parse": parse, "doc": doc}
    if isinstance(default, (dict, list)):
        return field(default_factory=lambda: type(default)(default), metadata=meta)
    return field(default=default, metadata=meta)


def settings_of(cls: type) -> tuple[Setting, ...]:
    """Every setting declared by a config dataclass, in order."""
    found = []
    for f in fields(cls):
        if "table" in f.metadata:
            default = f.default_factory() if callable(f.default_factory) else f.default  # type: ignore[misc]
            m = f.metadata
            found.append(Setting(f.name, m["table"], m["key"], default, m["doc"], m["parse"]))
    return tuple(found)


def check(s: Setting, value: Any) -> Any:
    """The value as the config keeps it. Raises ConfigError naming the key, the value and what is accepted."""
    try:
        return s.parse(value)
    except ValueError as e:
        written = repr(value)
        written = written if len(written) <= 200 else f"{written[:99]}…{written[-99:]}"
        raise ConfigError(f"{s.name} = {written} cannot be used: it takes {e}.", key=s.name) from None


def one_of(*words: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value not in words:
            near = nearest(str(value), words, 1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError("one of " + ", ".join(repr(w) for w in words) + hint)
        return value

    return parse


def whole(low: int, high: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return value

    return parse


def number(low: float, high: float) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        ok = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not ok or not low <= value <= high:
            raise ValueError(f"a number from {low:g} to {high:g}")
        return float(value)

    return parse


@dataclass(frozen=True, slots=True)
class optional:
    """A parser for which `word` stands for None: the setting is left to somebody else."""

    parse: Callable[[Any], Any]
    word: str

    def __call__(self, value: Any) -> Any:
        if value is None or value == self.word:
            return None
        try:
            return self.parse(value)
        except ValueError as e:
            raise ValueError(f"{self.word!r} or {e}") from None


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a text")
    return value


def text_or_path(value: Any) -> str:
    return text(str(value) if isinstance(value, PurePath) else value)


def boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def whole_or_auto(low: int, high: int) -> Callable[[Any], int | str]:
    def parse(value: Any) -> int | str:
        try:
            return value if value == "auto" else whole(low, high)(value)
        except ValueError as e:
            raise ValueError(f"'auto' or {e}") from None

    return parse


def budget(value: Any) -> int | str:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError('a size such as "7.5 GiB", a share such as "12 %", or "auto"')
    parse_budget(value)
    return value


def size_or_auto(value: Any) -> int | str:
    if parse_budget(budget(value)).n_bytes == 0 or "%" in str(value):
        raise ValueError('a size such as "20 GiB", or "auto"')
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The effective settings of one engine; EngineConfig() is the documented default of every one."""

    model: str = setting(
        "model", "path", "demo", text_or_path,
        'A folder with the model, "org/name" of a model already in the Hugging Face cache, or "demo" for the built-in tiny '
        "model.",
    )  # fmt: skip
    context: int | str = setting(
        "model", "context", "auto", whole_or_auto(64, 1 << 22),
        'Tokens that a conversation may hold. "auto": as many as the model and the memory allow, at most 32,768.',
    )  # fmt: skip
    dtype: str = setting(
        "model", "dtype", "auto", one_of("auto", "float32", "bfloat16"),
        'Number format of the resident weights. "auto": bfloat16 on a GPU; on a CPU float32 where it fits, else bfloat16.',
    )  # fmt: skip
    memory_limit: int | str = setting(
        "model", "memory_limit", "auto", size_or_auto,
        'What this program may use in all. "auto": what the machine can give without swapping.',
    )  # fmt: skip
    expert_cache: int | str = setting(
        "offload", "expert_cache", "auto", budget,
        'Memory for experts of the main model: a size ("7.5 GiB"), a share of all experts ("25 %") or "auto".',
    )  # fmt: skip
    draft_expert_cache: int | str = setting(
        "offload", "draft_expert_cache", "auto", budget,
        'Memory for experts of the draft layer. "auto": all of them where they fit 1.3 GiB.',
    )  # fmt: skip
    policy: str = setting(
        "offload", "policy", "decay", one_of("decay", "lru", "lfu"),
        'Which expert leaves when a slot is needed: "decay" (frequency per layer that fades), "lru" or "lfu".',
    )  # fmt: skip
    read_workers: int = setting(
        "offload", "read_workers", 16, whole(1, 256),
        "Threads that read experts at the same time.",
    )  # fmt: skip
    direct_io: str = setting(
        "offload", "direct_io", "auto", one_of("auto", "on", "off"),
        'Read past the operating system\'s page cache (O_DIRECT, F_NOCACHE). "auto": where the file system allows it and '
        "the experts do not fit in memory.",
    )  # fmt: skip
    prefetch: bool = setting(
        "offload", "prefetch", False, boolean,
        "Read the experts that the next layer will probably ask for ahead. Measures itself and stops where it does not pay.",
    )  # fmt: skip
    prefill_step: int = setting(
        "prefill", "prefill_step", 1024, whole(1, 65536),
        "Prompt tokens that go through the model at once. Another number rounds sums elsewhere and may flip near-ties, most of "
        "all in bfloat16.",
    )  # fmt: skip
    layer_major_threshold: int = setting(
        "prefill", "layer_major_threshold", 1024, whole(1, 1 << 30),
        "From this many new tokens on, a prompt goes through layer by layer, and each expert is read once.",
    )  # fmt: skip
    mtp: MtpMode = setting(
        "mtp", "mode", "auto", one_of("auto", "fixed", "off"),
        'Drafting with the model\'s own MTP layer: "auto" (as deep as it pays), "fixed" (always max_draft) or "off".',
    )  # fmt: skip
    max_draft: int = setting(
        "mtp", "max_draft", 3, whole(1, 5),
        "Most tokens drafted in one round.",
    )  # fmt: skip
    verify: str = setting(
        "mtp", "verify", "strict", one_of("strict", "batched"),
        'How drafts are checked: "strict" gives exactly the text of mtp = "off"; "batched" may flip near-ties.',
    )  # fmt: skip
    acceptance: str = setting(
        "mtp", "acceptance", "coupled", one_of("coupled", "rejection"),
        'How sampled drafts are accepted: "coupled" keeps the text the same with drafting on or off, "rejection" accepts a '
        "little more. Greedy text does not depend on it.",
    )  # fmt: skip
    zero_acceptance_limit: int = setting(
        "mtp", "zero_acceptance_limit", 32, whole(1, 32),
        "Consecutive rounds without an accepted draft after which drafting stops to the end of the reply.",
    )  # fmt: skip
    temperature: float | None = setting(
        "sampling", "temperature", None, optional(number(0.0, 5.0), "model"),
        '0 is greedy; "model" leaves a sampling setting to the model\'s generation_config.json.',
    )  # fmt: skip
    top_k: int | None = setting(
        "sampling", "top_k", None, optional(whole(0, 1 << 20), "model"), "Keep the k most likely tokens; 0 keeps all."
    )
    top_p: float | None = setting(
        "sampling", "top_p", None, optional(number(0.0, 1.0), "model"),
        "Keep the most likely tokens that hold this share of the probability; 1 keeps all.",
    )  # fmt: skip
    min_p: float | None = setting(
        "sampling", "min_p", None, optional(number(0.0, 1.0), "model"),
        "Keep tokens at least this share as likely as the likeliest; 0 keeps all.",
    )  # fmt: skip
    presence_penalty: float | None = setting(
        "sampling", "presence_penalty", None, optional(number(-2.0, 2.0), "model"),
        "Taken from the logit of every token that the reply already holds.",
    )  # fmt: skip
    repetition_penalty: float | None = setting(
        "sampling", "repetition_penalty", None, optional(number(0.01, 10.0), "model"),
        "Divides the logits of tokens already in the prompt or reply; 1 does nothing.",
    )  # fmt: skip
    seed: int | None = setting(
        "sampling", "seed", None, optional(whole(0, (1 << 63) - 1), "random"),
        'A number makes sampled replies repeatable; "random" draws one per reply.',
    )  # fmt: skip
    max_tokens: int | None = setting(
        "sampling", "max_tokens", None, optional(whole(1, 1 << 22), "context"),
        'Most tokens of one reply; "context" goes on to the end of the context.',
    )  # fmt: skip
    trace: str = setting(
        "trace", "file", "", text,
        "Write one line of JSON a step and the routed experts to this file, in place of an earlier trace; empty for none.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        for s in settings_of(type(self)):
            object.__setattr__(self, s.field, check(s, getattr(self, s.field)))
