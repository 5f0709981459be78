"""The whole program on a terminal: what the screen says is what the engine did, as its trace has it."""

from __future__ import annotations

import json
import re

import pytest

from qwen_chat_mlx.engine.trace import read_trace

F3 = b"\x1bOR"
GREEDY = ("--temperature", "0")
pytestmark = pytest.mark.slow


def replies(path):
    """The steps of each reply in a trace; a prompt between two of them moves the place where the next one starts."""
    out, end = [], None
    for step in read_trace(path).steps:
        if step.at != end:
            out.append([])
        out[-1].append(step)
        end = step.at + step.tokens
    return out


def starts(reply):
    """(tokens of the reply before it, step) of each step."""
    n, out = 0, []
    for step in reply:
        out.append((n, step))
        n += step.tokens
    return out


def percent(a, b):
    return f"{100 * a / b:.0f}%"


def test_the_numbers_on_the_screen_are_those_of_the_trace(chat, tmp_path):
    c = chat("Tell me something", max_tokens=60)
    c.see(r"· 60 tok · [\d.,]+ tok/s")
    c.see("ended at the token limit")
    c.t.type("And then?\r")
    c.see(r"· 60 tok[^\n]*\n(.|\n)*And then\?(.|\n)*· 60 tok · [\d.,]+ tok/s")
    c.watch(1.0)
    shown = re.sub(r" +", " ", c.text)
    c.quit()
    first, second = replies(tmp_path / "trace")
    assert [sum(s.tokens for s in r) for r in (first, second)] == [60, 60]
    rounds = [s for s in first + second if s.drafted]
    drafted, accepted = sum(s.drafted for s in rounds), sum(s.accepted for s in rounds)
    assert f"accept {percent(accepted, drafted)}" in shown
    assert f"{sum(s.tokens for s in rounds) / len(rounds):.1f} tok/round" in shown
    for i in range(3):
        made = [s for s in rounds if s.drafted > i]
        assert re.search(rf"{i + 1} [█▏▎▍▌▋▊▉]* ?{percent(sum(s.accepted > i for s in made), len(made))}", shown), shown
    zero = sum(not s.accepted for s in rounds)
    assert f"zero {percent(zero, len(rounds))} of rounds" in shown
    # Of the cache a trace holds what was asked for: what the screen says of hits and of misses must add up to it.
    routes = read_trace(tmp_path / "trace").routes
    asked = sum(len({e for row in r.rows for e in row}) for r in routes if r.pool == "trunk")
    hit = float(re.search(r"hit ([\d.]+)%", shown)[1]) / 100
    missed = float(re.search(r"miss ([\d.]+)/round", shown)[1])
    steps = len(first) + len(second) - 2  # the first token of each comes out of the prompt
    assert abs(missed * steps - (1 - hit) * asked) <= 0.5 * steps + 0.0005 * asked


def test_ctrl_t_takes_effect_from_exactly_the_token_that_the_status_line_names(chat, tmp_path):
    c = chat("Tell me something")
    c.see(r"answering [\d:]+ · [1-9]\d+ tok")
    c.t.type(b"\x14")
    off = int(c.see(r"MTP off from token ([\d,]+)")[1].replace(",", ""))
    c.watch(1.0)
    c.t.type(b"\x14")
    on = int(c.see(r"MTP fixed from token ([\d,]+)")[1].replace(",", ""))
    c.watch(1.0)
    c.t.type(b"\x1b")
    c.see("■ stopped")
    c.see("ready")
    assert "from token" not in c.text
    c.quit()
    (reply,) = replies(tmp_path / "trace")
    steps = starts(reply)[1:]  # the first token comes out of the prompt
    assert {off, on} <= {n for n, _ in steps}
    before = [s.drafted for n, s in steps if n < off]
    between = [s.drafted for n, s in steps if off <= n < on]
    after = [s.drafted for n, s in steps if n >= on]
    assert min(map(len, (before, between, after))) > 0
    assert min(before) > 0
    assert max(between) == 0
    assert min(after) > 0


