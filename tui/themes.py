"""Themes as data: one TOML file each, shipped ones and the user's own; read, checked, measured, and made into Textual's.

Textual is imported only inside `textual_theme`; everything else works without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.errors import ConfigError, nearest
from .config_text import line_of, read_toml
from .text.sanitise import one_line

if TYPE_CHECKING:
    from textual.theme import Theme

__all__ = [
    "FALLBACK",
    "Palette",
    "choose",
    "contrast",
    "list_themes",
    "read_theme",
    "textual_theme",
    "unknown_theme",
    "weak_pairs",
]

FALLBACK = "ink"
SHIPPED = Path(__file__).resolve().parent.parent / "themes"
GROUNDS = ("background", "surface", "panel")
"""What text stands on."""
WORDS = ("foreground", "primary", "secondary", "accent", "success", "warning", "error")
"""What text is written in, beside muted."""
COLORS = (*GROUNDS, *WORDS, "muted")
BODY_CONTRAST, MUTED_CONTRAST = 4.5, 3.0
_HEX = re.compile(r"#(?:[0-9a-fA-F]{3}|[0-9a-fA-F]{6})")
_ANSI = re.compile(r"ansi_(?:default|(?:bright_)?(?:black|red|green|yellow|blue|magenta|cyan|white))")


@dataclass(frozen=True, slots=True)
class Palette:
    """One theme."""

    name: str
    """The file's name; what `theme = ` takes."""
    title: str
    dark: bool
    ansi: bool
    """The terminal's own 16 colours."""
    colors: Mapping[str, str]
    """By the names in COLORS: "#rrggbb", or "ansi_..." in an ANSI theme, which may leave out grounds and muted."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Further variables of Textual's style sheets."""


def read_theme(path: Path) -> Palette:
    """One theme file. Raises ConfigError with file, line and key."""
    found, text = read_toml(path)

    def wrong(message: str, *key: str) -> ConfigError:
        return ConfigError(
            message, file=str(path), line=line_of(text, *key) if key else None, key=".".join(key) or None
        )

    allowed = ("title", "dark", "ansi", "colors", "variables")
    for key in found:
        if key not in allowed:
            near = nearest(key, allowed, 1)
            raise wrong(
                f"a theme has no {key!r}; "
                + (f"did you mean {near[0]!r}?" if near else f"it has {', '.join(allowed)}."),
                key,
            )
    title, dark, ansi = found.get("title", path.stem), found.get("dark", True), found.get("ansi", False)
    for key, value, kind, said in (
        ("title", title, str, "a text"),
        ("dark", dark, bool, "true or false"),
        ("ansi", ansi, bool, "true or false"),
    ):
        if not isinstance(value, kind):
            raise wrong(f"{key} = {value!r} cannot be used: it takes {said}.", key)
    colors, variables = found.get("colors", {}), found.get("variables", {})
    for key, table in (("colors", colors), ("variables", variables)):
        if not isinstance(table, dict):
            raise wrong(f"{key} must be a table: [{key}].", key)
    for key, value in colors.items():
        if key not in COLORS:
            near = nearest(key, COLORS, 1)
            raise wrong(
                f"there is no colour {key!r}; "
                + (f"did you mean {near[0]!r}?" if near else f"there are {', '.join(COLORS)}."),
                "colors",
                key,
            )
        form = _ANSI if ansi else _HEX
        if not isinstance(value, str) or not form.fullmatch(value):
            takes = 'a colour of the terminal such as "ansi_bright_blue"' if ansi else 'a colour such as "#1a2b3c"'
            raise wrong(f"colors.{key} = {value!r} cannot be used: it takes {takes}.", "colors", key)
    missing = [c for c in COLORS if c not in colors and not (ansi and c in (*GROUNDS, "foreground", "muted"))]
    if missing:
        raise (
            wrong(f"colours are missing: {', '.join(missing)}.", "colors")
            if colors
            else wrong("the table [colors] is missing.")
        )
    for key, value in variables.items():
        if (
            not isinstance(value, str)
            or not re.fullmatch(r"[\w\s#%.,()-]{1,80}", value)
            or not re.fullmatch(r"[a-z][a-z0-9-]*", key)
        ):
            raise wrong(
                f"variables.{key} = {value!r} cannot be used: it takes a colour or a text style.", "variables", key
            )
    return Palette(path.stem, one_line(title, 60), dark, ansi, colors, variables)


def _files(own: Path | None) -> dict[str, Path]:
    """Theme files by name; the user's own win over shipped ones of the same name."""
    found: dict[str, Path] = {}
    for folder in (SHIPPED, own):
        if folder is not None and folder.is_dir():
            found |= {p.stem: p for p in sorted(folder.glob("*.toml"))}
    return found


def list_themes(own: Path | None = None) -> tuple[list[Palette], list[ConfigError]]:
    """Every theme that can be used, by name, and what is wrong with the files that cannot."""
    found, problems = [], []
    for _, path in sorted(_files(own).items()):
        try:
            found.append(read_theme(path))
        except ConfigError as e:
            problems.append(e)
    return found, problems


