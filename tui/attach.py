"""`@path` in a prompt: finding the files, offering names, and putting their text into what is sent. Knows no widget."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from .text.numbers import size
from .text.sanitise import clean, one_line

__all__ = ["Attachment", "attachments", "expand", "rough_tokens", "suggest"]

MOST_BYTES = 1 << 20
_TOKEN = re.compile(r"(?<!\S)@(\"[^\"\n]+\"|\S+)")
_LANGUAGES = {
    "py": "python",
    "rs": "rust",
    "js": "javascript",
    "ts": "typescript",
    "sh": "bash",
    "md": "markdown",
    "yml": "yaml",
}


@dataclass(frozen=True, slots=True)
class Attachment:
    """One file that a prompt refers to."""

    token: str
    """As typed, with its @."""
    path: Path
    n_bytes: int
    problem: str = ""
    """Why it cannot be attached, as a sentence; empty when it can."""


def attachments(text: str) -> list[Attachment]:
    """What the text refers to: every `@word` that names a file. Other words with an @ are just words, and so are those
    whose file stands below already."""
    found = []
    for m in _TOKEN.finditer(text):
        name = m[1].strip('"')
        path = Path(os.path.expanduser(name))
        try:
            if path.is_file():
                n = path.stat().st_size
                problem = (
                    "" if n <= MOST_BYTES else f"{one_line(name, 80)} has {size(n)}; {size(MOST_BYTES)} is the most."
                )
                if f"{_heading(path)}```" not in text:
                    found.append(Attachment(m[0], path, n, problem))
            elif path.is_dir():
                found.append(Attachment(m[0], path, 0, f"{one_line(name, 80)} is a folder; name a file in it."))
        except (OSError, ValueError):
            continue
    return found


def rough_tokens(n_bytes: int) -> int:
    """About how many tokens a text of so many bytes has."""
    return n_bytes // 4


def _heading(path: Path) -> str:
    return f"\n\n{one_line(path, 300)}:\n"


def expand(text: str, written: str | None = None) -> tuple[str, str]:
    """(the prompt with the files' text below it, a problem or ""). With a problem nothing may be sent.

    `written` is the part of the text whose `@path`s count, where that is not all of it.
    """
    parts = [text]
    for a in attachments(text if written is None else written):
        if a.problem:
            return text, a.problem
        try:
            raw = a.path.read_bytes()
            body = raw.decode("utf-8-sig")
        except OSError as e:
            return text, f"{one_line(a.path, 80)} cannot be read: {e.strerror}."
        except UnicodeDecodeError:
            return text, f"{one_line(a.path, 80)} is not a text file in UTF-8."
        ticks = "`" * max(3, 1 + max((len(m) for m in re.findall(r"`{3,}", body)), default=2))
        ext = a.path.suffix.lstrip(".").lower()
        parts.append(f"{_heading(a.path)}{ticks}{_LANGUAGES.get(ext, ext)}\n{clean(body).rstrip()}\n{ticks}")
    return "".join(parts), ""


def suggest(word: str, most: int = 50) -> list[str]:
    """Paths that start with what follows the @, folders with a slash; hidden ones only when asked for."""
    typed = word.removeprefix("@").strip('"')
    folder, _, start = typed.rpartition("/")
    at = Path(os.path.expanduser(folder + "/" if folder or typed.startswith("/") else "."))
    found = []
    try:
        with os.scandir(at) as entries:
            for e in entries:
                hidden = e.name.startswith(".") and not start.startswith(".")
                if not hidden and e.name.lower().startswith(start.lower()) and e.name == one_line(e.name, 255):
                    found.append(
                        (f"{folder}/" if folder or typed.startswith("/") else "") + e.name + ("/" if e.is_dir() else "")
                    )
    except (OSError, ValueError):
        return []
    names = sorted(found, key=lambda n: (n.endswith("/"), n.lower()))[:most]
    return [f'@"{n}"' if " " in n and not n.endswith("/") else f"@{n}" for n in names]
