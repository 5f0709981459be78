"""Keys that arrive in one read, as over a slow line or from a script, act in the order they were typed."""

import pytest
from textual import events

from qwen_chat_mlx.engine.fake import FakeEngine, FakeScript
from qwen_chat_mlx.tui.app import QwenChatApp
from qwen_chat_mlx.tui.places import Places
from qwen_chat_mlx.tui.screens.picker import Item, Picker


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
        together(app, *keys)
        for _ in range(5):
            await pilot.pause()
        assert [t.text for t in app.state.turns if t.role == "user"] == [sent]
        assert app.chat.composer.text == left


def together(app, *keys):
    for key in keys:
        app.post_message(events.Key(key, key if len(key) == 1 else None))


@pytest.mark.parametrize(
    ("keys", "chosen"),
    [
        pytest.param((*"pl", "enter"), "plum", id="enter takes what all of the text leaves"),
        pytest.param((*"p", "down", "enter", "enter"), "plum", id="down moves in it, a second enter does nothing"),
        pytest.param(("p", "enter", "x"), "pear", id="what is typed behind enter changes nothing"),
    ],
)
async def test_a_list_is_chosen_from_as_it_is_behind_all_that_was_typed_before_the_key(keys, chosen):
    app = QwenChatApp(lambda config, emit: FakeEngine(emit, FakeScript(load_s=0.0), manual=True))
    picked = []
    async with app.run_test() as pilot:
        await ready(app, pilot)
        fruit = [Item(name, name) for name in ("apple", "pear", "plum")]
        app.push_screen(Picker("Fruit", lambda wanted: [i for i in fruit if i.id.startswith(wanted)]), picked.append)
        await pilot.pause()
        together(app, *keys)
        for _ in range(5):
            await pilot.pause()
        assert [p.item.id for p in picked] == [chosen]
        assert app.screen is app.chat


async def test_a_title_is_kept_with_the_last_letters_before_enter(home):
    app = QwenChatApp(lambda config, emit: FakeEngine(emit, FakeScript(load_s=0.0), manual=True), places=Places.of())
    async with app.run_test() as pilot:
        await ready(app, pilot)
        app.chat.send_text("hello")
        app.engine.finish()
        app.on_wake()
        await pilot.press("ctrl+s", "ctrl+r")
        await pilot.pause()
        together(app, *" again", "enter")
        for _ in range(5):
            await pilot.pause()
        assert app.recorder.conversation.title == "hello again"


async def test_settings_are_applied_with_what_was_typed_right_before_the_key():
    app = QwenChatApp(lambda config, emit: FakeEngine(emit, FakeScript(load_s=0.0), manual=True))
    async with app.run_test() as pilot:
        await ready(app, pilot)
        await pilot.press("f7")
        app.screen.query_one("#temperature").focus()
        await pilot.pause()
        together(app, *"0.25", "ctrl+s")
        for _ in range(5):
            await pilot.pause()
        assert app.state.sampling == {"temperature": 0.25}


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
