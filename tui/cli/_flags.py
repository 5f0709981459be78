"""Command line flags that several verbs share, and the step from flags to effective settings."""

from __future__ import annotations

import argparse
import os

TYPE_CHECKING = False  # typing itself is a noticeable part of what `--help` costs
if TYPE_CHECKING:
    from typing import NoReturn

    from ..config import Loaded

__all__ = ["Parser", "add_model_flags", "add_reply_flags", "load_settings", "refuse_empty", "tell_of_theme", "typed"]

SETTING_FLAGS = {
    "model": "model.path",
    "context": "model.context",
    "expert_cache": "offload.expert_cache",
    "mtp": "mtp.mode",
    "temperature": "sampling.temperature",
    "seed": "sampling.seed",
    "max_tokens": "sampling.max_tokens",
    "trace": "trace.file",
    "system": "chat.system",
    "think": "chat.think",
    "theme": "ui.theme",
    "ascii": "ui.ascii",
}
"""Which setting a flag stands for, by the name argparse gives the flag."""


class Parser(argparse.ArgumentParser):
    """argparse whose errors are ours: one sentence, and where to look."""

    def __init__(self, prog: str, description: str = "") -> None:
        super().__init__(prog, description=description, allow_abbrev=False, formatter_class=_formatter)

    def error(self, message: str) -> NoReturn:
        from ...engine.errors import UsageError

        raise UsageError(f"{message[:1].upper()}{message[1:]}.", f"See `{self.prog} --help`.")


def _formatter(prog: str) -> argparse.HelpFormatter:
    try:
        columns = os.get_terminal_size().columns or 80
    except OSError:
        columns = 80
    return argparse.HelpFormatter(prog, width=max(40, min(columns, 120) - 2))


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """Flags about the model and where settings come from. Their values are checked by the settings themselves."""
    group = parser.add_argument_group("model and settings")
    group.add_argument("--model", metavar="PATH", help='model folder, "org/name" in the Hugging Face cache, or "demo"')
    group.add_argument("--config", metavar="FILE", help="config file to use instead of the usual one")
    group.add_argument(
        "--set", metavar="TABLE.KEY=VALUE", action="append", default=[], dest="sets",
        help="set any setting of the config file; may be repeated",
    )  # fmt: skip
    group.add_argument("--context", metavar="N", help="tokens a conversation may hold")
    group.add_argument("--expert-cache", metavar="SIZE", help='memory for experts: "7.5 GiB", "25 %%" or "auto"')
    group.add_argument("--mtp", metavar="MODE", help="drafting: auto, fixed or off")
    group.add_argument(
        "--trace", metavar="FILE", help="write one line of JSON a step to this file, in place of an earlier trace"
    )


def add_reply_flags(parser: argparse.ArgumentParser) -> None:
    """Flags about how replies are made."""
    group = parser.add_argument_group("replies")
    group.add_argument("--system", metavar="TEXT", help="system prompt")
    group.add_argument("--max-tokens", metavar="N", help="most tokens of one reply")
    group.add_argument("--temperature", metavar="T", help="0 is greedy")
    group.add_argument("--seed", metavar="N", help="makes sampled replies repeatable")
    group.add_argument(
        "--think", action=argparse.BooleanOptionalAction, default=None, help="let the model think first, or not"
    )


def refuse_empty(**given: str | None) -> None:
    """Raise UsageError for an argument that is there and names nothing, as a variable does that is not set."""
    for word, value in given.items():
        if value is not None and not value.strip():
            from ...engine.errors import UsageError

            raise UsageError(f"{word.replace('__', '--')} is empty.", "Is the variable set that it comes from?")


def load_settings(args: argparse.Namespace) -> Loaded:
    """The effective settings of a command line. Raises ConfigError, and UsageError for an empty --config."""
    refuse_empty(__config=getattr(args, "config", None))
    from ..config import load
    from ..keys import BY_ID

    given = {name: getattr(args, flag, None) for flag, name in SETTING_FLAGS.items()}
    flags = {name: value for name, value in given.items() if value is not None}
    words = {name: "--" + flag.replace("_", "-") for flag, name in SETTING_FLAGS.items()}
    return load(
        flags, getattr(args, "sets", []), os.environ, getattr(args, "config", None),
        flag_names=words, actions=BY_ID.keys(), panels=_panels(),
    )  # fmt: skip


def tell_of_theme(loaded: Loaded) -> None:
    """Say on stderr that the theme in the settings cannot be used; for verbs that draw nothing and go on without one."""
    if loaded.origins["ui.theme"] not in ("default", "remembered"):
        from ..themes import choose
        from . import say

        _, problem = choose(loaded.ui.theme, loaded.places.themes)
        if problem:
            say(problem)


def typed(words: list[str]) -> str:
    """A prompt from the command line. Raises UsageError for bytes that are no text."""
    text = " ".join(words)
    if any("\ud800" <= c <= "\udfff" for c in text):
        from ...engine.errors import UsageError

        raise UsageError("The prompt is not UTF-8 text.", "Is the terminal or the script set to another encoding?")
    return text


def _panels() -> list[str]:
    """Names of the panels, which are the files that define one; read without importing them, since they draw."""
    folder = os.path.join(os.path.dirname(os.path.dirname(__file__)), "panels")
    found = []
    for name in sorted(os.listdir(folder)):
        if name.endswith(".py"):
            with open(os.path.join(folder, name), encoding="utf-8") as f:
                if "(Panel):" in f.read():
                    found.append(name[:-3])
    return found
