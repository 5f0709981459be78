"""The clipboard: the system's own tool where there is one, else a request to the terminal (OSC 52).

"Copied" is said only of a tool that reported success; a terminal never answers. Knows no Textual.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["OSC52_MOST_BYTES", "Copied", "copy", "osc52"]

TOOLS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("WAYLAND_DISPLAY", ("wl-copy",)),
    ("DISPLAY", ("xclip", "-selection", "clipboard")),
    ("DISPLAY", ("xsel", "--clipboard", "--input")),
)
OSC52_MOST_BYTES = 74_994
"""Longest text that common terminals take: 100,000 bytes of base64 with the sequence around it."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What became of a copy."""

    method: str
    """Name of the tool, "OSC 52", or empty when nothing was possible."""
    verified: bool
    """True only when a tool reported success."""
    sentence: str
    """What to tell the user."""


def copy(
    text: str, write: Callable[[str], object], what: str = "text", environ: Mapping[str, str] | None = None
) -> Copied:
    """Put `text` on the clipboard. `write` sends a string to the terminal as it is; it is used for OSC 52 alone."""
    environ = os.environ if environ is None else environ
    if not text:
        return Copied("", False, f"There is no {what} to copy.")
    for command in _tools(environ):
        if _run(command, text, environ):
            return Copied(command[0], True, f"Copied the {what} ({command[0]}).")
    if len(text.encode("utf-8", "replace")) > OSC52_MOST_BYTES:
        return Copied("", False, f"The {what} is too long for the terminal's clipboard; /export writes it to a file.")
    write(osc52(text, environ))
    sentence = f"Sent the {what} to the terminal (OSC 52); whether it was copied is up to the terminal."
    return Copied("OSC 52", False, sentence)


def osc52(text: str, environ: Mapping[str, str]) -> str:
    """The sequence that asks a terminal to fill its clipboard, wrapped so that tmux and screen pass it on."""
    payload = base64.b64encode(text.encode("utf-8", "replace")).decode("ascii")
    sequence = f"\x1b]52;c;{payload}\x07"
    if environ.get("TMUX"):
        return f"\x1bPtmux;\x1b{sequence}\x1b\\"
    if environ.get("TERM", "").startswith("screen"):
        # screen takes pieces of at most 768 bytes.
        return "".join(f"\x1bP{sequence[i : i + 760]}\x1b\\" for i in range(0, len(sequence), 760))
    return sequence


def _tools(environ: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Commands that reach the clipboard of the person at the keyboard, best first; over SSH a forwarded display only."""
    remote = bool(environ.get("SSH_CONNECTION") or environ.get("SSH_TTY"))
    found: list[tuple[str, ...]] = []
    if sys.platform == "darwin" and not remote:
        found.append(("pbcopy",))
    for variable, command in TOOLS:
        if environ.get(variable) and not (remote and variable == "WAYLAND_DISPLAY"):
            found.append(command)
    return found


def _run(command: tuple[str, ...], text: str, environ: Mapping[str, str]) -> bool:
    tool = shutil.which(command[0], path=environ.get("PATH"))
    if tool is None:
        return False
    try:
        done = subprocess.run(
            [tool, *command[1:]], input=text.encode("utf-8", "replace"), env=dict(environ), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            timeout=2, check=False, start_new_session=True,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
