"""The engine's door: `open_engine(config, emit) -> Engine`. Importing it costs no MLX, no numpy, no tokenizer."""

from __future__ import annotations

from .config import EngineConfig
from .contract import Emit, Engine

__all__ = ["Emit", "Engine", "EngineConfig", "open_engine"]


def open_engine(config: EngineConfig, emit: Emit) -> Engine:
    """Start an engine and return at once; the model loads on the engine's own thread, which `emit` is called on.

    Loading problems arrive as EngineFailed(fatal=True); nothing is raised here.
    """
    from .worker import EngineWorker

    return EngineWorker(config, emit)
