"""`qwen-chat replay`: a table and JSON of a trace, and one sentence for everything that is none."""

import json
import subprocess
import sys

import pytest

from qwen_chat_mlx.engine.trace import StepRecord, TraceHeader, TraceWriter
from qwen_chat_mlx.tui.cli import main


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "a.trace"
    with TraceWriter(path, TraceHeader(layers=2, experts=8, top_k=2, slots=6, policy="decay")) as writer:
        for step in range(40):
            for layer in range(2):
                writer.routes(step, layer, "plain", [[step % 3, 3 + step % 5]])
    return str(path)


def test_a_trace_becomes_a_table_of_policies_and_sizes(trace, capsys):
    assert main(["replay", trace]) == 0
    shown = capsys.readouterr().out
    assert "2 layers x 8 experts, 2 a token; 40 forwards" in shown
    for policy in ("decay", "lru", "lfu", "belady"):
        assert f"\n{policy}" in shown
    assert shown.splitlines()[1].split()[2:] == ["0.75", "1.5", "2", "3", "5", "8"]
    assert max(map(len, shown.splitlines()[1:-1])) <= 80


def test_json_has_every_number_of_the_table(trace, capsys):
    assert main(["replay", trace, "--json", "--cycles", "3,1", "--policy", "lru", "--policy", "belady"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(r["policy"], r["cycles"], r["slots"]) for r in found["results"]] == [
        ("lru", 1, 4), ("lru", 3, 12), ("belady", 1, 4), ("belady", 3, 12),
    ]  # fmt: skip
    for r in found["results"]:
        assert r["hits"] + r["misses"] == 160
        assert r["hit_rate"] == r["hits"] / 160
    assert found["header"]["experts"] == 8


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--policy", "lur"], "did you mean 'lru'"),
        (["--cycles", "1,x"], "--cycles takes positive numbers"),
        (["--cycles", "0"], "--cycles takes positive numbers"),
        (["--pool", "draft"], "no decoding of the draft's experts"),
    ],
)
def test_what_cannot_be_replayed_is_one_sentence(trace, more, said, capsys):
    assert main(["replay", trace, *more]) == 2
    assert said in capsys.readouterr().err


def test_a_file_that_is_no_trace_is_one_sentence(tmp_path, capsys):
    (tmp_path / "x").write_text("hello\n")
    assert main(["replay", str(tmp_path / "x")]) == 2
    assert "not a line of a trace" in capsys.readouterr().err
    assert main(["replay", str(tmp_path / "absent")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_lines_are_not_folded_on_a_pipe(tmp_path):
    trace = tmp_path / "t"
    with TraceWriter(
        trace, TraceHeader(layers=1, experts=8, top_k=2, policy="a policy with a name of some length")
    ) as w:
        w.routes(0, 0, "plain", [[1, 2]])
        w.step(StepRecord(0, 1, 1))
    command = [sys.executable, "-m", "qwen_chat_mlx", "replay", str(trace)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    assert said[0].endswith("policy a policy with a name of some length")
    assert said[-1].endswith("which knows the future.")
