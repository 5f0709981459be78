"""What stands in a chat without a turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qwen_chat_mlx.engine.fake import FakeScript
from qwen_chat_mlx.tui.greeting import EXAMPLES, greeting
from qwen_chat_mlx.tui.keys import DEFAULT_KEYS, way
from qwen_chat_mlx.tui.state import ChatState, Failure


def usual(action: str) -> str:
    return way(action, DEFAULT_KEYS)


def shown(state: ChatState, width: int = 80) -> str:
    return "\n".join(line.content.plain for line in greeting(state, width, usual))


def ready(**model: object) -> ChatState:
    state = ChatState(lambda: 0.0)
    state.phase, state.model = "ready", replace(FakeScript().model, **model)  # type: ignore[arg-type]
    return state


def test_the_demo_greets_with_what_it_can_do_and_says_how_to_open_a_real_model() -> None:
    text = shown(ready(is_demo=True))
    assert len(EXAMPLES) == 5
    assert all(f"· {example}" in text for example in EXAMPLES)
    assert "tiny demo model" in text
    assert "--model" in text
    assert "F6" in text


def test_another_model_is_greeted_with_its_notes_only() -> None:
    text = shown(ready(notes=("Weights are bfloat16.",)))
    assert "Weights are bfloat16." in text
    assert "demo" not in text
    assert EXAMPLES[0] not in text


@pytest.mark.parametrize("width", [10, 24, 40, 100])
def test_no_row_is_wider_than_the_transcript(width: int) -> None:
    assert all(line.content.cell_length <= width for line in greeting(ready(is_demo=True), width, usual))


def test_loading_and_failure_have_words_of_their_own() -> None:
    state = ChatState(lambda: 0.0)
    assert "is loading" in shown(state)
    state.phase, state.failure = "failed", Failure("model is not a folder.", "Name another.", "model")
    assert " ".join(shown(state).split()).startswith(
        "The model could not be loaded. model is not a folder. Name another."
    )
