"""The interface's settings, and how all settings come together: flag > --set > environment > file > remembered > default.

Settings are declared here and in engine/config, once each; nothing else lists them. Knows no widget and no flag parser.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..engine.config import (
    EngineConfig,
    Setting,
    boolean,
    check,
    number,
    one_of,
    optional,
    setting,
    settings_of,
    text,
    text_or_path,
)
from ..engine.errors import ConfigError, nearest
from .config_text import line_of, parse_scalar, read_toml
from .places import Places, recall
from .text.key_names import key_name

__all__ = ["Live", "Loaded", "UiConfig", "all_settings", "load"]

PREFIX = "QWEN_CHAT_"
REMEMBERED = ("ui.theme", "ui.metrics")
"""Settings that the app changes by itself and keeps in the state file."""


def keymap(value: Any) -> dict[str, str]:
    """Action → keys joined by commas; a text or a list of texts each, empty to take the keys away."""
    accepted = 'keys by action, each a text such as "ctrl+j" or a list of them'
    if not isinstance(value, Mapping):
        raise ValueError(accepted)
    found = {}
    for action, keys in value.items():
        listed = keys.split(",") if isinstance(keys, str) else keys
        if not isinstance(listed, (list, tuple)) or not all(isinstance(k, str) for k in listed):
            raise ValueError(f"{accepted}; {action!r} has {keys!r}")
        try:
            found[action] = ",".join(key_name(k.strip()) for k in listed if k.strip())
        except ValueError as e:
            raise ValueError(f"{accepted}; for {action!r} {e}") from None
    return found


def names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in value):
        raise ValueError('a list of names such as ["mtp_draft", "ssd_reads"]')
    return tuple(value)


def limits(low: float, high: float) -> Callable[[Any], tuple[float, float]]:
    """Two ascending numbers between which a value is neither good nor bad."""

    def parse(value: Any) -> tuple[float, float]:
        accepted = f"two ascending numbers from {low:g} to {high:g}, such as [{low:g}, {high:g}]"
        if not isinstance(value, (list, tuple)) or len(value) != 2:
            raise ValueError(accepted)
        try:
            first, second = (number(low, high)(v) for v in value)
        except ValueError:
            raise ValueError(accepted) from None
        if first >= second:
            raise ValueError(accepted)
        return first, second

    return parse


@dataclass(frozen=True, slots=True, kw_only=True)
class UiConfig:
    """The effective settings of the interface; UiConfig() is the documented default of every one."""

    system: str = setting("chat", "system", "", text, "System prompt of new conversations; empty for none.")
    think: bool | None = setting(
        "chat", "think", None, optional(boolean, "model"),
        'Let the model think before it answers: true, false, or "model" for what its template does by itself.',
    )  # fmt: skip
    save_history: bool = setting(
        "history", "save", True, boolean, "Keep conversations on disk; false makes every chat a temporary one."
    )
    theme: str = setting(
        "ui", "theme", "ink", text,
        "A theme by name: one of the shipped ones (`/theme` or `qwen-chat config --themes` lists them) or a TOML file in your own "
        "themes folder.",
    )  # fmt: skip
    metrics: str = setting(
        "ui", "metrics", "full", one_of("full", "strip", "off"),
        'The live panels: "full" (at the side where there is room), "strip" (one line) or "off". `/panels` changes it.',
    )  # fmt: skip
    ascii: bool = setting("ui", "ascii", False, boolean, "Draw with ASCII characters only.")
    mouse: bool = setting(
        "ui", "mouse", True, boolean, "Use the mouse; false leaves it to the terminal's own selection."
    )
    timestamps: bool = setting(
        "ui", "timestamps", True, boolean, "Show when each turn was written, where there is room."
    )
    bell: bool = setting(
        "ui", "bell", False, boolean, "Ring the terminal's bell when a reply ends while it has no focus."
    )
    keys: dict[str, str] = setting(
        "keys", "*", {}, keymap,
        'Keys by action, for example stop = "escape" or newline = ["ctrl+j", "shift+enter"].',
    )  # fmt: skip
    panel_order: tuple[str, ...] = setting(
        "panels", "order", [], names, "Panels that come first, in this order; the others follow in their own."
    )
    panel_hide: tuple[str, ...] = setting("panels", "hide", [], names, "Panels that are not shown.")
    acceptance_limits: tuple[float, float] = setting(
        "panels", "acceptance_percent", [20, 50], limits(0, 100),
        "Draft acceptance below the first is bad, from the second on good.",
    )  # fmt: skip
    hit_rate_limits: tuple[float, float] = setting(
        "panels", "hit_rate_percent", [70, 90], limits(0, 100),
        "Expert cache hits below the first are bad, from the second on good.",
    )  # fmt: skip
    ssd_p95_limits: tuple[float, float] = setting(
        "panels", "ssd_p95_ms", [2, 8], limits(0, 60000),
        "95 of 100 reads took at most this long: up to the first is good, above the second bad.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        for s in settings_of(type(self)):
            object.__setattr__(self, s.field, check(s, getattr(self, s.field)))


def all_settings() -> tuple[Setting, ...]:
    """Every setting there is, the engine's first."""
    return (*settings_of(EngineConfig), *settings_of(UiConfig))


