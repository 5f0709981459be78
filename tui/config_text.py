"""TOML as text: parse a file with its lines, find the line of a key, write a value, write the example file.

Knows settings only as declarations; which value wins is decided in config.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..engine.config import Setting
from ..engine.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

__all__ = ["example", "line_of", "parse_scalar", "read_toml", "shown", "to_toml"]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")

TABLE_NOTES = {
    "model": "Which model, and how much of the machine it may use.",
    "offload": "Experts that do not fit in memory are read from the disk as they are needed.",
    "prefill": "How a prompt goes through the model.",
    "mtp": "Drafting: the model's own MTP layer proposes tokens, the model checks them.",
    "sampling": "How tokens are chosen.",
    "trace": "For measurements.",
    "chat": "What the model is told.",
    "history": "What is kept on disk.",
    "ui": "How it looks.",
    "keys": 'Keys by action, for example  stop = "escape"  or  newline = ["ctrl+j", "shift+enter"]; `/help` lists the actions.',
    "panels": "The live panels: order, which are hidden, and where their colours change.",
}


def read_toml(path: Path) -> tuple[dict[str, Any], str]:
    """The parsed file and its text. Raises ConfigError with file and line for everything that can be wrong with it."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"There is no file {path}.", "`qwen-chat config --init` writes a config file.") from None
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}.", "Give a TOML file that you may read.") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = raw[: e.start].count(b"\n") + 1
        raise ConfigError(
            "this line is not UTF-8 text.", "Save the file as UTF-8.", file=str(path), line=line
        ) from None
    try:
        return tomllib.loads(text), text
    except tomllib.TOMLDecodeError as e:
        said = str(e)
        m = re.search(r"at line (\d+)", said)
        line = int(m[1]) if m else text.count("\n") + 1
        reason = re.sub(r"\s*\(at .*\)$", "", said)
        raise ConfigError(
            f"not valid TOML: {reason}.", 'Texts need quotes: key = "text".', file=str(path), line=line
        ) from None
    except (ValueError, RecursionError):
        raise ConfigError(
            f"{path} cannot be read: a number in it is too long, or it is nested too deeply.",
            "`qwen-chat config --example` prints every setting as it may be written.",
        ) from None


def line_of(text: str, *path: str) -> int | None:
    """One-based line where a key's value starts, for error messages: the first line whose absence makes the key vanish."""
    lines = text.splitlines(keepends=True)
    last_whole = 0
    for n in range(len(lines) + 1):
        try:
            found: Any = tomllib.loads("".join(lines[:n]))
        except tomllib.TOMLDecodeError:
            continue
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        if found is not None:
            return last_whole + 1
        last_whole = n
    return None


def parse_scalar(text: str) -> Any:
    """A value from a flag or the environment as TOML would read it; the text itself where that fails."""
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # ValueError: also a number of thousands of digits
        return text
    return found["value"] if len(found) == 1 else text


def to_toml(value: Any) -> str:
    """A value as TOML: JSON's spelling serves for texts, numbers and arrays."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        inner = ", ".join(f"{k if _BARE_KEY.fullmatch(k) else _text(k)} = {to_toml(v)}" for k, v in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(to_toml(v) for v in value) + "]"
    return _text(value) if isinstance(value, str) else repr(value)


def _text(value: str) -> str:
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(
        c if c.isprintable() else f"\\u{ord(c):04X}" if ord(c) < 65536 else f"\\U{ord(c):08X}" for c in quoted
    )


def shown(s: Setting, value: Any) -> Any:
    """A setting's value as a user writes it: None is the word that stands for it."""
    return s.parse.word if value is None else value  # type: ignore[attr-defined]


def example(settings: Iterable[Setting], *, active: bool) -> str:
    """The example file: every setting with its meaning and default.

    `active` writes the defaults as values; otherwise each is commented out, so that later defaults are not shadowed.
    """
    lines = [
        "# Settings of qwen-chat. A flag wins over --set, that over the environment (QWEN_CHAT_<TABLE>_<KEY>), that over this",
        "# file, and this file over the defaults. `qwen-chat config` shows what is in force and where it came from.",
    ]
    if active:
        lines += _comment(
            "This is every default as a value, for reading: as a config file it would fix them all, also what the chat "
            "remembers, such as the theme. `qwen-chat config --init` writes one to start with, where each is commented out."
        )
    table = ""
    for s in settings:
        if s.table != table:
            table = s.table
            lines += ["", "", *_comment(TABLE_NOTES.get(table, "")), f"[{table}]"]
        if s.key == "*":
            lines += [] if table in TABLE_NOTES else _comment(s.doc)
            continue
        value = f"{s.key} = {to_toml(shown(s, s.parse(s.default)))}"
        lines += ["", *_comment(s.doc), value if active else f"#{value}"]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, 118, break_long_words=False)]
