"""Show the settings in force and where each came from, or write a config file to start with."""

from __future__ import annotations

import argparse
import os
import sys

from ._flags import add_model_flags, add_reply_flags, load_settings, refuse_empty, tell_of_theme

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..config import Loaded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--paths", action="store_true", help="show where files are kept")
    what.add_argument(
        "--init",
        action="store_true",
        help="write a config file to start with, every setting commented out; one that exists is left alone",
    )
    what.add_argument("--example", action="store_true", help="print every default as a value, for reading")
    what.add_argument("--check", action="store_true", help="only say whether the settings can be used")
    what.add_argument("--themes", action="store_true", help="list the themes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_model_flags(parser)
    add_reply_flags(parser)


def run(args: argparse.Namespace) -> int:
    import json

    refuse_empty(__config=args.config)
    if args.init:
        return _init(args)
    if args.paths:
        return _paths(args)
    if args.example:
        return _example()
    loaded = load_settings(args)
    if args.themes:
        return _themes(loaded)
    if args.check:
        return _check(loaded)
    tell_of_theme(loaded)
    rows = _rows(loaded)
    if args.json:
        print(json.dumps({name: {"value": value, "origin": origin} for name, value, origin in rows}, indent=2))
    elif sys.stdout.isatty():
        _table(rows)
    else:
        for name, value, origin in rows:
            print(f"{name} = {_written(value)}  # {_safe(origin)}")
    return 0


def _check(loaded: Loaded) -> int:
    """Say what the chat would say of the settings at its start, and whether it would have said anything."""
    from ..keys import key_problems
    from ..themes import choose
    from . import say

    bad = [choose(loaded.ui.theme, loaded.places.themes)[1], *key_problems(loaded.ui.keys)]
    bad = [problem for problem in bad if problem]
    for problem in bad:
        say(problem)
    what = (
        f"{_safe(str(loaded.file))} can be used"
        if loaded.file
        else "There is no config file; the defaults are in force"
    )
    print(f"{what}, except for what is said above." if bad else f"{what}.")
    return 2 if bad else 0


def _rows(loaded: Loaded) -> list[tuple[str, Any, str]]:
    """(table.key, value as a user writes it, origin) of every setting; a whole table counts as one."""
    from ..config import all_settings
    from ..config_text import shown
    from ..themes import choose

    rows = []
    for s in all_settings():
        origin = loaded.origins[s.name]
        line = loaded.line(s.name)
        name = s.table if s.key == "*" else s.name
        value, origin = shown(s, loaded.value(s)), f"{origin}:{line}" if line else origin
        if name == "ui.theme" and (theme := choose(value, loaded.places.themes)[0].name) != value:
            value, origin = theme, f"stands in for {_written(value)} from {origin}"
        rows.append((name, value, origin))
    return rows


def _written(value: Any) -> str:
    from ..config_text import to_toml

    return to_toml(value)


def _safe(text: str) -> str:
    from ..text.sanitise import one_line

    return one_line(text, 2000)


def _table(rows: list[tuple[str, Any, str]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from ._console import TableConsole

    plain = sys.stdout.encoding.lower().replace("-", "") != "utf8"
    table = Table(box=box.ASCII2 if plain else box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("setting", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("from", overflow="fold")
    for name, value, origin in rows:
        style = "dim" if origin == "default" else "bold"
        table.add_row(*(Text(cell, style) for cell in (name, _written(value), _safe(origin))))
    TableConsole().print(table)


def _paths(args: argparse.Namespace) -> int:
    import json
    from dataclasses import fields

    from ..places import Places

    places = Places.of()
    found = {f.name: str(getattr(places, f.name)) for f in fields(places)}
    if args.config:
        found["config_file"] = args.config
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        for name, path in found.items():
            print(f"{name:<14} {_safe(path)}")
    return 0


def _init(args: argparse.Namespace) -> int:
    from pathlib import Path

    from ...engine.errors import ConfigError
    from ..config import all_settings
    from ..config_text import example
    from ..places import Places, make_private_folder

    path = Path(os.path.expanduser(args.config)) if args.config else Places.of().config_file
    make_private_folder(path.parent)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(f"{path} is already there and was left alone.", "Move it away first to start anew.") from None
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as f:
            f.write(example(all_settings(), active=False))
    except OSError as e:
        path.unlink()  # half a file would be left alone by the next try
        raise OSError(e.errno, e.strerror, str(path)) from None
    print(f"Wrote {_safe(str(path))}.")
    return 0


def _example() -> int:
    from ..config import all_settings
    from ..config_text import example

    print(example(all_settings(), active=True), end="")
    return 0


def _themes(loaded: Loaded) -> int:
    from ..themes import list_themes
    from . import say

    found, problems = list_themes(loaded.places.themes)
    for theme in found:
        print(f"{_safe(theme.name):<12} {'dark' if theme.dark else 'light':<6} {theme.title}")
    for problem in problems:
        say(str(problem))
    return 0
