"""Streamed and whole Markdown look the same, raw HTML stays, and lines keep to their width."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen_chat_mlx.tui.text.blocks import BlockSplitter
from qwen_chat_mlx.tui.text.layout import Tail, lay_out, plain_lines
from qwen_chat_mlx.tui.text.markdown import Code, blocks_of

DOCUMENT = """# Title
Some *text* that is long enough to be wrapped once or twice at forty cells.

- one
- two, which is long enough that a hanging indent has to be drawn under it
  - nested

  more of two
- three

1. first
2. second

```python
x = [1]

y = 2
```
> quoted
> twice

| a | b |
|---|--:|
| 1 | 2 |

    indented code

    more of it

Last line"""


def text_of(blocks: list, width: int = 40) -> list[str]:
    return [line.content.plain.rstrip() for line in lay_out(blocks, width)]


def streamed(text: str, step: int) -> list[str]:
    splitter, closed = BlockSplitter(), []
    for i in range(0, len(text), step):
        closed += splitter.feed(text[i : i + step])
    return closed + splitter.finish()


@pytest.mark.parametrize("step", [1, 2, 3, 7, 10_000])
def test_blocks_split_anywhere_give_the_text_back_and_the_same_blocks(step: int) -> None:
    chunks = streamed(DOCUMENT, step)
    assert "".join(chunks).replace("\n", "") == DOCUMENT.replace("\n", "")
    shown = [b for chunk in chunks for b in blocks_of(chunk)]
    assert [type(b) for b in shown] == [type(b) for b in blocks_of(DOCUMENT)]
    assert [t for t in text_of(shown) if t] == [t for t in text_of(blocks_of(DOCUMENT)) if t]


def test_a_closed_block_is_never_reopened() -> None:
    splitter = BlockSplitter()
    assert splitter.feed("one paragraph\n") == []
    assert splitter.feed("\n") == ["one paragraph\n"]
    assert splitter.tail == ""
    assert splitter.feed("```\ncode\n\nmore\n") == []
    assert splitter.in_fence
    assert splitter.feed("```\n") == ["```\ncode\n\nmore\n```\n"]


@given(st.text(alphabet="ab -*`#>|\n1.", max_size=120), st.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_no_text_is_lost_by_the_splitter(text: str, step: int) -> None:
    kept = "".join(streamed(text, step))
    assert kept.split() == text.split()


@pytest.mark.parametrize(
    "text", ["<answer>42</answer>", "List<int>", "<div>\nx\n</div>", "a[b]c", "[/]", "[@click=x]y[/]"]
)
def test_html_and_brackets_stay_visible(text: str) -> None:
    assert "".join(text_of(blocks_of(text))) == text.replace("\n", "")


def test_entities_cannot_bring_controls_back() -> None:
    shown = "".join(text_of(blocks_of("x &#x202e; &#27;[2J &#x9b;2J y")))
    assert not any(c in shown for c in "\u202e\x1b\x9b")


@pytest.mark.parametrize("width", [10, 24, 40, 100])
@pytest.mark.parametrize(
    "text", [DOCUMENT, "日本語のとても長い文章です。" * 6, "| 列 | b |\n|--|--|\n| 日本語日本語日本語 | x |", "x" * 300]
)
def test_no_line_is_wider_than_the_column(text: str, width: int) -> None:
    for line in lay_out(blocks_of(text), width):
        assert line.content.cell_length <= width, line.content.plain


def test_items_hang_under_their_bullet() -> None:
    rows = text_of(blocks_of("- alpha beta gamma delta\n- x"), 14)
    assert rows == ["• alpha beta", "  gamma delta", "• x"]


def test_ordered_lists_keep_their_start() -> None:
    assert text_of(blocks_of("7. a\n8. b")) == ["7. a", "8. b"]


def test_code_keeps_its_language_and_text() -> None:
    (code,) = blocks_of("```rust extra [/]\nlet a = 1;\n```")
    assert isinstance(code, Code)
    assert (code.language, code.text) == ("rust", "let a = 1;")
    rows = text_of([code], 30)
    assert rows[0].split() == ["rust", "copy"]
    assert rows[1] == " let a = 1;"


def test_wrapped_lines_can_be_joined_to_what_was_written() -> None:
    text = "alpha beta gamma delta epsilon " * 4 + "end"
    for width in (8, 13, 40):
        lines = plain_lines(text, width)
        assert "".join(line.content.plain + line.join for line in lines).rstrip("\n") == text


@pytest.mark.parametrize("width", [8, 20, 40])
def test_a_growing_tail_equals_the_whole_wrapped_at_once(width: int) -> None:
    text = "some words, then more words and a " + "verylongword" * 9 + " end\n\nnext line 日本語 text " * 3
    tail = Tail(width)
    for c in text:
        tail.feed(c)
    whole = [line.content.plain for line in plain_lines(text, width)]
    assert [line.content.plain for line in tail.lines] == (whole[:-1] if text.endswith("\n") else whole)
