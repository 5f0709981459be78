"""Pasted escape sequences are never keys, and painting what changed paints the same as painting everything."""

import json
import random
import subprocess
import sys

import pytest
from rich.cells import cell_len
from textual._compositor import Compositor
from textual.geometry import Region
from textual.widget import Widget

from qwen_chat_mlx.engine.fake import FakeReply, FakeScript
from qwen_chat_mlx.tui.textual_fixes import apply, paint_changed

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


# ---- what changed is painted as Textual itself would paint it


def cells(update, chops):
    """(row, column) -> character and style, of the places that an update writes to, from these rows."""
    out = {}
    for y, x1, x2 in update.spans:
        for x, strip in chops[y].items():
            at = x
            for segment in strip or ():
                for char in segment.text:
                    if x1 <= at < x2:
                        out[y, at] = char, segment.style
                    at += cell_len(char)
    return out


async def test_what_changed_is_painted_as_textual_paints_it(stage):
    script = FakeScript(replies=(FakeReply("# A title\n\n" + "words and 漢字 " * 80, "a thought"),))
    drawn = []

    def both(compositor):
        everything = compositor._render_chops(compositor.size.region, lambda _: True)
        update = paint_changed(compositor)
        if update is not None:
            drawn.append(cells(update, update.chops))
            want = cells(update, everything)
            differ = {k: (v, want.get(k)) for k, v in drawn[-1].items() if want.get(k) != v}
            assert (differ, sorted(set(want) - set(drawn[-1]))[:30]) == ({}, [])
        return update

    async with stage(script, size=(120, 30)) as s:
        kept, Compositor.render_partial_update = Compositor.render_partial_update, both
        try:
            await s.ask("hello", 3.0)
            await s.press("x", "/", "ctrl+t", "pageup")
            await s.finish()
            randomly = random.Random(3)
            for _ in range(60):
                regions = [
                    Region(randomly.randrange(119), randomly.randrange(29), randomly.randrange(1, 40), randomly.randrange(1, 9))
                    for _ in range(randomly.randrange(1, 5))
                ]  # fmt: skip
                screen = s.app.screen
                screen._compositor._dirty_regions |= {r.intersection(screen.region) for r in regions}
                both(screen._compositor)
        finally:
            Compositor.render_partial_update = kept
    assert len(drawn) > 60, "only what was asked for at random was drawn"


async def test_a_small_change_has_no_other_widget_draw(stage, monkeypatch):
    async with stage(FakeScript(), size=(120, 30)) as s:
        asked = []
        plain = Widget.render_lines
        monkeypatch.setattr(Widget, "render_lines", lambda w, crop: asked.append(type(w).__name__) or plain(w, crop))
        s.app.screen._compositor._dirty_regions.add(s.chat.query_one("#status").region)
        s.app.screen._compositor.render_partial_update()
        assert asked == ["Bar"]