@dataclass(frozen=True, slots=True)
class Loaded:
    """Effective settings and where each came from."""

    engine: EngineConfig
    ui: UiConfig
    origins: Mapping[str, str]
    """By "table.key": "default", "remembered", a flag, "--set", a variable's name, or the config file's path."""
    file: Path | None
    """The config file that was read; None when there was none."""
    places: Places

    def value(self, s: Setting) -> Any:
        owner = self.engine if any(f.name == s.field for f in fields(EngineConfig)) else self.ui
        return getattr(owner, s.field)

    def line(self, name: str) -> int | None:
        """Line of the config file that set "table.key", or None."""
        if self.file is None or self.origins.get(name) != str(self.file):
            return None
        table, key = name.split(".", 1)
        return line_of(self.file.read_text("utf-8-sig"), *((table,) if key == "*" else (table, key)))


class _Gather:
    """Values by setting as the sources are read, weakest source first."""

    def __init__(self, actions: Collection[str], panels: Collection[str]) -> None:
        self.known = {s.name: s for s in all_settings()}
        self.tables = {s.table for s in self.known.values()}
        self.names = {"keys": actions, "panels": panels}
        self.values: dict[str, Any] = {}
        self.origins = dict.fromkeys(self.known, "default")

    def find(self, table: str, key: str) -> tuple[Setting, str | None]:
        """The setting, and the key inside it where the setting is a whole table. Raises ConfigError with the nearest."""
        if f"{table}.{key}" in self.known:
            return self.known[f"{table}.{key}"], None
        if f"{table}.*" in self.known:
            actions = self.names.get(table)
            if actions and key not in actions:
                raise self._unknown(f"{table}.{key}", [f"{table}.{a}" for a in actions], "action")
            return self.known[f"{table}.*"], key
        if table not in self.tables:
            near = nearest(table, self.tables, 1) or [s.table for s in self.known.values() if s.key == key][:1]
            said = f" Did you mean [{near[0]}]?" if near else f" There are {', '.join(sorted(self.tables))}."
            raise ConfigError(f"There is no table [{table}].{said}", key=f"{table}.{key}")
        raise self._unknown(f"{table}.{key}", list(self.known), "setting")

    @staticmethod
    def _unknown(name: str, known: list[str], what: str) -> ConfigError:
        key = name.split(".", 1)[1]
        near = [k for k in known if k.split(".", 1)[1] == key] or nearest(name, known, 1)
        said = f" Did you mean {near[0]}?" if near else " `qwen-chat config` lists them all."
        return ConfigError(f"There is no {what} {name}.{said}", key=name)

    def put(self, s: Setting, inner: str | None, value: Any, origin: str) -> None:
        if inner is not None:
            value = {**self.values.get(s.name, {}), **check(s, {inner: value})}
        self.values[s.name] = self._checked(s, value)
        self.origins[s.name] = origin

    def put_text(self, s: Setting, inner: str | None, written: str, origin: str) -> None:
        """A value given as text: read as TOML where the setting takes that, else as the text itself."""
        meant = parse_scalar(written)
        if meant != written:
            try:
                return self.put(s, inner, meant, origin)
            except ConfigError:
                if not isinstance(meant, str) and s.parse not in (text, text_or_path):
                    raise
        self.put(s, inner, written, origin)
        return None

    def _checked(self, s: Setting, value: Any) -> Any:
        value = check(s, value)
        if s.name in ("model.path", "trace.file"):
            value = os.path.expanduser(value)
        if s.name in ("panels.order", "panels.hide") and self.names["panels"]:
            for name in value:
                if name not in self.names["panels"]:
                    near = nearest(name, self.names["panels"], 1)
                    said = (
                        f"did you mean {near[0]!r}?"
                        if near
                        else f"there are {', '.join(sorted(self.names['panels']))}."
                    )
                    raise ConfigError(f"{s.name} names a panel {name!r} that does not exist; {said}", key=s.name)
        return value

    def file(self, path: Path) -> None:
        found, written = read_toml(path)
        for table, inside in found.items():
            if not isinstance(inside, dict):
                hint = "It stands before the first [table]; move it below the table it belongs to."
                raise ConfigError(
                    f"{table} is not inside a table.", hint, file=str(path), line=line_of(written, table), key=table
                )
            for key, value in inside.items():
                try:
                    self.put(*self.find(table, key), value, str(path))
                except ConfigError as e:
                    line = line_of(written, table, key)
                    raise ConfigError(e.message, e.hint, file=str(path), line=line, key=f"{table}.{key}") from None
            if not inside and table not in self.tables:
                try:
                    self.find(table, "")
                except ConfigError as e:
                    raise ConfigError(
                        e.message, e.hint, file=str(path), line=line_of(written, table), key=table
                    ) from None

    def environment(self, environ: Mapping[str, str]) -> None:
        spelt = {f"{s.table}_{s.key}".upper(): s for s in self.known.values() if s.key != "*"}
        for variable in sorted(environ):
            rest = variable[len(PREFIX) :]
            if not variable.startswith(PREFIX) or not environ[variable] or rest == "HOME":
                continue
            table, _, action = rest.lower().partition("_")
            if rest in spelt:
                s, inner = spelt[rest], None
            elif f"{table}.*" in self.known and action:
                s, inner = self._within(variable, table, action)
            elif table in self.tables or difflib.get_close_matches(rest, spelt, 1, 0.75):
                near = nearest(rest, spelt, 1)
                said = f" Did you mean {PREFIX}{near[0]}?" if near else ""
                raise ConfigError(
                    f"{variable} is not a setting.{said}", "Unset it, or see `qwen-chat config`.", key=variable
                )
            else:
                continue
            self._from(variable, s, inner, environ[variable])

    def _within(self, variable: str, table: str, action: str) -> tuple[Setting, str | None]:
        try:
            return self.find(table, action)
        except ConfigError as e:
            raise ConfigError(f"{variable}: {e.message}", e.hint, key=e.key) from None

    def sets(self, sets: Sequence[str]) -> None:
        for item in sets:
            name, equals, written = item.partition("=")
            table, dot, key = name.strip().partition(".")
            if not equals or not dot or not key:
                raise ConfigError(
                    f"--set {item} cannot be read.", "Write it as --set table.key=value, such as --set mtp.mode=off."
                )
            try:
                s, inner = self.find(table, key)
            except ConfigError as e:
                raise ConfigError(f"--set {item}: {e.message}", e.hint, key=e.key) from None
            self._from("--set", s, inner, written.strip())

    def flags(self, flags: Mapping[str, Any], words: Mapping[str, str]) -> None:
        for name, value in flags.items():
            self._from(words.get(name, "flag"), self.known[name], None, value)

    def _from(self, origin: str, s: Setting, inner: str | None, value: Any) -> None:
        try:
            if isinstance(value, str):
                self.put_text(s, inner, value, origin)
            else:
                self.put(s, inner, value, origin)
        except ConfigError as e:
            raise ConfigError(f"{origin}: {e.message}", e.hint, key=e.key) from None

    def remembered(self, state: Mapping[str, Any]) -> None:
        for name in REMEMBERED:
            if name in state:
                try:
                    self.put(self.known[name], None, state[name], "remembered")
                except ConfigError:
                    continue

    def build(self, cls: type) -> Any:
        return cls(**{s.field: self.values[s.name] for s in settings_of(cls) if s.name in self.values})


