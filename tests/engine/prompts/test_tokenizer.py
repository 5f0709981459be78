"""From a model folder to a Tokenizer: what is read, and each broken file as one clear error."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from qwen_chat_mlx.engine.errors import CheckpointError, TemplateError
from qwen_chat_mlx.engine.tokenizer import Tokenizer
from qwen_chat_mlx.engine.types import Message

CONFIG = {"text_config": {"vocab_size": 320, "eos_token_id": 256}}


def load(folder, generation_config=None, config=None):
    return Tokenizer.load(folder, CONFIG if config is None else config, generation_config or {})


def test_sizes_ids_and_fingerprint(folder):
    path, backend = folder
    t = load(path)
    assert t.vocab_size == backend.get_vocab_size() < t.model_vocab_size == 320
    assert t.think_ids == (backend.token_to_id("<think>"), backend.token_to_id("</think>"))
    assert t.special_ids == {backend.token_to_id(s) for s in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")}
    assert t.id_of("<|im_end|>") in t.special_ids
    assert t.id_of("no such token") is None
    assert load(path).fingerprint == t.fingerprint
    (path / "tokenizer.json").write_text((path / "tokenizer.json").read_text() + "\n")
    assert load(path).fingerprint != t.fingerprint


def test_stops_are_those_of_generation_config_and_the_tokenizer_not_the_text_configs(folder):
    path, backend = folder
    end = backend.token_to_id("<|im_end|>")
    assert load(path).stop_ids == {end}
    assert load(path, {"eos_token_id": 3}).stop_ids == {3, end}
    assert load(path, {"eos_token_id": [3, 4]}).stop_ids == {3, 4, end}
    assert load(path, {"eos_token_id": 319}).stop_ids == {319, end}
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|endoftext|>"}}))
    assert load(path).stop_ids == {backend.token_to_id("<|endoftext|>")}
    (path / "tokenizer_config.json").unlink()
    assert load(path).stop_ids == frozenset()


@pytest.mark.parametrize("eos", [320, -1, True, "x", [3, None]])
def test_a_stop_id_that_is_no_id_is_refused(folder, eos):
    with pytest.raises(CheckpointError, match=r"generation_config.json: eos_token_id"):
        load(folder[0], {"eos_token_id": eos})


def test_a_flat_config_and_one_without_a_vocabulary_work(folder):
    assert load(folder[0], config={"vocab_size": 300}).model_vocab_size == 300
    assert load(folder[0], config={}).model_vocab_size == folder[1].get_vocab_size()


def test_a_tokenizer_of_another_model_is_refused(folder):
    with pytest.raises(CheckpointError, match=r"token ids up to 280, but the model has only 200"):
        load(folder[0], config={"vocab_size": 200})


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"model": 1}', b"\xff\xfe"])
def test_a_missing_or_broken_tokenizer_is_one_clear_error(folder, content):
    file = folder[0] / "tokenizer.json"
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(CheckpointError) as e:
        load(folder[0])
    assert e.value.path == str(file)
    assert str(file) in e.value.message
    assert "\n" not in e.value.message
    assert "codec" not in e.value.message
    assert e.value.hint


def test_another_kind_of_tokenizer_is_refused(folder):
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models

    backend = Backend(models.BPE({"a": 0}, []))
    backend.save(str(folder[0] / "tokenizer.json"))
    with pytest.raises(CheckpointError, match="not a byte-level BPE tokenizer"):
        load(folder[0])
    backend.decoder = decoders.Metaspace()
    backend.save(str(folder[0] / "tokenizer.json"))
    with pytest.raises(CheckpointError, match="its decoder is Metaspace"):
        load(folder[0])


@pytest.mark.parametrize("content", ["{", "[]", '"x"'])
def test_a_broken_tokenizer_config_is_one_clear_error(folder, content):
    file = folder[0] / "tokenizer_config.json"
    file.write_text(content)
    with pytest.raises(CheckpointError) as e:
        load(folder[0])
    assert e.value.path == str(file)


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("{{ messages[0].content }}1", "x1"),
        ([{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ messages[0].content }}2"}], "x2"),
        ([{"name": "other", "template": "{{ messages[0].content }}3"}], "x3"),
    ],
)
def test_a_template_may_stand_in_the_tokenizer_config(folder, setting, text):
    path, _ = folder
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": setting}))
    assert load(path).render([Message("user", "x")]).text.startswith("<|im_start|>"), "the file goes before"
    (path / "chat_template.jinja").unlink()
    assert load(path).render([Message("user", "x")]).text == text


def test_no_template_is_an_error_only_when_one_is_needed(folder):
    path, _ = folder
    (path / "chat_template.jinja").unlink()
    t = load(path)
    assert not t.has_template
    assert not t.supports_thinking
    with pytest.raises(TemplateError, match="no chat template"):
        t.render([Message("user", "x")])
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": 3}))
    with pytest.raises(CheckpointError, match="chat_template"):
        load(path)


def test_an_unreadable_template_is_a_checkpoint_error_and_a_wrong_one_a_template_error(folder):
    path, _ = folder
    (path / "chat_template.jinja").write_bytes(b"\xff\xff")
    with pytest.raises(CheckpointError, match=r"chat_template.jinja is not UTF-8 text"):
        load(path)
    (path / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(TemplateError, match="syntax error in line 1"):
        load(path).render([Message("user", "x")])


def test_importing_costs_neither_the_libraries_nor_mlx():
    code = (
        "import sys, qwen_chat_mlx.engine.tokenizer, qwen_chat_mlx.engine.reply;"
        "print([m for m in ('tokenizers', 'jinja2', 'mlx', 'numpy', 'transformers') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
