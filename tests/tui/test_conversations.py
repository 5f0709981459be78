"""Conversations on disk: what survives, what is refused, what is found again."""

import errno
import json
import os
import stat
import subprocess
import sys

import pytest

from qwen_chat_mlx.engine.errors import StorageError, UsageError
from qwen_chat_mlx.engine.types import Message
from qwen_chat_mlx.tui import conversations
from qwen_chat_mlx.tui.conversation_records import FORMAT, VERSION, auto_title, encode, read_records, replay
from qwen_chat_mlx.tui.conversations import Conversation, Store


class Clock:
    def __init__(self):
        self.now = 1_800_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(tmp_path, clock):
    return Store(tmp_path / "data" / "conversations", clock)


def timed(tmp_path, clock, name="c"):
    return Conversation(name, tmp_path / f"{name}.jsonl", clock, clock)


def talk(c, *pairs):
    for said, answer in pairs:
        c.add_turn("user", said)
        c.add_turn("assistant", model="m", settings={"mtp.mode": "auto"})
        c.add_text("thinking", f"hm {answer}")
        c.add_text("answer", answer)
        c.finish("stop", (1, 2, 3), "tok", {"tok_per_s": 11.5})
    return c


def records(path):
    return [r for _, r in read_records(path.read_bytes())]


def test_a_conversation_read_back_is_the_one_that_was_written(store):
    c = talk(store.new(), ("Why?", "Because."), ("日本語 ok?", "はい"))
    c.rename("  Two\nquestions ")
    c.close()
    again = store.open(c.id)
    assert again.turns == c.turns
    assert again.title == "Two questions"
    assert again.notes == []
    assert not again.read_only
    assert again.messages()[1] == Message("assistant", "Because.", "hm Because.", (1, 2, 3), "tok")
    assert (again.turns[1].model, again.turns[1].settings, again.turns[1].numbers) == (
        "m",
        {"mtp.mode": "auto"},
        {"tok_per_s": 11.5},
    )
    assert records(c.path)[0] == {
        "type": "header",
        "format": FORMAT,
        "version": VERSION,
        "id": c.id,
        "at": 1_800_000_000.0,
    }


def test_files_are_0600_and_folders_0700_and_nothing_is_made_before_the_first_turn(store):
    c = store.new()
    assert not store.folder.exists()
    c.add_turn("user", "hi")
    assert stat.S_IMODE(c.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(store.folder.parent.stat().st_mode) == 0o700


def test_the_users_turn_is_on_the_disk_when_add_turn_returns(store, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size))
    c = store.new()
    c.add_turn("user", "hello")
    assert records(c.path)[-1]["text"] == "hello"
    assert synced == [c.path.stat().st_size]


def test_a_reply_reaches_the_file_every_two_seconds_while_it_streams(tmp_path, clock):
    c = timed(tmp_path, clock)
    c.add_turn("user", "go")
    c.add_turn("assistant")
    seen = []
    for i in range(60):
        clock.now += 0.1
        c.add_text("answer", f"{i} ")
        seen.append(len(replay(c.path.read_bytes(), "x").turns[-1].text.split()))
    assert all(n + 21 >= i for i, n in enumerate(seen, 1))
    assert 2 <= len([r for r in records(c.path) if r["type"] == "delta"]) <= 3
    clock.now += 5
    c.flush_due()
    assert replay(c.path.read_bytes(), "x").turns[-1].text == c.turns[-1].text
    c.add_text("answer", "x" * 5000)
    assert replay(c.path.read_bytes(), "x").turns[-1].text.endswith("x")


def test_a_reply_that_was_cut_off_by_a_crash_is_there_without_an_end(tmp_path, clock):
    c = timed(tmp_path, clock)
    c.add_turn("user", "go")
    c.add_turn("assistant")
    c.add_text("answer", "half")
    c.flush()
    again = Conversation.open(c.path)
    assert (again.turns[-1].text, again.turns[-1].finish_reason, again.turns[-1].token_ids) == ("half", "", ())


