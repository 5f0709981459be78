"""The chat line by line, on pipes and on a dumb terminal."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from qwen_chat_mlx.engine.events import ModelLoading
from qwen_chat_mlx.engine.session import Session
from qwen_chat_mlx.tui.cli import main
from qwen_chat_mlx.tui.config import load
from qwen_chat_mlx.tui.conversations import Store
from qwen_chat_mlx.tui.terminal.instances import Instances

COMMAND = [sys.executable, str(Path(__file__).with_name("fake_command.py"))]
TINY = Path(__file__).parents[2] / "engine" / "fixtures" / "fp8-1"
REPLIES = {"load_s": 0.1, "replies": [{"text": "First answer.", "thinking": "hm"}, {"text": "Second\nanswer."}]}


def talk(home, *lines, argv=(), script=REPLIES):
    """(exit code, output, conversations) of a conversation on pipes."""
    home.mkdir(exist_ok=True)
    done = subprocess.run(
        [*COMMAND, json.dumps({**script, "log": str(home / "log")}), "--plain", *argv],
        input="".join(f"{line}\n" for line in lines).encode(), capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert b"\x1b" not in done.stdout + done.stderr
    return done.returncode, done.stdout.decode() + done.stderr.decode(), Store(home / "conversations").list()


def asked(home):
    return [json.loads(line) for line in (home / "log").read_text("utf-8").splitlines()]


def test_prompts_are_answered_in_turn_and_the_conversation_is_kept(home):
    code, out, (entry,) = talk(home, "one", "two \\", "lines", "/title  My talk")
    assert code == 0
    assert "model> First answer.\n(" in out
    assert "(thought for" in out
    assert "hm" not in out
    assert "model> Second\nanswer.\n(" in out
    assert entry.title == "My talk"
    turns = Store(home / "conversations").open(entry.id).turns
    assert [t.text for t in turns] == ["one", "First answer.", "two \nlines", "Second\nanswer."]
    assert turns[1].thinking == "hm"
    assert turns[1].token_ids
    assert turns[1].tokenizer == "fake-tokenizer"
    assert asked(home)[1][0] == [["user", "one"], ["assistant", "First answer."], ["user", "two \nlines"]]


def test_a_prompt_on_the_command_line_is_sent_and_a_conversation_is_resumed(home):
    talk(home, argv=["hello", "there"])
    code, out, (entry,) = talk(home, "more", argv=["--continue"])
    assert code == 0
    assert "Going on with hello there (2 messages)." in out
    assert asked(home)[-1][0][0] == ["user", "hello there"]
    assert entry.turns == 4
    assert talk(home, argv=["--resume", entry.id[:8]])[0] == 0
    for wrong in ("nonsense", ""):
        code, out, _ = talk(home, argv=["--resume", wrong])
        assert (code, out.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["--temperature", "0"], [["Hello.", "/continue"], ["Bob", "/regen", "Eve"]]),
        (["--seed", "5"], [["/system Be brief.", "/think off", "Hello."], ["Bob", "/think on", "Eve"], ["Sue"]]),
    ],
)
def test_a_resumed_conversation_gives_the_model_the_ids_that_it_would_have_had(argv, parts, home, monkeypatch):
    asked, prompt = [], Session.prompt

    def noted(session, ids, *given, **more):
        asked.append([int(i) for i in ids])
        return prompt(session, ids, *given, **more)

    def talked(lines, *more):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("".join(f"{x}\n" for x in lines).encode())))
        small = ["--set", "model.memory_limit=4 GiB", "--max-tokens", "8"]
        assert main(["--plain", "--model", str(TINY), *small, *argv, *more]) == 0

    monkeypatch.setattr(Session, "prompt", noted)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    talked([line for part in parts for line in part])
    at_once, asked = asked, []
    monkeypatch.setenv("QWEN_CHAT_HOME", str(home / "another"))
    for i, part in enumerate(parts):
        talked(part, *(["--continue"] if i else []))
    assert asked == at_once


def test_there_is_nothing_to_continue_at_first(home):
    code, out, entries = talk(home, argv=["--continue"])
    assert (code, entries) == (2, [])
    assert "no conversation" in out


def test_a_temporary_chat_is_not_kept(home):
    assert talk(home, "one", argv=["--temporary"])[2] == []
    assert talk(home, "one", argv=["--set", "history.save=false"])[2] == []


def test_commands_do_what_they_say_and_slips_are_named(home):
    code, out, _ = talk(
        home, "/hlep", "/mtp on", "/mtp off", "/think maybe", "/think off", "/set temprature 1", "/set temperature 9",
        "/set temperature 0.5", "/set max_tokens 5", "/regen", "/continue", "/export xml", "/export md", "/resume zz",
        "//path is a prompt", "/help",
    )  # fmt: skip
    assert code == 0
    for said in (
        "did you mean /help?", "mtp.mode = 'on'", "Drafting is off.", "takes on, off or auto", "Thinking is off.",
        "Did you mean temperature?", "from 0 to 5", "temperature is 0.5.", "nothing to answer again", "no reply that was cut off",
        "takes md or json", "nothing to export yet", "There is no conversation 'zz'. /chats in a chat lists them.", "/resume ID",
    ):  # fmt: skip
        assert said in out, said
    (request,) = asked(home)
    assert request == [[["user", "/path is a prompt"]], False, 5, None]


def test_a_line_that_is_no_utf8_is_left_out_and_said_in_one_sentence(home):
    home.mkdir()
    done = subprocess.run(
        [*COMMAND, json.dumps({**REPLIES, "log": str(home / "log")}), "--plain", "--temporary"],
        input=b"\xef\xbb\xbfone\r\ncaf\xe9\nca\xf0\x9f\ntwo \\\n\xff\nlines\n", capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stdout.count(b"Error: That line is not UTF-8 text and was left out.") == 3
    assert [request[0][-1] for request in asked(home)] == [["user", "one"], ["user", "two \nlines"]]
    refused = subprocess.run(
        [*COMMAND, "{}", "--plain", b"caf\xe9"], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    assert (refused.returncode, refused.stderr.count(b"\n")) == (2, 1)
    assert b"The prompt is not UTF-8 text." in refused.stderr


def test_regenerate_new_chats_and_export(home, tmp_path):
    name = tmp_path / "out.md"
    code, out, entries = talk(
        home, "one", "/regen", "/export md " + str(name), "/export md " + str(name), "/new", "two", "/chats"
    )
    assert code == 0
    assert asked(home)[1][0] == [["user", "one"]]
    assert len(entries) == 2
    assert "Second" in name.read_text("utf-8")
    assert "already there" in out
    assert out.count(entries[0].id) == 1


def test_a_failed_reply_is_said_and_the_next_one_works(home):
    failing = {"load_s": 0.1, "replies": [{"error": ["StorageError", "The disk failed."]}, {"text": "Fine."}]}
    code, out, _ = talk(home, "one", "two", script=failing)
    assert code == 0
    assert "Error: The disk failed." in out
    assert "model> Fine." in out
    assert asked(home)[1][0] == [["user", "one"], ["user", "two"]]


def test_a_refused_prompt_is_no_part_of_the_conversation_and_a_refused_regeneration_keeps_the_reply(home):
    full = {"error": ["ContextFullError", "The conversation has 400 tokens; 256 fit."]}
    script = {"load_s": 0.1, "replies": [{"text": "Fine."}, full, full, {"text": "Hi."}]}
    code, out, (entry,) = talk(home, "one", "much too long", "/regen", "hello", script=script)
    assert code == 0
    assert out.count("Error: The conversation has 400 tokens; 256 fit.") == 2
    assert asked(home)[3][0] == [["user", "one"], ["assistant", "Fine."], ["user", "hello"]]
    turns = Store(home / "conversations").open(entry.id).turns
    assert [t.text for t in turns] == ["one", "Fine.", "hello", "Hi."]
    assert [bool(t.token_ids) for t in turns] == [False, True, False, True]


def test_resuming_the_open_conversation_says_so_and_a_new_one_has_the_sampling_of_the_config(home):
    code, out, (entry, _) = talk(home, "one", "/set max_tokens 5", "/new", "two")
    assert code == 0
    assert asked(home)[1] == [[["user", "two"]], None, asked(home)[0][2], None]
    code, out, _ = talk(home, f"/resume {entry.id}", "more", argv=["--continue"])
    assert "That is this conversation." in out
    assert "read-only" not in out


def test_the_latest_conversation_that_can_be_read_is_continued(home):
    talk(home, "one")
    (home / "conversations" / "20990101-000000-ffffff.jsonl").write_bytes(b"no conversation\n")
    code, out, _ = talk(home, "more", argv=["--continue"])
    assert code == 0
    assert "20990101-000000-ffffff was left out: " in out
    assert "Going on with one" in out


def test_where_nothing_is_kept_nothing_can_be_resumed(home):
    talk(home, "one")
    for flags in (["--continue"], ["--resume", "2"]):
        code, out, _ = talk(home, argv=[*flags, "--set", "history.save=false"])
        assert (code, out.count("\n")) == (2, 1)
        assert "[history] save is false" in out


def test_a_model_that_cannot_be_loaded_ends_it_with_exit_1(home):
    code, out, _ = talk(home, "one", script={"load_error": ["CheckpointError", "No config.json.", "Name a folder."]})
    assert code == 1
    assert "qwen-chat: No config.json. Name a folder." in out


def test_on_a_dumb_terminal_ctrl_c_stops_the_reply_and_twice_leaves(terminal):
    t = terminal(
        "--plain",
        term="dumb",
        script={"load_s": 0.1, "speed": 1.0, "replies": [{"text": "word " * 3000}, {"text": "Done."}]},
    )
    t.until("you> ")
    t.type("go\n")
    t.until("model> word word")
    t.type(b"\x03")
    t.until(r"\(stopped\)")
    since = len(t.got)
    t.until("you> ", since=since - 5)
    t.type("again\n")
    t.until("Done.")
    t.until("you> $")
    t.type(b"\x03")
    t.until("Ctrl.C again")
    time.sleep(0.1)
    t.type(b"\x03")
    assert t.wait() == 0
    assert b"\x1b" not in t.got


def test_what_it_says_is_broken_at_words_on_a_terminal(terminal):
    t = terminal("--plain", term="dumb", size=(60, 36), COLUMNS="60")
    t.until("you> ")
    t.type("/set zzzzzzzz 1\n")
    t.until("repetition_penalty.*you> $")
    t.type("/quit\n")
    assert t.wait() == 0
    rows = t.got.decode().replace("\r", "").split("\n")
    assert any("presence_penalty" in row for row in rows)
    assert all(len(row) <= 60 for row in rows)


def test_a_slow_start_counts_nothing_before_there_is_something_to_count(home, monkeypatch, capsys):
    from qwen_chat_mlx.tui.cli import _plain

    monkeypatch.setattr(_plain, "PROGRESS_EVERY_S", -1.0)
    events = [ModelLoading("reading headers", 0, 0, "tensors"), ModelLoading("loading weights", 1, 1200, "tensors")]
    talk = SimpleNamespace(ready=lambda: iter(events))
    loaded = load(environ={"QWEN_CHAT_HOME": str(home)})
    chat = _plain.PlainChat(loaded, Store(home), Store(home).new(temporary=True), talk, True)
    chat._load()
    assert capsys.readouterr().out.splitlines()[1:] == [
        "Still reading headers.", "Still loading weights: 1 of 1,200 tensors."
    ]  # fmt: skip


def test_ctrl_d_leaves_and_sigterm_keeps_what_was_said(terminal, tmp_path):
    t = terminal("--plain", term="dumb")
    t.until("you> ")
    t.type(b"\x04")
    assert t.wait() == 0
    t = terminal("--plain", term="dumb", script={"load_s": 0.1, "speed": 1.0, "replies": [{"text": "word " * 3000}]})
    t.until("you> ")
    t.type("go\n")
    t.until("model> word word")
    t.kill(signal.SIGTERM)
    assert t.wait() == 143
    (entry,) = Store(tmp_path / "conversations").list()
    assert Store(tmp_path / "conversations").open(entry.id).turns[1].text.startswith("word word")


def test_hostile_text_is_harmless(home):
    code, out, _ = talk(
        home,
        "a\x1b]0;title\x07",
        "/title \x1b[2J",
        "/chats",
        script={"load_s": 0.1, "replies": [{"text": "x\x1b[2J\x9b31m\u202ey"}]},
    )
    assert code == 0
    assert "\x9b" not in out
    assert "\u202e" not in out


def test_what_cannot_be_saved_is_said_once_and_the_talk_goes_on(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QWEN_CHAT_HOME", str(tmp_path / "file"))
    done = subprocess.run(
        [*COMMAND, json.dumps(REPLIES), "--plain"], input=b"one\ntwo\n", capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"Not saved: ") == 1
    assert b"model> First answer." in done.stdout
    assert b"model> Second\nanswer." in done.stdout


def test_another_chat_that_takes_too_much_memory_is_named_before_the_model_is_read(home):
    home.mkdir(exist_ok=True)
    other = Instances(home / "running")
    other.claim(1 << 60)
    (home / "running" / f"{os.getpid()}.bytes").rename(home / "running" / "1.bytes")
    _, out, _ = talk(home, "one")
    assert out.index("Another qwen-chat runs") < out.index("is ready after")
    assert [p.name for p in (home / "running").iterdir()] == ["1.bytes"]
    os.close(other._fd)
