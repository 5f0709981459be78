"""`qwen-chat doctor` where no model is named: the machine, and how to name one."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from qwen_chat_mlx.engine.bench import doctor
from qwen_chat_mlx.tui import cli


@pytest.fixture(autouse=True)
def no_demo(monkeypatch, home):
    monkeypatch.setattr(doctor, "has_demo", lambda: False)
    monkeypatch.setenv("QWEN_CHAT_HOME", str(home))


def test_without_a_model_the_machine_is_described_and_the_way_to_name_one(capsys):
    assert cli.main(["doctor"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert " cores, " in out
    assert "may be used" in out
    assert "qwen-chat doctor --model PATH" in out
    assert cli.main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"] is None
    assert 0 < found["limit_bytes"] <= found["memory_bytes"]


@pytest.mark.parametrize(("named", "code"), [("nowhere", 1), ("", 2), ("demo-9", 1)])
def test_a_model_that_was_named_and_is_not_there_is_an_error(named, code, capsys):
    assert cli.main(["doctor", "--model", named]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1


def test_a_reader_that_leaves_before_the_table_is_no_error(tmp_path):
    model = Path(__file__).parents[2] / "engine" / "fixtures" / "fp8-1"
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "qwen_chat_mlx", "doctor", "--no-disk", "--model", str(model)]
    try:
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False, timeout=60)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_on_a_terminal_lines_and_tables_are_broken_at_words(terminal):
    model = Path(__file__).parents[2] / "engine" / "fixtures" / "fp8-1"
    t = terminal("doctor", "--no-disk", "--model", str(model), size=(60, 36), COLUMNS="60")
    assert t.wait() == 0
    rows = re.sub(r"\x1b\[[\d;]*m|\r", "", t.got.decode()).split("\n")
    assert [row for row in rows if len(row) > 60] == []
    words = " ".join(row.strip() for row in rows)
    for said in ("memory, of which", "has an MTP layer", "layer buffers for prompts"):
        assert said in words


def test_a_table_on_a_broken_pipe_is_told_to_main():
    from qwen_chat_mlx.tui.cli._console import TableConsole

    with pytest.raises(BrokenPipeError):
        TableConsole().on_broken_pipe()