def test_a_rewind_keeps_the_old_branch_in_the_file(store):
    c = talk(store.new(), ("one", "1"), ("two", "2"), ("three", "3"))
    c.rewind(2)
    talk(c, ("TWO", "22"))
    c.close()
    again = store.open(c.id)
    assert [t.text for t in again.turns] == ["one", "1", "TWO", "22"]
    assert b'"three"' in c.path.read_bytes()
    again.rewind(0)
    again.rewind(5)
    talk(again, ("anew", "!"))
    again.close()
    assert [t.text for t in store.open(c.id).turns] == ["anew", "!"]


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_truncated_last_line_survives_and_writing_goes_on_after_it(cut, tmp_path, clock):
    c = talk(timed(tmp_path, clock), ("one", "1"))
    c.add_turn("user", "a rather long second prompt that is lost")
    c.close()
    whole = c.path.read_bytes()
    c.path.write_bytes(whole[:-cut])
    again = Conversation.open(c.path)
    kept = cut == 1
    assert [t.text for t in again.turns][:2] == ["one", "1"]
    assert len(again.turns) == 2 + kept
    assert len(again.notes) == (0 if kept else 1)
    assert kept or "cut off" in again.notes[0]
    before = c.path.read_bytes()
    talk(again, ("two", "2"))
    again.close()
    assert c.path.read_bytes().startswith(before)
    final = Conversation.open(c.path)
    assert [t.text for t in final.turns][-2:] == ["two", "2"]


def test_a_damaged_line_in_the_middle_costs_that_line_only(tmp_path, clock):
    c = talk(timed(tmp_path, clock), ("one", "1"), ("two", "2"))
    c.close()
    lines = c.path.read_bytes().split(b"\n")
    assert json.loads(lines[4])["text"] == "two"
    lines[4] = b'{"type":"turn","n":2,'
    c.path.write_bytes(b"\n".join(lines))
    again = Conversation.open(c.path)
    assert [t.text for t in again.turns] == ["one", "1", "2"]
    assert "line 5" in again.notes[0]
    again.rewind(2)
    talk(again, ("new", "3"))
    again.close()
    assert [t.text for t in Conversation.open(c.path).turns] == ["one", "1", "new", "3"]


@pytest.mark.parametrize(
    "line",
    [
        b"not json", b"[]", b"5", b'{"type":5}', b'{"type":"unknown"}', b"\xff\xfe", b"[" * 100_000,
        b'{"type":"turn","n":0,"role":"user"}', b'{"type":"turn","n":9,"role":"boss"}', b'{"type":"turn","n":9,"role":"user","text":5}',
        b'{"type":"turn","n":true,"role":"user"}', b'{"type":"turn","n":9,"role":"user","at":1e999}',
        b'{"type":"turn","n":9,"role":"user","at":NaN}', b'{"type":"delta","n":9}', b'{"type":"delta","n":1,"answer":[]}',
        b'{"type":"delta","n":1,"token_ids":["x"]}', b'{"type":"delta","n":1,"token_ids":[-1]}',
        b'{"type":"delta","n":1,"finish_reason":"bored"}', b'{"type":"rewind","keep":-1}', b'{"type":"title","title":null}',
        b'{"type":"delta","n":1,"numbers":5}', b'{"type":"turn","n":' + b"9" * 6000 + b',"role":"user"}',
    ],
)  # fmt: skip
def test_hand_edited_nonsense_is_left_out_and_stays_in_the_file(line, tmp_path, clock):
    c = talk(timed(tmp_path, clock), ("one", "1"))
    c.close()
    c.path.write_bytes(c.path.read_bytes() + line + b"\n")
    again = Conversation.open(c.path)
    assert [t.text for t in again.turns] == ["one", "1"]
    assert len(again.notes) == 1
    talk(again, ("two", "2"))
    again.close()
    assert line in c.path.read_bytes()
    assert len(Conversation.open(c.path).turns) == 4


