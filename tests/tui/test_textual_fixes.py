"""Pasted escape sequences are never keys."""

import json
import subprocess
import sys

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


# ---- each mend is still needed: these fail once the installed Textual does without it, and then it can be deleted

NEEDED = {
    "Alt+Enter as ESC CR": ("\x1b\r", ["alt+enter"]),
    "a malformed mouse report": ("a\x1b[<32;NaN;NaNMb", ["a", "b"]),
    "escape sequences in a paste": ("\x1b[200~a\x1b[31mb\x07c\x1b[201~", ["ab\x07c"]),
}
SCRIPT = """
import json, sys
from textual._xterm_parser import XTermParser
found = XTermParser().feed(json.loads(sys.argv[1]))
print(json.dumps([getattr(e, "text", None) or getattr(e, "key", type(e).__name__) for e in found]))
"""


@pytest.mark.parametrize("name", NEEDED)
def test_textual_still_needs_the_mend(name):
    sent, wanted = NEEDED[name]
    assert described(events([sent])) == wanted
    done = subprocess.run([sys.executable, "-c", SCRIPT, json.dumps(sent)], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) != wanted, f"Textual handles {name} by itself: take the mend out of textual_fixes."
