"""The prompt in the user's own editor. Knows no widget; the terminal is handed over by whoever calls."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["edit_text"]


def edit_text(text: str, suspended: Callable[[], contextlib.AbstractContextManager[object]]) -> tuple[str, str]:
    """(what was saved, a problem or ""). `suspended` is a context in which the terminal belongs to the editor."""
    written = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        command = shlex.split(written)
    except ValueError:
        return text, f"$EDITOR = {written!r} cannot be read as a command."
    fd, name = tempfile.mkstemp(suffix=".md", prefix="prompt-")
    path = Path(name)
    try:
        with os.fdopen(fd, "w", encoding="utf-8", errors="replace") as f:
            f.write(text)
        try:
            with suspended():
                code = subprocess.run([*command, name], check=False).returncode
        except OSError as e:
            return text, f"{command[0]} cannot be started: {e.strerror}. Set $EDITOR to your editor."
        if code != 0:
            return text, f"{command[0]} ended with code {code}; the prompt stays as it was."
        return path.read_text("utf-8", "replace"), ""
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
