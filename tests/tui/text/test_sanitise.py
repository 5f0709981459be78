"""Nothing that a terminal would act on survives, whole or in pieces."""

from __future__ import annotations

import itertools
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen_chat_mlx.tui.text.sanitise import Sanitiser, clean, one_line

HOSTILE = [
    "\x1b]52;c;aGk=\x07", "\x1b]0;title\x07", "\x1b[2J", "\x1bc", "\x1bP+q\x1b\\", "\x9b2J", "\x9d52;c;x\x9c", "\x1b]8;;x",
    "a\x00b", "\x08\x08", "\u202eabc", "\u2066x\u2069", "\x7f", "\ud800", "\x0e\x0f",
]  # fmt: skip


def harmless(text: str) -> bool:
    return all(c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs") for c in text) and not any(
        c in text for c in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_made_harmless(text: str) -> None:
    assert harmless(clean(text))
    assert harmless(one_line(text))
    clean(text).encode("utf-8")


@given(st.text(), st.lists(st.integers(0, 40), max_size=6))
def test_any_text_in_any_pieces_comes_out_harmless_and_the_same(text: str, cuts: list[int]) -> None:
    feed = Sanitiser().feed
    points = sorted({0, *(min(c, len(text)) for c in cuts), len(text)})
    pieces = "".join(feed(text[a:b]) for a, b in itertools.pairwise(points))
    assert pieces == clean(text)
    assert harmless(pieces)


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "List<int> & <b>",
        "[/] [@click=x] [link='y",
        "日本語 👩‍👧",
        "a\tb\nc",
        "é",
        "❤\ufe0f",
        "🏴\U000e0067\U000e0062\U000e007f",
        "می\u200cخواهم",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert clean(text) == text


def test_line_ends_of_every_system_become_newlines() -> None:
    assert clean("a\r\nb\rc\n") == "a\nb\nc\n"


def test_one_line_is_one_line_and_bounded() -> None:
    assert one_line("a\n b\t c\u2028d") == "a b c d"
    assert len(one_line("x" * 10_000, 50)) == 50
