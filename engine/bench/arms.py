"""Arms of a benchmark: named changes to the settings, such as `mtp=fixed,max_draft=2`. Knows no model and no run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..config import EngineConfig, Setting, check, settings_of
from ..errors import UsageError, nearest

__all__ = ["AS_SET", "Arm", "parse_arms"]

AS_SET = "as set"
"""Name of the arm that changes nothing."""
_FIXED = {
    "sampling": "every run is greedy with seed 42 and as long as --max-tokens says",
}


@dataclass(frozen=True, slots=True)
class Arm:
    """One configuration to be measured."""

    name: str
    config: EngineConfig
    changes: dict[str, Any]
    """Settings, as "table.key", that it sets."""


def parse_arms(texts: Sequence[str], base: EngineConfig, read: Callable[[str], Any]) -> tuple[Arm, ...]:
    """Arms over the settings `base`; `read` makes a value of what stands behind a "=".

    Without texts there is one arm, `base` itself. An arm given again gets a number to its name: it measures the noise.
    Raises UsageError naming the nearest setting, ConfigError for a value that a setting does not take.
    """
    if not texts:
        return (Arm(AS_SET, base, {}),)
    arms: list[Arm] = []
    for text in texts:
        name = ",".join(part.strip() for part in text.split(","))
        same = sum(a.name == name or a.name.startswith(f"{name} (") for a in arms)
        changes = _changes(text, read)
        config = replace(base, **{s.field: value for s, value in changes})
        arms.append(Arm(f"{name} ({same + 1})" if same else name, config, {s.name: value for s, value in changes}))
    return tuple(arms)


def _changes(text: str, read: Callable[[str], Any]) -> list[tuple[Setting, Any]]:
    found: dict[str, tuple[Setting, Any]] = {}
    for part in text.split(","):
        name, equals, value = (p.strip() for p in part.partition("="))
        s = _setting(text, name)
        if not equals or not value:
            raise UsageError(f"The arm {text!r} gives {name} no value.", "Write it as: --arm mtp=fixed,max_draft=2")
        if s.table in _FIXED:
            raise UsageError(f"The arm {text!r} cannot set {s.name}: {_FIXED[s.table]}.")
        if s.name in found:
            raise UsageError(f"The arm {text!r} sets {s.name} twice.")
        found[s.name] = s, check(s, read(value))
    return list(found.values())


def _setting(text: str, name: str) -> Setting:
    """By field ("expert_cache") or by full name ("offload.expert_cache")."""
    settings = [s for s in settings_of(EngineConfig) if s.table not in _FIXED or name in (s.field, s.name)]
    for s in settings:
        if name in (s.field, s.name):
            return s
    known = {n: s.field for s in settings for n in (s.field, s.key, s.name)}
    near = nearest(name, known, 1)
    raise UsageError(
        f"The arm {text!r}: there is no setting {name!r}" + (f"; did you mean {known[near[0]]!r}?" if near else "."),
        "Arms can set " + ", ".join(s.field for s in settings) + ".",
    )
