"""How keys are called in the config: by the names that Textual uses, which this file has to know without importing it."""

from __future__ import annotations

import unicodedata

from ...engine.errors import nearest

__all__ = ["is_typed", "key_name"]

MODIFIERS = ("ctrl", "shift", "alt", "super", "hyper", "meta")
WORDS = (
    "up", "down", "left", "right", "home", "end", "pageup", "pagedown", "insert", "delete", "backspace", "enter",
    "escape", "tab", "space",
)  # fmt: skip
FUNCTION = tuple(f"f{n}" for n in range(1, 25))
SIGNS = ("slash", "backslash", "at", "minus", "plus", "underscore", "\\r")
"""Characters that Textual does not call by their Unicode name."""


def key_name(written: str) -> str:
    """A key as Textual spells it. Raises ValueError that names a part nobody knows, and the nearest one."""
    if len(written) == 1:
        return written
    *mods, key = written.lower().split("+")
    unknown = next(((m, MODIFIERS) for m in mods if m not in MODIFIERS), None)
    if unknown is None:
        if len(key) == 1 or key in WORDS or key in FUNCTION or key in SIGNS or _is_character(key):
            return "+".join([*mods, key])
        unknown = key, WORDS + FUNCTION
    near = nearest(*unknown, 1)
    raise ValueError(
        f"there is no key {written!r}: "
        + (f"did you mean {near[0]!r}?" if near else f"a key is a character, {', '.join(WORDS)}, or f1 to f24.")
    )


def is_typed(key: str) -> bool:
    """The key writes a character into a text, as Textual spells keys."""
    return len(key) == 1 or key == "space" or key in SIGNS[:-1] or _is_character(key)


def _is_character(name: str) -> bool:
    try:
        return unicodedata.lookup(name.replace("_", " ")).isprintable()
    except KeyError:
        return False
