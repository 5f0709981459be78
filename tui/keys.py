"""Every action once: its id (the name in the `[keys]` table), keys, slash command and words. Binds nothing itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from .text.key_names import is_typed

__all__ = [
    "ACTIONS",
    "BY_ID",
    "DEFAULT_KEYS",
    "Action",
    "Scope",
    "clashes",
    "key_label",
    "key_problems",
    "keymap",
    "way",
]

Scope = Literal["always", "app", "composer", "transcript"]
"""Always: on every page and in every dialog. App: on the chat, whatever has the focus."""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that a key does."""

    id: str
    keys: str
    """Comma-separated Textual key names; the first one is shown."""
    what: str
    scope: Scope = "app"
    hint: str = ""
    """Word for the key line at the bottom; empty where it is not shown there."""
    slash: str = ""
    """The command that does the same, as a second way in."""
    priority: bool = False


ACTIONS: tuple[Action, ...] = (
    Action("send", "enter", "Send the prompt; while a reply runs, queue it", "composer", "send"),
    Action("newline", "ctrl+j,shift+enter,alt+enter,shift+\\r,ctrl+\\r", "New line (also \\ at the end of a line)",
           "composer", "newline"),
    Action("history_prev", "up", "Earlier prompt, when the cursor is in the first row", "composer"),
    Action("history_next", "down", "Later prompt, when the cursor is in the last row", "composer"),
    Action("editor", "ctrl+g", "Write the prompt in $VISUAL or $EDITOR", slash="/editor", priority=True),
    Action("unqueue", "alt+up", "Take the queued prompt back into the composer", slash="/unqueue"),
    Action("stop", "escape", "Close a popup, clear a selection, stop the reply, leave the transcript", hint="stop"),
    Action("interrupt", "ctrl+c", "Copy a selection, else stop, else clear the prompt, else quit on the second press",
           priority=True),
    Action("toggle_mtp", "ctrl+t,f4", "Switch drafting (MTP) off and on again, also while a reply streams", "always",
           hint="MTP", slash="/mtp"),
    Action("toggle_metrics", "f2", "Panels: at the side, in one row, hidden", hint="metrics", slash="/panels", priority=True),
    Action("metrics_full", "shift+f2,f3", "All panels over the whole screen", slash="/stats", priority=True),
    Action("toggle_thoughts", "ctrl+o", "Open or fold all thoughts", hint="thoughts", slash="/thoughts", priority=True),
    Action("think", "alt+t", "Thinking on, off, or as the model likes", slash="/think", priority=True),
    Action("scroll_up", "pageup", "Scroll the chat up, also while typing", priority=True),
    Action("scroll_down", "pagedown", "Scroll the chat down", priority=True),
    Action("follow", "ctrl+end", "Jump to the end and follow the reply", slash="/follow", priority=True),
    Action("top", "ctrl+home", "Jump to the start of the chat", priority=True),
    Action("focus_transcript", "tab,shift+tab", "Select a message and walk with ↑ ↓; again, Esc or typing comes back",
           hint="messages", priority=True),
    Action("copy", "y", "Copy the message", "transcript", "copy", slash="/copy"),
    Action("copy_code", "c", "Copy its next code block", "transcript", slash="/code"),
    Action("edit", "e", "Edit a prompt and send it again", "transcript", "edit", slash="/edit"),
    Action("regenerate", "r", "Answer again", "transcript", "retry", slash="/regen"),
    Action("continue", "g", "Go on with a reply that was cut off", "transcript", "continue", slash="/continue"),
    Action("message_prev", "up,k", "Message before", "transcript"),
    Action("message_next", "down,j", "Message after", "transcript", "walk"),
    Action("fold", "space,enter", "Open or fold this thought", "transcript"),
    Action("new_chat", "ctrl+n", "New chat", hint="new", slash="/new", priority=True),
    Action("sessions", "ctrl+s", "Conversations: resume, rename, delete", hint="chats", slash="/chats", priority=True),
    Action("models", "f6", "Models: what is there, and switch", slash="/model", priority=True),
    Action("settings", "f7", "Settings of this chat: system prompt, sampling, thinking", slash="/set", priority=True),
    Action("palette", "ctrl+p", "All commands", hint="commands", slash="/", priority=True),
    Action("help", "f1", "Help", hint="help", slash="/help", priority=True),
    Action("log", "f12", "What the program noted while it ran", slash="/log", priority=True),
    Action("redraw", "ctrl+l", "Draw the screen again", slash="/redraw", priority=True),
    Action("quit", "ctrl+q", "Quit (Ctrl+D in an empty prompt)", "always", slash="/quit"),
)  # fmt: skip

BY_ID: dict[str, Action] = {a.id: a for a in ACTIONS}

_NAMES = {
    "escape": "esc", "enter": "⏎", "pageup": "pgup", "pagedown": "pgdn", "space": "space", "delete": "del",
    "up": "↑", "down": "↓", "left": "←", "right": "→", "tab": "tab",
}  # fmt: skip
_PLAIN = {"enter": "enter", "up": "up", "down": "down", "left": "left", "right": "right"}


def key_label(keys: str, ascii_only: bool = False) -> str:
    """How the first of some keys is written for people: "ctrl+t,f4" -> "^T"."""
    key = keys.split(",", 1)[0]
    *mods, last = key.split("+")
    name = (_PLAIN.get(last) if ascii_only else None) or _NAMES.get(last, last)
    if mods == ["ctrl"] and len(last) == 1:
        return f"^{last.upper()}"
    name = name.upper() if len(last) > 1 and last[0] == "f" and last[1:].isdigit() else name
    return "+".join([*mods, name])


def way(action: str, keys: Mapping[str, str], ascii_only: bool = False) -> str:
    """How an action is called up, for people: its key, else its command, else nothing."""
    return key_label(keys[action], ascii_only) or BY_ID[action].slash


def keymap(own: Mapping[str, str]) -> dict[str, str]:
    """id -> keys, the user's over the defaults; unknown ids are left out (the config names them as errors)."""
    return {a.id: own.get(a.id, a.keys) for a in ACTIONS}


DEFAULT_KEYS: dict[str, str] = keymap({})


def clashes(keys: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """(key, id, id) for every key that two actions of the same or an overlapping scope claim; the first one has it."""
    found: list[tuple[str, str, str]] = []
    asked = sorted(
        ACTIONS, key=lambda a: 0 if a.scope == "always" else 1 if a.priority else 3 if a.scope == "app" else 2
    )
    for i, a in enumerate(asked):
        for b in asked[i + 1 :]:
            if a.scope == b.scope or not {"always", "app"}.isdisjoint((a.scope, b.scope)):
                both = set(_split(keys[a.id])) & set(_split(keys[b.id]))
                found += [(key, a.id, b.id) for key in sorted(both)]
    return found


def key_problems(own: Mapping[str, str]) -> list[str]:
    """What is wrong with the user's keys, a sentence each: given twice, or needed to write with."""
    found = [
        f"[keys] {key} is given to both {a} and {b}; the first one has it."
        for key, a, b in clashes(keymap(own))
        if a in own or b in own
    ]
    for a in ACTIONS:
        taken = a.priority or a.scope in ("always", "composer")
        said = "and can no longer be typed in a prompt." if taken else "but in a prompt it is typed."
        if a.scope != "transcript":
            found += [f"[keys] {key} is given to {a.id}, {said}" for key in _split(own.get(a.id, "")) if is_typed(key)]
    return found


def _split(keys: str) -> Iterable[str]:
    return (k.strip() for k in keys.split(",") if k.strip())
