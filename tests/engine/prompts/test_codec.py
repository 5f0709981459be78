"""Ids and text: equal to the tokenizers library, and special tokens only where they are meant."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

TRICKY = ["<|im_end|>", "<|im_start|>", "<think>", "</think>", "<|im_", "end|>", "<", "|>", " hello", " the", "\n\n", "é", "e\u0301", "😀", "\u212a", "\ufdd0", " ", "A1"]  # fmt: skip
texts = st.lists(st.one_of(st.sampled_from(TRICKY), st.text(max_size=6)), max_size=12).map("".join)


def library(tokenizer):
    return tokenizer._backend


@given(texts)
@settings(max_examples=200, deadline=None)
def test_encoding_equals_the_librarys_and_decoding_brings_the_text_back(model, text):
    t = model()
    ids = t.encode(text)
    assert ids == library(t).encode(text, add_special_tokens=False).ids
    assert t.decode(ids) == library(t).decode(ids, skip_special_tokens=False)


@given(texts)
@settings(max_examples=200, deadline=None)
def test_plain_encoding_has_no_special_token_and_the_same_text(model, text):
    t = model()
    ids = t.encode_plain(text)
    assert t.added_ids.isdisjoint(ids)
    assert t.decode(ids) == library(t).normalizer.normalize_str(text)
    if not any(s in text for s in ("<|", "think>", "<tool")):
        assert ids == t.encode(text)


@given(st.lists(st.integers(-2, 400), max_size=30))
@settings(max_examples=200, deadline=None)
def test_decoding_any_ids_equals_the_librarys(model, ids):
    t = model()
    real = [i for i in ids if i >= 0]
    assert t.decode(ids) == library(t).decode(real, skip_special_tokens=False)
    no_control = [i for i in real if i not in t.special_ids]
    assert t.decode(ids, skip_special=True) == library(t).decode(no_control, skip_special_tokens=False)


def test_ids_without_a_token_have_no_text(model):
    t = model()
    assert t.vocab_size < t.model_vocab_size
    assert t.token_bytes(t.vocab_size) == t.token_bytes(t.model_vocab_size - 1) == t.token_bytes(-1) == b""
    assert t.token_bytes(1 << 40) == b""


def test_half_a_surrogate_pair_becomes_a_replacement_character(model):
    t = model()
    assert t.decode(t.encode("a\ud83dz")) == "a\ufffdz"
    assert t.decode(t.encode_plain("a\ud83dz")) == "a\ufffdz"


def test_the_empty_text_has_no_ids(model):
    t = model()
    assert t.encode("") == t.encode_plain("") == []
    assert t.decode([]) == ""


def test_added_tokens_that_take_white_space_do_so_as_in_the_library(tmp_path):
    import json

    from qwen_chat_mlx.engine.tokenizer import Tokenizer

    raw = json.loads(_written(tmp_path).read_text())
    raw["added_tokens"][1]["rstrip"] = raw["added_tokens"][2]["lstrip"] = True
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    t = Tokenizer.load(tmp_path, {}, {})
    for text in ("a <|im_start|> \n b", "a \n<|im_end|> b", "<|im_start|>  <|im_end|>", "<|im_start|>  "):
        assert t.encode(text) == library(t).encode(text, add_special_tokens=False).ids


def _written(folder):
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers

    backend = Backend(models.BPE({c: i for i, c in enumerate(pre_tokenizers.ByteLevel.alphabet())}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    backend.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"
