"""Reply reading: whole characters, thinking apart from the answer, stop strings, and the count of tokens."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qwen_chat_mlx.engine.errors import RequestError
from qwen_chat_mlx.engine.reply import Fragment, ReplyReader, ReplySplitter, StopMatcher, StreamDecoder

THINK, END = 1000, 1001
NO_TOKEN, HIDDEN = 2000, 2001


class Words:
    """A made-up vocabulary: `ids` gives each text or bytes an id, `token_bytes` gives it back."""

    def __init__(self) -> None:
        self.known: list[bytes] = []

    def ids(self, *parts: str | bytes | int) -> list[int]:
        out = []
        for part in parts:
            if isinstance(part, int):
                out.append(part)
                continue
            self.known.append(part.encode() if isinstance(part, str) else part)
            out.append(len(self.known) - 1)
        return out

    def token_bytes(self, token: int) -> bytes:
        return self.known[token] if token < len(self.known) else b"<hidden>" if token == HIDDEN else b""


def read(*parts, finish=True, **options):
    """All pieces of a reply, and its reader."""
    words = Words()
    options = {"think_ids": (THINK, END), "hidden_ids": {HIDDEN}} | options
    reader = ReplyReader(words.token_bytes, **options)
    pieces = []
    for token in words.ids(*parts):
        pieces += reader.feed(token)
        if reader.stopped:
            break
    return pieces + (reader.finish() if finish else []), reader


def said(pieces, kind):
    return "".join(p.text for p in pieces if p.kind == kind)


def tokens(pieces):
    return sum(p.tokens for p in pieces)


# ---------------------------------------------------------------------------------------------------------- characters

awkward = st.sampled_from(
    [b"", b"a", b" the", "é".encode(), "😀".encode(), b"\xf0", b"\x9f\x98", b"\x80", b"\xc3", b"\xff", b"\xe2\x82"]
)


@given(st.lists(st.one_of(awkward, st.binary(max_size=4)), max_size=30))
@example([b"\xf0\x9f", b"", b"\x98", b"\x80"])
@example([b"\xf0\x9f\x98", b"a", b"\xe2"])
def test_text_in_pieces_equals_text_at_once_and_holds_no_half_character(parts):
    decoder = StreamDecoder(lambda i: parts[i])
    out = [decoder.push(i) for i in range(len(parts))]
    whole = b"".join(parts).decode("utf-8", "replace")
    assert "".join(out) + decoder.finish() == whole
    for n in range(len(parts)):
        emitted = "".join(out[: n + 1])
        assert whole.startswith(emitted)
        complete = b"".join(parts[: n + 1]).decode("utf-8", "ignore")
        assert len(emitted) >= len(complete), "only an unfinished character may wait"


def test_an_unfinished_character_becomes_one_replacement_at_the_end():
    decoder = StreamDecoder(lambda i: [b"ok", b"\xf0\x9f\x98"][i])
    assert [decoder.push(0), decoder.push(1), decoder.finish(), decoder.finish()] == ["ok", "", "\ufffd", ""]


def test_the_cost_of_a_token_does_not_grow_with_the_reply():
    words = Words()
    ids = words.ids(" some", " text", "\n")
    reader = ReplyReader(words.token_bytes, stops=["never seen", "\n\n\nUser:"])

    def cost() -> float:
        best = float("inf")
        for _ in range(5):
            start = time.process_time()
            for i in range(300):
                reader.feed(ids[i % 3])
            best = min(best, time.process_time() - start)
        return best

    early = cost()
    for i in range(6_000):
        reader.feed(ids[i % 3])
    assert cost() < 3 * early


# -------------------------------------------------------------------------------------------------- thinking and answer


def test_an_opened_prompt_starts_thinking_and_newlines_between_thinking_and_answer_are_dropped():
    pieces, reader = read("\nLet me", " see.", "\n", END, "\n\n", "Hello", "!", starts_thinking=True)
    assert said(pieces, "thinking") == "Let me see."
    assert said(pieces, "answer") == "Hello!"
    assert tokens(pieces) == reader.committed == 7


def test_a_model_that_opens_its_own_block_has_no_white_space_before_it():
    pieces, _ = read("\n", THINK, "\n", "why", END, "\n\n", "so")
    assert [(p.kind, p.text) for p in pieces if p.text] == [("thinking", "why"), ("answer", "so")]


def test_a_continued_text_keeps_the_white_space_at_its_seam():
    pieces, _ = read("\n\n", "more", "\n", END, "\n\n", "so", starts_thinking=True, continues=True)
    assert said(pieces, "thinking") == "\n\nmore"
    assert said(pieces, "answer") == "so"
    assert said(read("\n\n", "more", continues=True)[0], "answer") == "\n\nmore"


def test_an_empty_block_leaves_no_trace():
    for parts in ((THINK, "\n\n", END, "\n\n", "Hi"), (THINK, END, "Hi")):
        pieces, _ = read(*parts)
        assert [(p.kind, p.text) for p in pieces if p.text] == [("answer", "Hi")]
    pieces, _ = read("\n", END, "\n\n", "Hi", starts_thinking=True)
    assert said(pieces, "thinking") == ""


def test_an_unterminated_block_stays_thinking():
    pieces, _ = read(THINK, "\n", "and then", "\n\n", "and")
    assert said(pieces, "thinking") == "and then\n\nand"
    assert said(pieces, "answer") == ""
    pieces, _ = read("cut", " off\n", starts_thinking=True)
    assert said(pieces, "thinking") == "cut off\n"


def test_stray_and_nested_tags_neither_show_nor_lose_text():
    pieces, _ = read("a", END, " b", THINK, "c ", THINK, "d", END, "e", END, "f", starts_thinking=False)
    assert [(p.kind, p.text) for p in pieces if p.text] == [
        ("answer", "a"),
        ("answer", " b"),
        ("thinking", "c"),
        ("thinking", " d"),
        ("answer", "e"),
        ("answer", "f"),
    ]


def test_indentation_after_the_block_and_inner_newlines_stay():
    pieces, _ = read(THINK, "\n    x\n\ny\n", END, "\n\n    code", "\n\n", "more\n")
    assert said(pieces, "thinking") == "    x\n\ny"
    assert said(pieces, "answer") == "    code\n\nmore\n"


def test_without_a_block_the_text_is_untouched():
    pieces, _ = read("\n\n  ", "x", "\n \n")
    assert said(pieces, "answer") == "\n\n  x\n \n"
    assert said(read("\n\n", " ")[0], "answer") == "\n\n "


def test_tags_as_text_are_text_where_the_tokenizer_has_tag_tokens():
    pieces, _ = read("The tag <th", "ink> opens, </think> closes.")
    assert said(pieces, "answer") == "The tag <think> opens, </think> closes."


@given(st.data())
@settings(max_examples=100)
def test_text_tags_are_found_however_the_text_is_cut(data):
    text = data.draw(st.sampled_from([
        "\n<think>\nwhy\n</think>\n\nso <b>",
        "<think>a<think>b</think>c</think>d<think>e",
        "no tags < here <thin",
        "why</thi</think>\n\n  so",
        "<think>\n\n</think>\n\nx",
        " \n <think",
        "</think>x",
    ]))  # fmt: skip
    starts = data.draw(st.booleans())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]
    whole, _ = read(text, think_ids=None, starts_thinking=starts)
    pieces, reader = read(*parts, think_ids=None, starts_thinking=starts)
    assert said(pieces, "thinking") == said(whole, "thinking")
    assert said(pieces, "answer") == said(whole, "answer")
    assert tokens(pieces) == reader.committed == len(parts)


def test_text_tags_split_over_chunks_as_expected():
    pieces, _ = read("<th", "ink>", "\nyes</", "thi", "nk>\n", " <", "thinks", "</thin", think_ids=None)
    assert said(pieces, "thinking") == "yes"
    assert said(pieces, "answer") == " <thinks</thin"


def test_the_splitter_alone_says_what_it_holds():
    splitter = ReplySplitter()
    assert splitter.push("a<thi") == [Fragment("answer", "a", [0])]
    assert splitter.held.text == "<thi"
    assert splitter.push("ng") == [Fragment("answer", "<thing", [0] * 6)]


def test_hidden_and_missing_tokens_have_no_text_but_count():
    pieces, reader = read("a", NO_TOKEN, HIDDEN, "b", NO_TOKEN)
    assert said(pieces, "answer") == "ab"
    assert tokens(pieces) == reader.committed == 5


def test_a_think_tag_ends_an_unfinished_character():
    pieces, _ = read(b"\xf0\x9f", END, "x", starts_thinking=True)
    assert said(pieces, "thinking") == "\ufffd"
    assert said(pieces, "answer") == "x"


# -------------------------------------------------------------------------------------------------------- stop strings


def slow_stop(text, stops):
    """The text before the stop string that is complete first, found character by character."""
    for end in range(1, len(text) + 1):
        starts = [end - len(s) for s in stops if text[:end].endswith(s)]
        if starts:
            return text[: min(starts)], True
    return text, False


@given(
    st.text("abc\n", max_size=30),
    st.lists(st.text("abc\n", min_size=1, max_size=5), min_size=1, max_size=4),
    st.lists(st.integers(0, 30), max_size=8),
)
@example("xabcd", ["abcd", "bc"], [])
@example("aabaab", ["aab", "ab"], [2])
@settings(max_examples=250)
def test_the_text_ends_before_the_stop_string_that_is_complete_first(text, stops, cuts):
    cuts = sorted(c for c in cuts if c <= len(text))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]
    pieces, reader = read(*parts, stops=stops)
    want, stopped = slow_stop(text, stops)
    assert said(pieces, "answer") == want
    assert reader.stopped == stopped
    assert tokens(pieces) == reader.committed
    if stopped:
        ends = [len("".join(parts[: n + 1])) for n in range(len(parts))]
        needed = next((n for n, e in enumerate([0, *ends]) if e >= len(want)), 0) if want else 0
        assert reader.committed >= needed
        assert reader.committed <= sum(e <= len(want) for e in ends) + 1
    else:
        assert reader.committed == len(parts)


def test_text_that_could_become_a_stop_string_is_held_back_and_no_more():
    words = Words()
    reader = ReplyReader(words.token_bytes, stops=["\nUser:"])
    seen = []
    for token in words.ids("Hello\n", "Us", "ual", "\n", "User", ":"):
        seen.append("".join(p.text for p in reader.feed(token)))
    assert seen == ["Hello", "", "\nUsual", "", "", ""]
    assert reader.stopped
    assert reader.committed == 3
    assert reader.finish() == []
    with pytest.raises(RuntimeError):
        reader.feed(0)


def test_a_token_that_holds_text_before_the_stop_string_belongs_to_the_reply():
    assert read("one", " two. STOP", stops=["STOP"])[1].committed == 2
    assert read("one", "STOP two", stops=["STOP"])[1].committed == 1
    assert read("STOP", stops=["STOP"])[1].committed == 0
    assert read("one", NO_TOKEN, "ST", "OP", stops=["STOP"])[1].committed == 2


def test_a_stop_string_across_the_bytes_of_a_character():
    pieces, reader = read("x", b"\xf0\x9f", b"\x98\x80", "y", stops=["😀y"])
    assert said(pieces, "answer") == "x"
    assert reader.stopped
    assert reader.committed == 1, "no half character stays at the end of the reply"
    assert read(b"x\xf0\x9f", b"\x98\x80y", stops=["😀y"])[1].committed == 1


def test_a_stop_string_counts_in_the_answer_only():
    pieces, reader = read("a STOP b", END, "\n\n", "c", " STOP", starts_thinking=True, stops=["STOP"])
    assert said(pieces, "thinking") == "a STOP b"
    assert said(pieces, "answer") == "c "
    assert reader.stopped
    assert tokens(pieces) == reader.committed == 5


def test_a_stop_string_may_appear_at_the_very_end_only():
    pieces, reader = read(b"ok\xf0", stops=["\ufffd"])
    assert said(pieces, "answer") == "ok"
    assert reader.stopped
    assert reader.committed == 1


def test_what_was_held_back_comes_out_when_the_reply_ends_otherwise():
    pieces, reader = read("a", "ST", stops=["STOP"])
    assert said(pieces, "answer") == "aST"
    assert not reader.stopped
    assert tokens(pieces) == 2


def test_an_empty_stop_string_is_refused_and_none_at_all_is_fine():
    with pytest.raises(RequestError, match="empty"):
        StopMatcher(["x", ""])
    assert StopMatcher().push(Fragment("answer", "abc", [1, 1, 1])).text == "abc"


@given(
    st.lists(
        st.sampled_from([THINK, END, NO_TOKEN, HIDDEN, "\n", " a", "STO", "P", b"\xe2\x82", b"\xac", "x\n\n"]),
        max_size=25,
    ),
    st.booleans(),
)
@settings(max_examples=150)
def test_over_any_reply_the_tokens_of_the_pieces_sum_to_the_committed_tokens(parts, starts):
    pieces, reader = read(*parts, starts_thinking=starts, stops=["STOP", "a\n\n", "€"])
    assert all(p.tokens >= 0 for p in pieces)
    assert tokens(pieces) == reader.committed <= reader.fed
    if not reader.stopped:
        assert reader.committed == len(parts)
