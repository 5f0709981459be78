"""Slash commands: what they are called, what they take, and how a typed line is told from a prompt.

Every command ends in a method of the chat screen; nothing here knows a widget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..engine.errors import nearest
from .keys import ACTIONS

__all__ = ["BY_NAME", "COMMANDS", "Command", "matching", "parse"]


@dataclass(frozen=True, slots=True)
class Command:
    """One slash command."""

    name: str
    """With its slash."""
    what: str
    run: Callable[[Any, str], None]
    """(chat screen, argument text)"""
    takes: str = ""
    """The argument as help shows it; empty when there is none."""
    needs: bool = False
    """The argument must be there."""
    action: str = ""
    """Id of the key action that does the same."""
    lines: bool = False
    """The argument may have several lines."""


def _action(name: str) -> Callable[[Any, str], None]:
    return lambda chat, _: getattr(chat, f"action_{name}")()


def _either(name: str, with_argument: str) -> Callable[[Any, str], None]:
    """The key's action without an argument, a method of the screen with one."""

    def run(chat: Any, argument: str) -> None:
        if argument:
            getattr(chat, with_argument)(argument)
        else:
            getattr(chat, f"action_{name}")()

    return run


_TAKES: dict[str, tuple[str, str]] = {
    "/mtp": ("auto|fixed|off", "set_mtp_word"),
    "/think": ("on|off|auto", "set_think_word"),
    "/set": ("[name value]", "set_word"),
    "/copy": ("[n]", "copy_nth"),
    "/code": ("[n]", "code_nth"),
    "/chats": ("[words]", "open_sessions"),
    "/model": ("[folder or org/name]", "switch_model"),
}

COMMANDS: tuple[Command, ...] = (
    *(
        Command(
            a.slash, a.what, _either(a.id, _TAKES[a.slash][1]) if a.slash in _TAKES else _action(a.id),
            _TAKES.get(a.slash, ("", ""))[0], action=a.id,
        )
        for a in ACTIONS if len(a.slash) > 1
    ),
    Command("/system", "Show or change the system prompt of this chat", lambda c, a: c.set_system(a), "[text]", lines=True),
    Command("/rename", "Give this chat a title; none brings the automatic one back", lambda c, a: c.rename(a), "[title]"),
    Command("/undelete", "Bring back the conversation deleted last", lambda c, _: c.undelete()),
    Command("/temporary", "New chat that is not kept on disk", lambda c, _: c.new_chat(temporary=True)),
    Command("/export", "Write this chat to a new file", lambda c, a: c.export(a), "md|json [path]"),
    Command("/theme", "Choose a theme", lambda c, a: c.choose_theme(a), "[name]"),
    Command("/keys", "All keys", lambda c, _: c.action_help()),
    Command("/retry", "Load the model again after a failure", lambda c, _: c.retry_model()),
    Command("/suspend", "Put the program into the background", lambda c, _: c.app.action_suspend_process()),
)  # fmt: skip

BY_NAME: dict[str, Command] = {c.name: c for c in COMMANDS}


def parse(text: str) -> tuple[Command | None, str, str]:
    """(command, its argument, a near miss to ask about) of a typed line; all empty for a prompt.

    Only a first word that is a command runs: "/usr/bin/env" and "//x" are prompts, "/halp" is asked about. A text of
    several lines is a prompt, unless the command takes one.
    """
    if not text.startswith("/"):
        return None, "", ""
    word, *rest = text.split(maxsplit=1)
    command, one_line = BY_NAME.get(word), "\n" not in text.strip()
    if command is not None and (one_line or command.lines):
        return command, rest[0].strip() if rest else "", ""
    if not one_line or "/" in word[1:] or not word[1:].isalpha():
        return None, "", ""
    near = [n for n in BY_NAME if n.startswith(word)] if len(word) > 2 else []
    near = near or nearest(word, BY_NAME, 1)
    return None, "", near[0] if near else ""


def matching(text: str) -> list[Command]:
    """Commands to offer while `text` is typed: those that start with it, then those that contain it."""
    if not text.startswith("/") or " " in text or "\n" in text:
        return []
    first = [c for c in COMMANDS if c.name.startswith(text)]
    return first + [c for c in COMMANDS if c not in first and len(text) > 2 and text[1:] in c.name]
