"""Hostile text through the whole full-screen program: what reaches the terminal is Textual's own sequences and plain text."""

import json
import re

import pytest

from qwen_chat_mlx.tui.conversations import Store

MARK = "31337"
"""Stands in every hostile sequence, and in none of Textual's."""
EVIL = (
    f"\x1b[{MARK}m\x1b]52;c;{MARK}\x07\x1b]0;{MARK}\x1b\\\x1bP{MARK}\x1b\\\x1b_{MARK}\x1b\\\x1bc\x9b{MARK}m\x9d0;{MARK}\x9c"
    "\x00\x07\x08\x7f\x85\u202e\u2066\u200f\u061c"
)
SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\)|[^\[\]P^_X])")
BAD = re.compile("[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def harmless(got):
    text = got.decode("utf-8")
    assert [s for s in SEQUENCE.findall(text) if MARK in s or s in ("\x1bc", "\x1b]")] == []
    assert [hex(ord(c)) for c in BAD.findall(SEQUENCE.sub("", text))] == []


def test_the_check_notices_each_kind():
    harmless(b"\x1b[1;1H\x1b[?2026hplain 31337\r\n")
    for part in ("\x1b[31337m", "\x1b]0;31337\x07", "\x1bP31337\x1b\\", "\x1bc", *"\x9b\x00\x7f\u202e\x1b"):
        with pytest.raises(AssertionError):
            harmless(f"plain {part}".encode())


@pytest.mark.slow
def test_nothing_hostile_reaches_the_terminal(terminal, tmp_path, monkeypatch):
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / f"filemark{EVIL.replace(chr(0), '')}").touch()
    (folder / "filemark.txt").write_text(EVIL)
    monkeypatch.chdir(folder)
    store = Store(tmp_path / "conversations")
    old = store.new()
    old.add_turn("user", "PROMPT")
    old.add_turn("assistant", model="MODEL")
    old.add_text("thinking", "THOUGHT")
    old.add_text("answer", "ANSWER")
    old.finish("stop")
    old.rename("TITLE")
    old.close()
    written = old.path.read_text()
    for word in ("PROMPT", "MODEL", "THOUGHT", "ANSWER", "TITLE"):
        written = written.replace(word, json.dumps(f"old{word.lower()}{EVIL}")[1:-1])
    old.path.write_text(written)

    reply = f"replymark {EVIL}\n\n```{EVIL}\ncode {EVIL}\n```\n\n# {EVIL}\n\n| {EVIL} | b |\n|--|--|\n| x | {EVIL} |\n\nlastmark"
    script = {"load_s": 0.2, "noise": EVIL, "replies": [{"text": reply, "thinking": EVIL}]}
    t = terminal("--continue", script=script)
    t.until("oldtitle")
    t.until("oldanswer")
    t.until("Fake")
    t.type("@fil")
    t.until("filemark")
    t.type("\t")
    t.until("1 file attached")
    t.type(f" \x1b[200~pastemark {EVIL}\x1b[201~")
    t.until("pastemark")
    t.type("\r")
    t.until("lastmark")
    t.type(b"\x0f\x1b[1;5H")
    t.until("oldthought")
    for key, seen in ((b"\x13", "Conversations"), (b"\x1b[24~", "Log")):
        since = len(t.got)
        t.type(key)
        t.until(seen, since=since)
        t.type(b"\x1b[27u")
        t.read(0.5)
    t.type(b"\x11")
    assert t.wait() == 0
    harmless(t.got)
