"""Our own dialogues: a closed world of tasks, each with exact rules for what a right answer is."""

from .conversation import Conversations, Piece, prompt, written
from .turns import Turn

__all__ = ["Conversations", "Piece", "Turn", "prompt", "written"]