@pytest.mark.parametrize(
    "raw", [b"", b"garbage", b'{"type":"header","format":"other","version":1}\n', b'{"type":"turn","n":0}\n']
)
def test_what_is_no_conversation_is_refused_listed_with_its_problem_and_never_overwritten(raw, store):
    store.folder.mkdir(parents=True)
    path = store.folder / "x.jsonl"
    path.write_bytes(raw)
    with pytest.raises(StorageError, match=r"x\.jsonl:1: this is no conversation"):
        store.open("x")
    (entry,) = store.list()
    assert entry.problem
    assert list(store.search("garbage")) == []
    assert path.read_bytes() == raw
    store.delete("x")
    store.restore("x")
    assert path.read_bytes() == raw


def test_newer_files_open_read_only_and_older_ones_for_writing(tmp_path, clock):
    c = talk(timed(tmp_path, clock), ("one", "1"))
    c.close()
    raw = c.path.read_bytes()
    newer = raw.replace(b'"version":1', b'"version":2') + b'{"type":"picture","n":0}\n'
    c.path.write_bytes(newer)
    again = Conversation.open(c.path)
    assert "newer" in again.read_only
    assert [t.text for t in again.turns] == ["one", "1"]
    with pytest.raises(StorageError, match="read-only"):
        again.add_turn("user", "x")
    again.close()
    assert c.path.read_bytes() == newer
    c.path.write_bytes(raw.replace(b'"version":1', b'"version":0'))
    assert not Conversation.open(c.path).read_only


def test_a_second_process_can_only_read(store):
    c = talk(store.new(), ("one", "1"))
    code = (
        "import sys; from pathlib import Path; from qwen_chat_mlx.tui.conversations import Store\n"
        "c = Store(Path(sys.argv[1])).open(sys.argv[2]); print(c.read_only, len(c.turns))"
    )
    other = [sys.executable, "-c", code, str(store.folder), c.id]
    assert (
        subprocess.run(other, capture_output=True, text=True, timeout=60, check=True).stdout
        == "It is open in another qwen-chat. 2\n"
    )
    with pytest.raises(StorageError, match="another qwen-chat"):
        store.delete(c.id)
    c.close()
    assert subprocess.run(other, capture_output=True, text=True, timeout=60, check=True).stdout == " 2\n"


def test_a_disk_that_refuses_loses_nothing_once_it_writes_again(tmp_path, clock, monkeypatch):
    c = talk(timed(tmp_path, clock), ("one", "1"))
    real = os.write

    def full(fd, data):
        real(fd, bytes(data)[:7])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(conversations.os, "write", full)
    for text in ("two", "three"):
        with pytest.raises(StorageError, match="No space left"):
            c.add_turn("user", text)
    monkeypatch.setattr(conversations.os, "write", real)
    c.add_turn("user", "four")
    c.close()
    assert [t.text for t in Conversation.open(c.path).turns] == ["one", "1", "two", "three", "four"]


def test_a_folder_that_cannot_be_made_is_said_and_tried_again(tmp_path, clock):
    block = tmp_path / "file"
    block.write_text("x")
    c = Conversation("c", block / "c.jsonl", clock, clock)
    with pytest.raises(StorageError, match="cannot be written"):
        c.add_turn("user", "one")
    block.unlink()
    c.add_turn("user", "two")
    c.close()
    assert [t.text for t in Conversation.open(c.path).turns] == ["one", "two"]


def test_a_temporary_chat_leaves_nothing(store):
    c = talk(store.new(temporary=True), ("secret", "yes"))
    c.rename("x")
    c.rewind(0)
    talk(c, ("secret", "yes"))
    c.close()
    assert (c.temporary, c.title, len(c.turns)) == (True, "x", 2)
    assert not store.folder.exists()