def load(
    flags: Mapping[str, Any] | None = None,
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    file: str | os.PathLike[str] | None = None,
    *,
    flag_names: Mapping[str, str] | None = None,
    actions: Collection[str] = (),
    panels: Collection[str] = (),
) -> Loaded:
    """The effective settings. Raises ConfigError naming the source, the key, the value and what is accepted.

    `flags` by "table.key", spelt in messages as `flag_names` says; `sets` as "table.key=value". A `file` that was asked for
    must exist, the usual one need not. `actions` and `panels` are the names that [keys] and [panels] may use, where known.
    """
    environ = os.environ if environ is None else environ
    places = Places.of(environ)
    path = Path(os.path.expanduser(file)) if file else places.config_file
    gather = _Gather(actions, panels)
    gather.remembered(recall(places))
    there = bool(file) or path.exists()
    if there:
        gather.file(path)
    gather.environment(environ)
    gather.sets(sets)
    gather.flags(flags or {}, flag_names or {})
    engine, ui = gather.build(EngineConfig), gather.build(UiConfig)
    return Loaded(engine, ui, gather.origins, path if there else None, places)


class Live:
    """The config file and the user's themes as they change under a running app: theme and keys follow, all else waits for a
    restart. Nothing watches: `poll` looks at the files' times when asked.
    """

    def __init__(self, loaded: Loaded, reload: Callable[[], Loaded]) -> None:
        """`reload` loads again with the same flags; it may raise ConfigError."""
        self.loaded = loaded
        self.theme_changed = False
        """Whether the latest `poll` brought another theme."""
        self.themes_edited = False
        """Whether a file in the user's themes folder had changed at the latest `poll`."""
        self._reload = reload
        self._seen, self._themes_seen = self._stamps()

    def poll(self) -> tuple[Loaded | None, str]:
        """(new settings or None, message or ""). A file that cannot be used leaves the last good settings in place."""
        config, themes = self._stamps()
        self.theme_changed, self.themes_edited = False, themes != self._themes_seen
        self._themes_seen = themes
        unchanged = self.loaded if self.themes_edited else None
        if config == self._seen:
            return unchanged, ""
        self._seen = config
        try:
            fresh = self._reload()
        except ConfigError as e:
            return unchanged, f"{e} The settings from before stay."
        old = self.loaded
        ui = replace(old.ui, theme=fresh.ui.theme, keys=fresh.ui.keys)
        waits = replace(fresh.ui, theme=ui.theme, keys=ui.keys) != ui or fresh.engine != old.engine
        message = "Some changed settings take effect at the next start." if waits else ""
        self.theme_changed = ui.theme != old.ui.theme
        self.loaded = replace(old, ui=ui)
        return (self.loaded if ui != old.ui else unchanged), message

    def _stamps(self) -> tuple[object, object]:
        config = _stamp(self.loaded.file or self.loaded.places.config_file)
        themes = sorted((p.name, _stamp(p)) for p in self.loaded.places.themes.glob("*.toml"))
        return config, themes


def _stamp(path: Path) -> tuple[int, int, int]:
    """Changes when the file does; zeros where there is none."""
    try:
        s = os.stat(path)
    except OSError:
        return 0, 0, 0
    return s.st_mtime_ns, s.st_size, s.st_ino
