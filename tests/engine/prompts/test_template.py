"""The sandbox around a chat template: what it gives, and what it stops."""

from __future__ import annotations

import json
import time

import pytest

from qwen_chat_mlx.engine.errors import TemplateError
from qwen_chat_mlx.engine.template import ChatTemplate


def render(source, size=100, **variables):
    return ChatTemplate(source).render(variables, size)


def test_helpers_of_published_templates_work():
    assert render("{{ {'a': '<b>é'}|tojson }}") == '{"a": "<b>é"}'
    assert json.loads(render("{{ x|tojson(indent=2) }}", x={"a": [1]})) == {"a": [1]}
    assert render("{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}") == "13"
    assert render("a\n{% if true %}\n  b\n{% endif %}\nc") == "a\n  b\nc"
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10
    assert render("{% generation %}x{% endgeneration %}") == "x"
    assert (
        render(
            "{% for x in xs %}{{ loop.index ~ '/' ~ loop.length }}{% if loop.last %}!{% endif %}{% endfor %}", xs=[7, 7]
        )
        == "1/22/2!"
    )
    assert render("{% for x in none_there %}{{ x }}{% else %}empty{% endfor %}") == "empty"
    assert (
        render(
            "{{ xs|map(attribute='a')|join(',') }}{{ 'a' * 3 }}{{ 7 % 4 }}{{ '%s!' % 'x' }}{{ 1 + 2 }}", xs=[{"a": "q"}]
        )
        == "qaaa3x!3"
    )
    assert (
        render("{% set ns = namespace(n=0) %}{% for x in [1, 2] %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}")
        == "3"
    )
    assert render("{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}") == "3210"


def test_variables_lists_what_can_be_passed():
    t = ChatTemplate("{% set a = 1 %}{{ messages }}{{ enable_thinking }}{{ a }}{{ raise_exception }}")
    assert t.variables == {"messages", "enable_thinking"}


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("{{ raise_exception('No tools. ') }}", "refused this conversation: No tools."),
        ("{{ raise_exception('a\n\n\x1b[31mb') }}", "refused this conversation: a \ufffd[31mb."),
        ("{{ raise_exception('x' * 5000) }}", "x…."),
        ("x\n{% if a %}", "syntax error in line 2"),
        ("x\n\n{{ a.b.c }}", "needs something that is not there in line 3: 'a' is undefined."),
        ("{{ ''.__class__.__mro__ }}", "tried something forbidden in line 1"),
        ("{{ [].append(1) }}", "tried something forbidden"),
        ("{{ 1 // 0 }}", "failed in line 1: ZeroDivisionError"),
        ("{{ 'a' + 1 }}", "failed in line 1: TypeError"),
        ("{{ no_such_function() }}", "'no_such_function' is undefined"),
        ("{% include 'x' %}", "failed"),
    ],
)
def test_what_a_template_does_wrong_is_one_sentence(source, sentence):
    with pytest.raises(TemplateError) as e:
        render(source)
    assert sentence in e.value.message
    assert "\n" not in e.value.message
    assert not e.value.message.endswith("..")


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
        "{% for i in range(10000000000) %}{% endfor %}",
        "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{{ 'a' * 100000000000 }}",
        "{{ 99999999 * 'a' }}",
        "{{ 9 ** 999999999 }}",
        "{{ 'a'.center(10000000000) }}",
        "{{ 'a'|center(10000000000) }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ '%*d' % (10000000000, 1) }}",
        "{{ '%10000000000d'|format(1) }}",
        "{{ '{:10000000000d}'.format(1) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    ],
)
def test_an_endless_or_absurdly_large_render_is_stopped(source):
    start = time.process_time()
    with pytest.raises(TemplateError, match=r"was stopped|Range too big"):
        render(source)
    assert time.process_time() - start < 10


def test_a_long_conversation_is_not_stopped():
    source = "{% for m in messages %}{% for c in messages[:20] %}{% endfor %}{{ m.content + '\n' }}{% endfor %}"
    messages = [{"role": "user", "content": "word " * 400}] * 1000
    size = sum(len(m["content"]) for m in messages)
    assert len(render(source, size, messages=messages)) > 2_000_000


def test_a_template_can_be_used_again_after_it_was_stopped():
    t = ChatTemplate("{% for i in range(n) %}{% for j in range(n) %}{% endfor %}{% endfor %}ok")
    with pytest.raises(TemplateError):
        t.render({"n": 9999}, 10)
    assert t.render({"n": 3}, 10) == "ok"