def choose(name: str, own: Path | None = None) -> tuple[Palette, str]:
    """The theme of this name, and what to tell the user: empty, or why the fallback stands in for it."""
    files = _files(own)
    if name in files:
        try:
            return read_theme(files[name]), ""
        except ConfigError as e:
            shipped = SHIPPED / f"{name}.toml"
            stand_in = shipped if shipped.is_file() and shipped != files[name] else SHIPPED / f"{FALLBACK}.toml"
            return read_theme(stand_in), f"{e} The theme {stand_in.stem} stands in."
    return read_theme(SHIPPED / f"{FALLBACK}.toml"), f"{unknown_theme(name, own)} The theme {FALLBACK} stands in."


def unknown_theme(name: str, own: Path | None = None) -> str:
    """That there is no theme of this name, with the nearest; empty where there is one."""
    files = _files(own)
    if name in files:
        return ""
    near = nearest(name, files, 1)
    said = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(files))}."
    return f"There is no theme {name!r}; {said}"


def textual_theme(palette: Palette) -> Theme:
    """The palette as Textual's Theme, with every text colour fixed to one whose contrast is known."""
    from textual.theme import Theme

    c = palette.colors
    usual = "ansi_default" if palette.ansi else None
    own: Any = {k: c.get(k, usual) for k in (*GROUNDS, *WORDS)}
    variables = {**(_ansi_variables(palette) if palette.ansi else _variables(c)), **palette.variables}
    return Theme(name=palette.name, dark=palette.dark, ansi=palette.ansi, boost=usual, variables=variables, **own)


def _ansi_variables(palette: Palette) -> dict[str, str]:
    """What Textual needs beside the words: cursors and selections that show on both kinds of terminal."""
    c = palette.colors
    far, near = ("ansi_bright_white", "ansi_black") if palette.dark else ("ansi_black", "ansi_bright_white")
    inverse = {"foreground": near, "background": far}
    pairs = ("block-cursor", "input-cursor", "input-selection", "screen-selection")
    return {
        **{f"text-{word}": c[word] for word in WORDS[1:]},
        **{f"{pair}-{side}": colour for pair in pairs for side, colour in inverse.items()},
        **({"text-muted": c["muted"], "foreground-muted": c["muted"]} if "muted" in c else {}),
        "input-cursor-text-style": "none",
        "ansi-background": near,
        "ansi-foreground": far,
        "border": c["primary"],
        "border-blurred": "ansi_default",
        "footer-key-foreground": c["accent"],
    }


def _variables(c: Mapping[str, str]) -> dict[str, str]:
    """Variables that Textual would otherwise blend by itself, without regard to contrast."""
    return {
        **{f"text-{word}": c[word] for word in WORDS[1:]},
        "text-muted": c["muted"],
        "text-disabled": c["muted"],
        "foreground-muted": c["muted"],
        "foreground-disabled": c["muted"],
        "border": c["primary"],
        "border-blurred": c["muted"],
        "block-cursor-background": c["primary"],
        "block-cursor-foreground": c["background"],
        "block-cursor-blurred-foreground": c["foreground"],
        "block-cursor-blurred-background": c["panel"],
        "input-cursor-background": c["foreground"],
        "input-cursor-foreground": c["background"],
        "input-selection-background": c["primary"],
        "input-selection-foreground": c["background"],
        "screen-selection-background": c["primary"],
        "screen-selection-foreground": c["background"],
        "footer-foreground": c["foreground"],
        "footer-background": c["panel"],
        "footer-key-foreground": c["accent"],
        "footer-description-foreground": c["foreground"],
        "button-color-foreground": c["background"],
        "link-color": c["primary"],
        "link-background-hover": c["primary"],
        "link-color-hover": c["background"],
        "markdown-h6-color": c["muted"],
    }


def contrast(a: str, b: str) -> float:
    """WCAG 2 contrast ratio of two "#rrggbb" or "#rgb" colours, 1 to 21."""
    high, low = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(color: str) -> float:
    digits = color.lstrip("#")
    if len(digits) == 3:
        digits = "".join(d * 2 for d in digits)
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def weak_pairs(palette: Palette) -> Iterator[str]:
    """Sentences on text that is hard to read; none for an ANSI theme, whose colours are the terminal's."""
    if palette.ansi:
        return
    c = palette.colors
    pairs = [(word, ground, BODY_CONTRAST) for word in WORDS for ground in GROUNDS]
    pairs += [("muted", ground, MUTED_CONTRAST) for ground in GROUNDS]
    pairs += [("background", word, BODY_CONTRAST) for word in ("primary", "foreground")]
    for text, ground, needed in pairs:
        ratio = contrast(c[text], c[ground])
        if ratio < needed:
            yield f"theme {palette.name}: {text} on {ground} has a contrast of {ratio:.1f}, {needed:g} is needed to read it."
