"""The demo network in PyTorch: a small trainable Qwen4-Exp trunk with its draft layer. Knows no data and no optimizer."""

from .config import NetworkConfig
from .model import DemoModel

__all__ = ["DemoModel", "NetworkConfig"]
