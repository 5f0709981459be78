"""A small byte-level tokenizer in the published layout, and chat templates of several kinds, written for these tests."""

from __future__ import annotations

import json

import pytest

from qwen_chat_mlx.engine.tokenizer import Tokenizer

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ADDED = ["<think>", "</think>", "<tool_call>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ t", "Ġt h", "Ġth e", "i n", "Ċ Ċ", "a s", "as s", "< |", "| >", "i m", "e n", "en d", "t h", "th in", "k >"]  # fmt: skip
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Thinking is switched on by enable_thinking; history never shows it.
SWITCH = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)

# As in the published model: every reply keeps its block, an empty one where it has none.
KEEPS = """\
{%- if enable_thinking is undefined or enable_thinking is true %}
    {%- set effort = reasoning_effort|default('xhigh') %}
    {%- if effort not in ['xhigh', 'medium', 'low'] %}
        {{- raise_exception('Unexpected reasoning effort ' ~ effort) }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- if ns.last < 0 %}{{ raise_exception('No user query found in messages.') }}{% endif %}
{%- for m in messages %}
    {%- if m.role == 'system' and not loop.first %}
        {{- raise_exception('System message must be at the beginning.') }}
    {%- endif %}
    {%- set content = m.content|trim %}
    {%- if m.role == 'assistant' %}
        {%- set reasoning = m.reasoning_content|trim if m.reasoning_content is string else '' %}
        {%- if preserve_thinking is undefined or preserve_thinking or loop.index0 > ns.last %}
            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning + '\\n</think>\\n\\n' + content + '<|im_end|>\\n' }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + content + '<|im_end|>\\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- else %}
        {{- '<think>\\n' }}
    {%- endif %}
{%- endif %}
"""

# The usual kind: only replies after the last user turn keep their block.
DROPS = KEEPS.replace("preserve_thinking is undefined or preserve_thinking or ", "")

TEMPLATES = {"plain": PLAIN, "switch": SWITCH, "keeps": KEEPS, "drops": DROPS}


def write_tokenizer(folder, normalizer="NFC"):
    from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for merge in MERGES:
        vocab[merge.replace(" ", "")] = len(vocab)
    backend = Backend(models.BPE(vocab, [tuple(m.split(" ")) for m in MERGES]))
    if normalizer:
        backend.normalizer = getattr(normalizers, normalizer)()
    split = pre_tokenizers.Split(Regex(WORDS), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIAL])
    backend.add_tokens([AddedToken(t, normalized=False, special=False) for t in ADDED])
    backend.save(str(folder / "tokenizer.json"))
    return backend


def write_folder(folder, template=PLAIN, **settings):
    backend = write_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", **settings}))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return backend


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """`model(template)`: a Tokenizer with that template, a name in TEMPLATES or a source. Made once each."""
    made = {}

    def make(template="plain"):
        source = TEMPLATES.get(template, template)
        if source not in made:
            folder = tmp_path_factory.mktemp("model")
            write_folder(folder, source)
            made[source] = Tokenizer.load(folder, {"text_config": {"vocab_size": 320}}, {"eos_token_id": None})
        return made[source]

    return make


@pytest.fixture
def folder(tmp_path):
    """A complete folder, and the same tokenizer as the library itself gives it."""
    return tmp_path, write_folder(tmp_path)
