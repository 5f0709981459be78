"""Which folder a setting or an argument means by a model. Looks at names only, reads no model."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import CheckpointError, ConfigError

__all__ = ["DEMO", "find_model"]

DEMO = "demo"


def find_model(text: str) -> Path:
    """The folder that a setting means: a path, "demo", or "org/name" in the Hugging Face cache (looked up locally).

    Raises CheckpointError, and ConfigError for an empty one.
    """
    if not text.strip():
        raise ConfigError(
            "No model is named: model.path is empty.",
            'Give a model folder with --model PATH, or "org/name" of one in the Hugging Face cache.',
            key="model.path",
        )
    if text == DEMO:
        folder = Path(__file__).parents[1] / "demo"
        if not (folder / "config.json").exists():
            raise CheckpointError(
                "This installation has no built-in demo model.",
                "Give a model folder with --model PATH.",
                path=str(folder),
            )
        return folder
    path = Path(os.path.expanduser(text))
    if os.path.exists(path) or text.count("/") != 1 or text.startswith((".", "/", "~")):
        return path
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    hub = os.path.expanduser(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub"))
    snapshots = Path(hub) / f"models--{text.replace('/', '--')}" / "snapshots"
    found = sorted((p for p in snapshots.glob("*") if (p / "config.json").exists()), key=lambda p: p.stat().st_mtime)
    if not found:
        raise CheckpointError(
            f"{text!r} is neither a folder nor a model in the Hugging Face cache ({snapshots.parent}).",
            f"Download it first (hf download {text}), or give the path of its folder.",
            path=str(snapshots),
        )
    return found[-1]