def test_after_esc_no_token_follows_and_the_next_prompt_is_answered(chat, tmp_path):
    c = chat("Tell me something")
    c.see(r"answering [\d:]+ · [1-9]\d+ tok")
    c.t.type(b"\x1b")
    c.see("■ stopped")
    c.see("ready")
    tokens = int(c.see(r"qwen · ([\d,]+) tok")[1].replace(",", ""))
    before = c.rows
    c.watch(1.5)
    assert [r for r in c.rows if "│" not in r] == [r for r in before if "│" not in r]
    c.t.type("And then?\r")
    c.see(r"And then\?(.|\n)*qwen · [\d,]+ tok")
    c.quit()
    first, second = replies(tmp_path / "trace")
    assert sum(s.tokens for s in first) == tokens
    assert sum(s.tokens for s in second) > 0


def test_a_prompt_typed_while_the_model_loads_is_answered(chat, tmp_path):
    c = chat(max_tokens=5)
    c.see("❯")
    c.t.type("Hello?\r")
    c.see(r"▏ Hello\?")
    c.see(r"· 5 tok · ")
    c.quit()
    assert sum(s.tokens for s in replies(tmp_path / "trace")[0]) == 5


def test_the_terminal_may_change_its_size_while_a_reply_streams(chat, tmp_path):
    c = chat("Tell me something")
    c.see(r"answering [\d:]+ · [1-9]\d+ tok")
    for size, wanted in (
        ((80, 24), "esc stop"),
        ((40, 10), "esc stop"),
        ((60, 20), r"cache \d"),
        ((120, 36), "SSD READS"),
    ):
        c.resize(*size)
        c.see(wanted)
        at = int(c.see(r"(\d+) tok\b")[1]) if size[0] > 60 else 0
        c.watch(0.3)
        if at:
            c.see(rf"(?!{at} tok)\b\d+ tok\b")
        assert max(map(len, c.rows)) <= size[0]
    c.t.type(b"\x1b")
    c.see("■ stopped")
    c.quit()
    assert b"Traceback" not in c.t.got


def ids(home):
    """Sampled ids of every reply of the one conversation that is kept there."""
    (path,) = (home / "data" / "conversations").glob("*.jsonl") if (home / "data").is_dir() else home.rglob("*.jsonl")
    return [r["token_ids"] for r in map(json.loads, path.read_text().splitlines()) if "token_ids" in r]


def reused(c):
    """Percent of the last prompt that was kept from before, from the page of all panels."""
    c.t.type(F3)
    share = int(c.see(r"reused (\d+)% of the last prompt")[1])
    c.t.type(b"\x1b")
    c.see("ready")
    return share


def test_a_resumed_conversation_goes_on_as_if_it_had_never_been_left(chat, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    prompts = ["Tell me something", "And then?", "Why?"]

    def talk(c, some):
        for prompt in some:
            c.t.type(prompt + "\r")
            c.see(rf"▏ {re.escape(prompt)}(.|\n)*■ ended at the token limit(.|\n)*ready")

    c = chat(max_tokens=24, sampling=GREEDY, home=whole, trace="one")
    c.see("ready")
    talk(c, prompts)
    c.quit()
    c = chat(max_tokens=24, sampling=GREEDY, home=parts, trace="two")
    c.see("ready")
    talk(c, prompts[:1])
    c.quit()
    c = chat("--continue", max_tokens=24, sampling=GREEDY, home=parts, trace="three")
    c.see("ready")
    talk(c, prompts[1:2])
    assert reused(c) == 0
    talk(c, prompts[2:])
    assert reused(c) > 50
    c.quit()
    assert len(ids(whole)) == 3
    assert ids(parts) == ids(whole)
    one, three = replies(tmp_path / "one"), replies(tmp_path / "three")
    assert [r[0].at for r in three] == [r[0].at for r in one[1:]]
