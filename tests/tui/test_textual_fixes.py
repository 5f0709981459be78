"""Pasted escape sequences are never keys."""

import pytest

from qwen_chat_mlx.tui.textual_fixes import apply

PASTE = "\x1b[200~a\x1b[31mred\x1b]0;title\x07 hi\x1b[2J and more\r\x1bthan thirty-two characters\x1b[201~"


def events(chunks):
    from textual._xterm_parser import XTermParser

    apply()
    parser = XTermParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


def described(found):
    return [getattr(event, "text", None) or getattr(event, "key", type(event).__name__) for event in found]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
def test_a_paste_stays_one_paste_however_it_is_cut(size):
    stream = f"x{PASTE}y\x1b[Az"
    found = described(events(stream[at : at + size] for at in range(0, len(stream), size)))
    keys, pastes = [word for word in found if len(word) < 5], [word for word in found if len(word) >= 5]
    assert keys == ["x", "y", "up", "z"]
    assert len(pastes) == 1
    assert "\x1b" not in pastes[0]
    if size == 1000:
        assert pastes == ["ared hi and more\rthan thirty-two characters"]


def test_keys_outside_a_paste_are_untouched():
    assert described(events(["\x1b[A", "\x1b", "[B", "q"])) == ["up", "down", "q"]


def test_two_pastes_in_one_read():
    assert described(events(["\x1b[200~one\x1b[201~\x1b[200~two\x1b[201~k"])) == ["one", "two", "k"]
