"""How the application looks and which keys it has: taken from the config, and taken over while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from textual.app import App
from textual.filter import LineFilter

from .config import Live, UiConfig
from .keys import key_problems, keymap, way
from .places import Places, recall, remember
from .text.glyphs import AsciiOnly
from .themes import FALLBACK, choose, textual_theme, unknown_theme

__all__ = ["ConfiguredApp"]


class ConfiguredApp(App[int], inherit_bindings=False):
    """An app whose theme and keys come from its config; knows no chat and no engine."""

    def __init__(self, ui: UiConfig, places: Places | None, live: Live | None) -> None:
        """`places` None keeps nothing on disk; `live` follows the config file."""
        super().__init__()
        self.ui, self.places, self.live = ui, places, live
        self.keys = keymap(ui.keys)
        self._told: set[str] = set()
        self._ascii: list[LineFilter] = [AsciiOnly()] if ui.ascii else []
        # Before the first paint: a theme that changes later makes every style be worked out twice.
        self._theme_problem = self._take_theme(ui.theme)

    def say(self, text: str, severity: Literal["information", "warning", "error"] = "information") -> None:
        """Tell the user."""
        raise NotImplementedError

    def keys_changed(self) -> None:
        """Other keys are in force now."""

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), *self._ascii]

    # ---- what is kept between runs

    def recall(self, name: str) -> Any:
        return recall(self.places).get(name) if self.places is not None else None

    def remember(self, **values: Any) -> None:
        if self.places is not None:
            remember(self.places, **values)

    def choose(self, name: str, value: Any) -> None:
        """Remember a setting that was changed here; say once where the config file or a variable will win over it."""
        self.remember(**{name: value})
        origin = self.live.loaded.origins[name] if self.live is not None else "default"
        if origin not in ("default", "remembered") and not origin.startswith("--") and name not in self._told:
            self._told.add(name)
            self.say(f"{name} is set in {origin}: the next start has that again.")

    # ---- themes

    @property
    def _own_themes(self) -> Path | None:
        return self.places.themes if self.places is not None else None

    def _take_theme(self, name: str) -> str:
        """Switch the theme; a bad one falls back, and why is returned."""
        palette, problem = choose(name, self._own_themes)
        theme = textual_theme(palette)
        self.register_theme(theme)
        if not self.is_running:
            # What Textual does at a change, short of reading and working out every style a second time.
            self.set_reactive(App.theme, theme.name)
            self.stylesheet.set_variables(self.get_css_variables())
            self._refresh_truecolor_filter(self.ansi_theme)
        elif self.theme == theme.name:
            self.refresh_css()
        else:
            self.theme = theme.name
        self.ui = replace(self.ui, theme=palette.name)
        return problem

    def use_theme(self, name: str, *, remember: bool = False) -> None:
        """Switch the theme, and say what is wrong with a bad one; a name that no theme has changes nothing."""
        problem = unknown_theme(name, self._own_themes) or self._take_theme(name)
        if problem:
            self.say(problem, "warning")
        elif remember:
            self.choose("ui.theme", self.ui.theme)

    # ---- keys

    def use_keys(self) -> None:
        """Bind the keys in force and say what is wrong with them; an action without keys gets one that no terminal sends."""
        self.set_keymap({name: keys or f"unbound_{name}" for name, keys in self.keys.items()})
        for problem in key_problems(self.ui.keys):
            self.say(problem, "warning")
        self.keys_changed()

    def key(self, action: str) -> str:
        """How an action is called up, for people: its key, else its command, else nothing."""
        return way(action, self.keys, self.ui.ascii)

    def handle_bindings_clash(self, clashed_bindings: set[Any], node: Any) -> None:
        """Named once at the start, and not at every key press as Textual would."""

    # ---- the file

    def poll_config(self) -> None:
        """Take over a changed config file: theme and keys at once, the rest at the next start."""
        if self.live is None:
            return
        fresh, message = self.live.poll()
        if fresh is not None:
            if self.live.theme_changed:
                self.use_theme(fresh.ui.theme)
            elif self.live.themes_edited:
                # A file that was broken may be whole again, so the fallback gives way to what was asked for.
                self.use_theme(fresh.ui.theme if self.ui.theme == FALLBACK else self.ui.theme)
            self.ui = replace(self.ui, keys=fresh.ui.keys)
            self.keys = keymap(fresh.ui.keys)
            self.use_keys()
        if message:
            self.say(message, "warning")
