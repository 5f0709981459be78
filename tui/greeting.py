"""What an empty chat says: that the model loads, what it is, and what to ask. Lines only; knows no widget and no engine."""

from __future__ import annotations

from collections.abc import Callable

from textual.content import Content

from .state import ChatState
from .text.layout import BLANK, Line, plain_lines

__all__ = ["EXAMPLES", "greeting"]

EXAMPLES = (
    "What is the capital of France?",
    "What is 17 + 8?",
    "Tell me a story about a fox.",
    "Write a Python function that checks if a number is prime.",
    "How do I turn MTP off?",
)
"""What the built-in demo model was trained to answer."""
_MUTED = "$text-muted"
_DEMO = "This is a tiny demo model: it knows a few hundred facts and this program, and little else. Try"
_REAL = 'opens another model and says how to get the real one; qwen-chat --model "folder or org/name" starts on it.'


def greeting(state: ChatState, width: int, way: Callable[[str], str]) -> list[Line]:
    """The rows that stand in for a chat without a turn, at most `width` cells wide. `way` says how an action is called up."""
    if state.phase == "failed" and state.failure is not None:
        lines = plain_lines("The model could not be loaded.", width, "bold $text-error")
        lines += plain_lines(state.failure.message, width)
        if state.failure.hint:
            lines += plain_lines(state.failure.hint, width, _MUTED)
        return [BLANK, *lines]
    lines = [BLANK, *plain_lines("Ask something.", width, "bold")]
    if state.phase == "loading":
        lines += plain_lines("The model is loading. A prompt sent now waits for it.", width, _MUTED)
    elif state.model is not None:
        if state.model.is_demo:
            lines += [*plain_lines(_DEMO, width), BLANK]
            for example in EXAMPLES:
                first, *rest = plain_lines(example, width - 4, "italic")
                lines += [Line(Content("  · ") + first.content), *(Line(Content("    ") + r.content) for r in rest)]
            lines += [BLANK, *plain_lines(f"{way('models')} {_REAL}", width, _MUTED)]
        for note in state.model.notes:
            lines += plain_lines(note, width, _MUTED)
    lines += plain_lines(f"/ lists the commands, {way('help')} explains the keys and the panels.", width, _MUTED)
    return lines