def test_no_control_character_stands_raw_in_the_file(store):
    hostile = "\x00\x1b]52;c;x\x07\x7f\x9b2J\u202e\u2028\u2066\ufeff\ud800 end"
    c = talk(store.new(), (hostile, hostile))
    c.close()
    raw = c.path.read_bytes()
    assert all(b >= 0x20 or b == 0x0A for b in raw)
    assert all(ch.isprintable() or ch == "\n" for ch in raw.decode("utf-8"))
    assert store.open(c.id).turns[0].text == hostile
    with pytest.raises(ValueError, match="JSON"):
        encode({"type": "x", "v": float("nan")})


def test_titles_come_from_the_first_words_of_the_user():
    def title(text):
        c = Conversation("c", None)
        c.add_turn("system", "Be brief.")
        c.add_turn("user", text)
        return c.title

    assert title("\n\n## Why is *this*   so?\nmore") == "Why is *this* so?"
    assert title("```\nx = 1\n```") == "x = 1"
    assert title("word " * 40) == " ".join(["word"] * 11) + " word…"
    assert title("x" * 100) == "x" * 60 + "…"
    assert title("???") == ""
    assert auto_title([]) == ""


def test_the_list_is_latest_first_and_filtered_by_words(store, clock):
    ids = []
    for said in ("Borrow checker", "Sourdough bread", "Rust borrow rules"):
        c = talk(store.new(), (said, "ok"))
        c.close()
        clock.now += 60
        os.utime(c.path, (clock.now, clock.now))
        ids.append(c.id)
    assert [e.id for e in store.list()] == ids[::-1]
    assert [e.title for e in store.list("BORROW")] == ["Rust borrow rules", "Borrow checker"]
    assert [e.title for e in store.list("borrow rust")] == ["Rust borrow rules"]
    assert store.list("nothing") == []
    assert next(store.entries()).id == ids[2]
    assert [e.turns for e in store.list()] == [2, 2, 2]


def test_search_looks_into_turns_and_thoughts_of_the_current_branch(store):
    c = talk(store.new(), ("first question", "the Quick\nbrown fox"), ("dropped", "gone away"))
    c.rewind(2)
    c.close()
    (found,) = store.search("quick  BROWN")
    assert (found.turn, found.entry.id) == (1, c.id)
    assert "Quick brown fox" in found.excerpt
    assert [f.turn for f in store.search("first")] == [-1, 0]
    assert list(store.search("gone away")) == []
    assert list(store.search("  ")) == []


def test_an_id_is_found_by_its_start_and_a_wrong_one_names_the_nearest(store):
    with pytest.raises(UsageError, match="/chats"):
        store.find("x")
    c, d = talk(store.new(), ("a", "b")), talk(store.new(), ("c", "d"))
    common = c.id[: next(i for i, (a, b) in enumerate(zip(c.id, d.id)) if a != b)]
    assert store.find(c.id) == c.id
    assert store.find(c.id[: len(common) + 1]) == c.id
    with pytest.raises(UsageError, match="2 conversations start"):
        store.find(common)
    with pytest.raises(UsageError, match=c.id):
        store.find(c.id[:-1] + "zz")
    for bad in ("../../etc/passwd", "", ".hidden", "a/b"):
        with pytest.raises(UsageError):
            store.open(bad)


def test_rename_delete_restore_and_purge(store, clock):
    c = talk(store.new(), ("a", "b"))
    c.close()
    os.utime(c.path, (1, 1_700_000_000))
    store.rename(c.id, "New name")
    assert store.list()[0].title == "New name"
    changed = c.path.stat().st_mtime
    store.delete(c.id)
    assert store.list() == []
    assert store.purge() == 0
    store.restore(c.id)
    assert store.list()[0].changed == changed
    store.delete(c.id)
    clock.now += 8 * 86400
    assert store.purge() == 1
    with pytest.raises(StorageError):
        store.restore(c.id)


def test_the_module_imports_no_screen_and_no_mlx():
    code = "import sys, qwen_chat_mlx.tui.conversations; print([m for m in ('textual', 'rich', 'mlx', 'numpy') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
        == "[]\n"
    )
