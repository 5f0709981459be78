"""Model folders that are here: the configured one, those used lately, and snapshots in the Hugging Face cache.

Looks at folders and `config.json` only; nothing is downloaded and no weight is read.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .text.sanitise import one_line

__all__ = ["DEMO", "DEMO_FOLDER", "FoundModel", "find_models", "problem_of"]

DEMO = "demo"
DEMO_FOLDER = Path(__file__).parents[1] / "engine" / "demo"
"""Where the built-in model stands; an installation may come without it."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    path: str
    """What `[model] path` takes."""
    name: str
    kind: str = ""
    """model_type of its config.json."""
    size_bytes: int = 0
    problem: str = ""
    """Why it cannot be opened, as far as its folder tells; empty when nothing speaks against it."""
    origin: str = ""


def find_models(
    configured: str, recent: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> list[FoundModel]:
    """The models to choose from, the configured one first, the built-in one last; each once."""
    environ = os.environ if environ is None else environ
    found: dict[str, FoundModel] = {}
    cached = _cached(environ)
    for path, origin in (
        (configured, "configured"), *((r, "used lately") for r in recent), *((p, "HF cache") for p in cached),
    ):  # fmt: skip
        if path and path != DEMO and path not in found:
            found[path] = _look(path, origin, cached.get(path))
    there = (DEMO_FOLDER / "config.json").exists()
    demo = FoundModel(DEMO, "Built-in demo model", origin="comes with the program")
    return [*found.values(), demo if there else replace(demo, problem="not part of this installation")]


def problem_of(path: str) -> str:
    """Why this model cannot be opened, as far as its folder tells; empty when nothing speaks against it."""
    return next((m.problem for m in find_models(path) if m.path == path), "")


def _cached(environ: Mapping[str, str]) -> dict[str, Path]:
    """The latest snapshot of every model in the cache, by "org/name"; it is the one that the engine opens."""
    hub = environ.get("HF_HUB_CACHE")
    home = environ.get("HF_HOME") or os.path.join(environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    folder = Path(os.path.expanduser(hub or os.path.join(home, "hub")))
    found = {}
    with contextlib.suppress(OSError):
        for repo in sorted(p for p in folder.glob("models--*--*") if p.is_dir()):
            snapshots = [s for s in repo.glob("snapshots/*") if (s / "config.json").exists()]
            if snapshots:
                name = repo.name.removeprefix("models--").replace("--", "/", 1)
                found[name] = max(snapshots, key=lambda s: s.stat().st_mtime)
    return found


def _look(path: str, origin: str, snapshot: Path | None) -> FoundModel:
    """`snapshot` is what stands for an "org/name"."""
    folder = Path(os.path.expanduser(path))
    name = one_line(folder.name or path, 60)
    if path.count("/") == 1 and not path.startswith((".", "/", "~")) and not folder.exists():
        name = one_line(path, 60)
        if snapshot is None:
            return FoundModel(path, name, problem="neither a folder nor in the Hugging Face cache", origin=origin)
        folder = snapshot
    if not folder.is_dir():
        return FoundModel(path, name, problem="the folder is not there", origin=origin)
    config = folder / "config.json"
    try:
        kind = json.loads(config.read_text("utf-8")).get("model_type", "")
    except FileNotFoundError:
        return FoundModel(path, name, problem="there is no config.json in it", origin=origin)
    except (OSError, ValueError, AttributeError):
        return FoundModel(path, name, problem="its config.json cannot be read", origin=origin)
    kind = one_line(kind, 40)
    size = sum(f.stat().st_size for f in folder.glob("*.safetensors") if f.exists())
    return FoundModel(path, name, kind, size, "", origin)
