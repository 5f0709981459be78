"""Where this program keeps its files, and how it writes them: private, whole or not at all. Knows no format but JSON state.

`QWEN_CHAT_HOME` moves every place; otherwise the platform's folders are used.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Places", "make_private_folder", "recall", "remember", "write_whole"]

APP = "qwen-chat"


@dataclass(frozen=True, slots=True)
class Places:
    """Folders and files; none of them need exist."""

    config_file: Path
    themes: Path
    """The user's own themes, one TOML file each."""
    conversations: Path
    state_file: Path
    """What the app remembers by itself: the last theme, recent models."""
    running: Path
    """One file a running chat, to warn when several exceed the memory."""
    log_file: Path
    """What libraries print while the full-screen app owns the terminal."""

    @classmethod
    def of(cls, environ: Mapping[str, str] | None = None) -> Places:
        environ = os.environ if environ is None else environ
        home = environ.get("QWEN_CHAT_HOME")
        if home:
            root = Path(os.path.abspath(os.path.expanduser(home)))
            config, data, state, log = root, root, root, root
        else:
            import platformdirs

            config, data = platformdirs.user_config_path(APP, False), platformdirs.user_data_path(APP, False)
            state, log = platformdirs.user_state_path(APP, False), platformdirs.user_log_path(APP, False)
        return cls(
            config_file=config / "config.toml",
            themes=config / "themes",
            conversations=data / "conversations",
            state_file=state / "state.json",
            running=state / "running",
            log_file=log / "output.log",
        )


def make_private_folder(folder: Path) -> None:
    """Create the folder, and those above it that are missing, for this user alone (0700)."""
    missing = []
    at = folder
    while not at.exists():
        missing.append(at)
        at = at.parent
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)


def write_whole(path: Path, text: str) -> None:
    """Replace a file with `text` at once, readable by this user alone (0600); a reader never sees half of it."""
    make_private_folder(path.parent)
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "w", encoding="utf-8", errors="surrogatepass") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def recall(places: Places) -> dict[str, Any]:
    """What was remembered; empty when nothing was, or when the file cannot be read."""
    try:
        state = json.loads(places.state_file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return state if isinstance(state, dict) else {}


def remember(places: Places, **values: Any) -> bool:
    """Add values to what is remembered (None forgets one). A file that cannot be parsed is set aside, not overwritten.

    Returns False when the state could not be written; nothing depends on it.
    """
    path = places.state_file
    try:
        if path.exists() and not recall(places) and path.read_text("utf-8", "replace").strip() not in ("", "{}"):
            os.replace(path, path.with_name(path.name + ".unreadable"))
        state = {**recall(places), **values}
        kept = {k: v for k, v in state.items() if v is not None}
        write_whole(path, json.dumps(kept, indent=2, ensure_ascii=True) + "\n")
    except OSError:
        return False
    return True
