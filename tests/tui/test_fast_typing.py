"""Keys that arrive in one read, as over a slow line or from a script, act in the order they were typed."""

import pytest
from textual import events

from qwen_chat_mlx.engine.fake import FakeEngine, FakeScript
from qwen_chat_mlx.tui.app import QwenChatApp


async def ready(app, pilot):
    """The model is loaded and the screen knows it; the engine is opened a little after the first paint."""
    while app.engine is None:
        await pilot.pause(0.01)
    app.engine.advance(5)
    app.on_wake()
    await pilot.pause()


@pytest.mark.parametrize(
    ("keys", "sent", "left"),
    [
        pytest.param(
            ("a", "b", "ctrl+j", "c", "enter"), "ab\nc", "", id="enter and newline come after what is before them"
        ),
        pytest.param(("a", "enter", "b", "c"), "a", "bc", id="what is typed right behind enter stays in the composer"),
    ],
)
async def test_keys_that_arrive_together_act_in_their_order(keys, sent, left):
    app = QwenChatApp(lambda config, emit: FakeEngine(emit, FakeScript(load_s=0.0), manual=True))
    async with app.run_test() as pilot:
        await ready(app, pilot)
        for key in keys:
            app.post_message(events.Key(key, key if len(key) == 1 else None))
        for _ in range(5):
            await pilot.pause()
        assert [t.text for t in app.state.turns if t.role == "user"] == [sent]
        assert app.chat.composer.text == left


async def test_an_emoji_of_several_characters_can_be_typed():
    app = QwenChatApp(lambda config, emit: FakeEngine(emit, FakeScript(load_s=0.0), manual=True))
    emoji = "👩\u200d💻❤\ufe0f🏴\U000e0067\U000e007f"
    async with app.run_test() as pilot:
        await pilot.pause()
        for event in feed(emoji):
            app.post_message(event)
        for _ in range(5):
            await pilot.pause()
        assert app.chat.composer.text == emoji


def feed(text):
    """The events that Textual makes of what comes from a terminal."""
    from textual._xterm_parser import XTermParser

    return [event for event in XTermParser().feed(text) if isinstance(event, events.Key)]
