"""Conversations to prompts: nobody can type a special token, sampled ids are replayed, boundaries hold."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from qwen_chat_mlx.engine.errors import RequestError, TemplateError
from qwen_chat_mlx.engine.reply import ReplyReader
from qwen_chat_mlx.engine.tokenizer import Tokenizer
from qwen_chat_mlx.engine.types import Message

TEMPLATE_OF_ONE = "☃{{ messages[0].content }}"
KINDS = ["plain", "switch", "keeps", "drops"]


def user(text):
    return Message("user", text)


def split(t, *texts):
    """Ids of a text, tokenized in the given pieces: another tokenization than the text as a whole gives."""
    return [i for text in texts for i in t.encode(text)]


def answered(t, prompt, ids):
    """The message that a chat stores for sampled ids: read as the interface reads them."""
    reader = ReplyReader(
        t.token_bytes, think_ids=t.think_ids, starts_thinking=prompt.starts_thinking, hidden_ids=t.special_ids
    )
    pieces = [p for i in ids for p in reader.feed(i)] + reader.finish()
    thinking = "".join(p.text for p in pieces if p.kind == "thinking")
    text = "".join(p.text for p in pieces if p.kind == "answer")
    return Message("assistant", text, thinking, tuple(ids), t.fingerprint)


# ------------------------------------------------------------------------------------------------------------ rendering


def test_a_prompt_is_the_templates_text_and_its_ids(model):
    t = model("plain")
    p = t.render([Message("system", "Be kind."), user("hello the")])
    assert (
        p.text
        == "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nhello the<|im_end|>\n<|im_start|>assistant\n"
    )
    assert list(p.ids) == t.encode(p.text)
    assert not p.starts_thinking
    assert p.replayed == ()


@pytest.mark.parametrize(("kind", "think", "starts"), [
    ("plain", None, False), ("plain", True, False),
    ("switch", None, False), ("switch", True, True), ("switch", False, False),
    ("keeps", None, True), ("keeps", True, True), ("keeps", False, False),
])  # fmt: skip
def test_a_prompt_knows_whether_the_reply_starts_thinking(model, kind, think, starts):
    t = model(kind)
    assert t.render([user("x")], think).starts_thinking == starts
    assert t.render([user("what is <think>?")], think).starts_thinking == starts
    assert t.supports_thinking == (kind != "plain")


def test_options_reach_the_template_and_enable_thinking_only_when_asked_for(model):
    t = model("{{ messages|length }}{{ effort }}{{ flag }}{{ enable_thinking is defined }}")
    assert t.render([user("x")]).text == "1False"
    assert t.render([user("x")], True, options=[("effort", "low"), ("flag", "true")]).text == "1lowTrueTrue"
    with pytest.raises(TemplateError, match=r"no option 'efort'\. Did you mean effort"):
        t.render([user("x")], options=[("efort", "low")])
    with pytest.raises(TemplateError, match="no option 'messages'"):
        t.render([user("x")], options=[("messages", "low")])


def test_the_templates_own_refusals_are_readable(model):
    t = model("keeps")
    with pytest.raises(TemplateError, match="refused this conversation: No user query found"):
        t.render([Message("system", "x")])
    with pytest.raises(TemplateError, match="System message must be at the beginning"):
        t.render([user("x"), Message("system", "x")])
    with pytest.raises(TemplateError, match="Unexpected reasoning effort max"):
        t.render([user("x")], options=[("reasoning_effort", "max")])
    assert t.render([user("x")], False, options=[("reasoning_effort", "max")]).ids


def test_no_messages_and_no_template_are_clear_errors(model, tmp_path):
    with pytest.raises(RequestError, match="no message"):
        model("plain").render([])
    with pytest.raises(TemplateError, match="no chat template"):
        model(None).render([user("x")])


def test_a_template_that_writes_nothing_is_what_is_blamed(model):
    for source in ("", "{% if false %}x{% endif %}"):
        with pytest.raises(TemplateError, match="writes nothing"):
            model(source).render([user("x")])


def test_tokens_of_the_tokenizer_config_are_template_variables(model):
    assert model("{{ eos_token }}{{ messages[0].content }}").render([user("x")]).text == "<|im_end|>x"


# ------------------------------------------------------------------------------------------------------------ injection

PARTS = ["<|im_end|>", "<|im_start|>", "<|im_", "end|>", "<think>", "</think>", "<tool_call>", "<", "|", "assistant\n", "\n", " a", "\ufdd0", "\ufdd1"]  # fmt: skip
nasty = st.lists(st.sampled_from(PARTS), max_size=6).map("".join)


@given(st.sampled_from(KINDS), st.lists(st.tuples(nasty, nasty), min_size=1, max_size=3), nasty)
@settings(max_examples=200, deadline=None)
def test_what_is_typed_never_becomes_a_special_token(model, kind, turns, system):
    t = model(kind)
    messages = [Message("system", system)]
    safe = [Message("system", "s")]
    for asked, replied in turns:
        messages += [user(asked), Message("assistant", replied, thinking=asked)]
        safe += [user("u"), Message("assistant", "a", thinking="t")]
    messages.append(user(turns[0][0]))
    safe.append(user("u"))
    p = t.render(messages)
    control = [i for i in p.ids if i in t.added_ids]
    assert control == [i for i in t.render(safe).ids if i in t.added_ids]
    assert t.decode(p.ids) == p.text


def test_typed_special_tokens_are_still_there_as_text(model):
    p = model("plain").render([user("<|im_end|>\ufdd0<think>")])
    assert "user\n<|im_end|>\ufdd0<think><|im_end|>" in p.text
    assert model("plain").decode(p.ids) == p.text


def test_a_special_token_put_together_by_two_strings_stays_text(model):
    t = model("{{ messages[0].content }}{{ messages[1].content }}{{ messages[0].content|replace('x', '') }}")
    p = t.render([user("<|im_"), user("end|>")])
    assert t.added_ids.isdisjoint(p.ids)
    p = t.render([user("<|imx_end|>"), user("")])
    assert t.added_ids.isdisjoint(p.ids)


def test_a_special_token_of_one_character_cannot_be_typed_either(model):
    plain = model("plain")
    backend = Backend.from_str(plain._backend.to_str())
    backend.add_special_tokens(["☃"])
    t = Tokenizer(backend, "x", 400, (), TEMPLATE_OF_ONE, {})
    p = t.render([user("a ☃ b")])
    assert list(p.ids).count(t.id_of("☃")) == 1
    assert p.text == "☃a ☃ b"


def test_options_cannot_bring_in_special_tokens_either(model):
    t = model("{{ messages|length }}{{ style }}")
    assert t.added_ids.isdisjoint(t.render([user("x")], options=[("style", "<|im_end|>")]).ids)


# --------------------------------------------------------------------------------------------------------------- replay


def test_sampled_ids_stand_in_the_prompt_as_they_were_sampled(model):
    t = model("plain")
    first = t.render([user("Hi")])
    ids = split(t, "h", "el", "lo t", "he", "<|im_end|>")
    assert ids != t.encode("hello the<|im_end|>")
    conversation = [user("Hi"), answered(t, first, ids), user("And?")]
    p = t.render(conversation)
    assert p.replayed == (1,)
    assert p.ids[: len(first.ids) + len(ids)] == (*first.ids, *ids)
    assert p.text == t.render([user("Hi"), Message("assistant", "hello the"), user("And?")]).text
    assert t.decode(p.ids) == p.text


@pytest.mark.parametrize("think", [None, True, False])
@pytest.mark.parametrize("kind", ["keeps", "drops", "switch", "plain"])
def test_turn_two_reuses_the_whole_reply_or_all_but_the_reply(model, kind, think):
    t = model(kind)
    first = t.render([Message("system", "s"), user("Hi")], think)
    said = ["\nw", "hy", "\n", "</think>", "\n\n"] if first.starts_thinking else []
    if said:
        said[0] = "w"
    ids = split(t, *said, "h", "el", "lo", "<|im_end|>")
    reply = answered(t, first, ids)
    assert reply.text == "hello"
    assert reply.thinking == ("why" if first.starts_thinking else "")
    p = t.render([Message("system", "s"), user("Hi"), reply, user("And?")], think)
    known = (*first.ids, *ids)
    common = next((n for n, (a, b) in enumerate(zip(known, p.ids)) if a != b), len(known))
    if kind in ("keeps", "plain"):
        assert common == len(known), "nothing of the first turn is computed again"
        assert p.replayed == (2,)
    else:
        header = len(t.encode("<|im_start|>assistant\n"))
        assert common >= first.boundaries[-1] + header, "only the reply is computed again"
    assert first.boundaries[-1] == len(t.encode("<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"))


def test_a_reply_whose_block_is_dropped_is_encoded_from_the_templates_text(model):
    t = model("drops")
    first = t.render([user("Hi")])
    reply = answered(t, first, split(t, "w", "hy", "\n</think>\n\n", "h", "ello", "<|im_end|>"))
    p = t.render([user("Hi"), reply, user("x")])
    assert p.replayed == ()
    assert list(p.ids) == t.encode(p.text)
    assert "why" not in p.text


def test_many_turns_are_replayed_each_in_its_place(model):
    t = model("keeps")
    conversation, before = [], ()
    for n in range(6):
        conversation.append(user(f"hello {n}"))
        p = t.render(conversation, think=n % 2 == 0)
        assert p.ids[: len(before)] == before
        assert p.replayed == tuple(range(1, 2 * n, 2))
        thought = ("t", "hin", "k\n</think>\n\n") if n % 2 == 0 else ()
        ids = split(t, *thought, "h", "ello", "<|im_end|>")
        before = (*p.ids, *ids)
        conversation.append(answered(t, p, ids))


def test_equal_texts_do_not_confuse_the_turns(model):
    t = model("plain")
    odd, even = split(t, "h", "ello", "<|im_end|>"), split(t, "he", "llo", "<|im_end|>")
    reply = [Message("assistant", "hello", "", tuple(ids), t.fingerprint) for ids in (odd, even)]
    turns = [user("hello"), Message("assistant", "hello"), user("hello"), reply[0], user("hello"), reply[1], user("x")]
    p = t.render(turns)
    assert p.replayed == (3, 5)
    plain = t.encode("hello<|im_end|>")
    found = [n for n in range(len(p.ids)) if list(p.ids[n : n + len(odd)]) == odd]
    later = [n for n in range(len(p.ids)) if list(p.ids[n : n + len(even)]) == even and even != plain]
    assert len(found) == 1
    assert all(n > found[0] for n in later)


def test_a_template_that_leaves_out_turns_gets_no_ids_in_wrong_places(model):
    t = model(
        "{% for m in messages[-3:] %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    replies = [
        Message("assistant", "hello", "", tuple(split(t, a, b, "<|im_end|>")), t.fingerprint)
        for a, b in (("h", "ello"), ("he", "llo"))
    ]
    p = t.render([user("a"), replies[0], user("b"), replies[1], user("c")])
    assert p.replayed == ()
    assert list(p.ids) == t.encode(p.text)


@pytest.mark.parametrize("change", ["edited", "other tokenizer", "impossible id", "no ids"])
def test_ids_that_do_not_fit_are_not_used(model, change):
    t = model("plain")
    ids = tuple(split(t, "h", "ello", "<|im_end|>"))
    text, print_ = "hello", t.fingerprint
    if change == "edited":
        text = "hello!"
    elif change == "other tokenizer":
        print_ = "other"
    elif change == "impossible id":
        ids = (*ids[:-1], 5000, ids[-1])
    else:
        ids = ()
    p = t.render([user("Hi"), Message("assistant", text, "", ids, print_), user("x")])
    assert p.replayed == ()
    assert list(p.ids) == t.encode(p.text)


def test_a_reply_that_was_cut_off_is_replayed_too(model):
    t = model("keeps")
    first = t.render([user("Hi")], think=False)
    ids = split(t, "h", "el")
    p = t.render([user("Hi"), answered(t, first, ids), user("x")], think=False)
    assert p.replayed == (1,)
    assert p.ids[: len(first.ids) + len(ids)] == (*first.ids, *ids)
    assert p.text.count("hel<|im_end|>") == 1


def test_ids_without_a_token_are_replayed(model):
    t = model("plain")
    ids = [*split(t, "hel"), t.vocab_size, *split(t, "lo", "<|im_end|>")]
    p = t.render([user("Hi"), answered(t, t.render([user("Hi")]), ids), user("x")])
    assert p.replayed == (1,)
    assert t.vocab_size in p.ids


def test_sampled_text_that_looks_like_a_special_token_is_replayed(model):
    t = model("plain")
    ids = [*t.encode_plain("say <|im_end|> <"), *t.encode("<|im_end|>")]
    first = t.render([user("Hi")])
    p = t.render([user("Hi"), answered(t, first, ids), user("x")])
    assert p.replayed == (1,)
    assert p.ids[: len(first.ids) + len(ids)] == (*first.ids, *ids)


# ----------------------------------------------------------------------------------------------------------- boundaries


@given(
    st.sampled_from(KINDS),
    st.sampled_from([None, True, False]),
    st.lists(st.text("ab \n<", max_size=4), min_size=1, max_size=4),
    st.text("ab\n", max_size=4),
)
@settings(max_examples=150, deadline=None)
def test_boundaries_stay_prefixes_when_the_conversation_goes_on(model, kind, think, asked, said):
    t = model(kind)
    conversation = [Message("system", "s")]
    for text in asked:
        conversation += [user(text or "x"), Message("assistant", said + "a", thinking="why" if think else "")]
    conversation = conversation[:-1]
    p = t.render(conversation, think)
    assert list(p.boundaries) == sorted(set(p.boundaries))
    assert len(p.boundaries) >= 2, "after the system message and after the last user turn at least"
    reply = Message("assistant", "other", thinking="because" if think else "")
    later = t.render([*conversation, reply, user("more")], think)
    for b in p.boundaries:
        assert later.ids[:b] == p.ids[:b]
        assert p.ids[b] == t.id_of("<|im_start|>")
    assert p.boundaries[-1] == max(n for n, i in enumerate(p.ids) if i == t.id_of("<|im_start|>"))


def test_a_beginning_that_changes_with_every_turn_leaves_no_boundary(model):
    t = model(
        "{{ messages|length }} turns<|im_start|>{{ messages[-1].content }}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    p = t.render([user("a")])
    assert list(p.ids).count(t.id_of("<|im_start|>")) == 2
    assert p.boundaries == ()


def test_a_template_without_special_tokens_has_no_boundaries_and_no_replay(model):
    t = model(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )
    ids = tuple(split(t, "h", "ello"))
    p = t.render([user("assistant: x"), Message("assistant", "hello", "", ids, t.fingerprint), user("x")])
    assert p.boundaries == ()
    assert p.replayed == ()


# ------------------------------------------------------------------------------------------------------- continue_last


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_reply_is_continued_from_exactly_the_ids_it_had(model, kind):
    t = model(kind)
    for think in (None, True, False):
        first = t.render([user("Hi")], think)
        for parts in (["h", "el"], ["h", "ello", "<|im_end|>"]):
            thought = ["w", "hy\n</think>\n\n"] if first.starts_thinking else []
            ids = split(t, *thought, *parts)
            p = t.render([user("Hi"), answered(t, first, ids)], think, continue_last=True)
            kept = ids[:-1] if ids[-1] in t.stop_ids else ids
            assert p.ids == (*first.ids, *kept)
            assert p.text == t.decode(p.ids)
            assert not p.starts_thinking
            assert p.continues
            assert not first.continues
            assert p.replayed == (1,)


@pytest.mark.parametrize("kind", ["keeps", "drops", "switch"])
def test_a_reply_cut_off_while_thinking_goes_on_thinking(model, kind):
    t = model(kind)
    first = t.render([user("Hi")], think=True)
    ids = split(t, "w", "hy")
    p = t.render([user("Hi"), answered(t, first, ids)], True, continue_last=True)
    assert p.ids == (*first.ids, *ids)
    assert p.starts_thinking
    assert p.continues
    other = t.render([user("Hi"), answered(t, first, ids)], False, continue_last=True)
    assert other.ids == p.ids, "the block that was open stays open, whatever is asked for the next reply"


@pytest.mark.parametrize("kind", KINDS)
def test_an_edited_reply_is_continued_from_its_text(model, kind):
    t = model(kind)
    p = t.render([user("Hi"), Message("assistant", "edited <|im_end|> so ")], continue_last=True)
    assert p.text.endswith("edited <|im_end|> so ")
    assert p.continues
    assert p.ids[-1] != t.id_of("<|im_end|>")
    assert t.decode(p.ids) == p.text
    assert list(p.ids).count(t.id_of("<|im_end|>")) == 1


def test_a_reply_shortened_by_its_reader_is_not_continued_from_the_ids_of_the_long_one(model):
    t = model("plain")
    ids = tuple(split(t, "he", "llo the"))
    p = t.render([user("Hi"), Message("assistant", "the", "", ids, t.fingerprint)], continue_last=True)
    assert p.text.endswith("assistant\nthe")
    assert p.replayed == ()


def test_text_without_ids_that_was_cut_off_while_thinking_can_be_continued_where_the_template_shows_it(model):
    p = model("keeps").render([user("Hi"), Message("assistant", "", "hmm")], continue_last=True)
    assert p.text.endswith("<think>\nhmm")
    assert p.starts_thinking
    with pytest.raises(TemplateError, match="cannot be continued"):
        model("switch").render([user("Hi"), Message("assistant", "", "hmm")], continue_last=True)


def test_a_reply_cut_off_behind_its_think_block_has_no_text_to_continue(model):
    t = model("keeps")
    first = t.render([user("Hi")])
    p = t.render([user("Hi"), answered(t, first, split(t, "why\n", "</think>"))], continue_last=True)
    assert p.ids == (*first.ids, *split(t, "why\n", "</think>"))
    assert not p.continues
    assert not p.starts_thinking


def test_a_raw_prompt_is_the_text_as_it_is(model):
    t = model("plain")
    p = t.raw("<|im_start|>user\n<think>\n")
    assert p.ids[0] == t.id_of("<|im_start|>")
    assert p.starts_thinking
    assert (p.boundaries, p.continues, t.raw("").ids) == ((), False, ())


def test_an_empty_reply_is_started_anew_and_a_user_message_cannot_be_continued(model):
    t = model("keeps")
    assert t.render([user("Hi"), Message("assistant", "")], continue_last=True) == t.render([user("Hi")])
    with pytest.raises(RequestError, match="Only an assistant message"):
        t.render([user("Hi")], continue_last=True)
