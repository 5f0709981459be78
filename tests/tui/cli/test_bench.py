"""`qwen-chat bench`: tables, JSON, Markdown, progress on stderr, and an end without anything left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qwen_chat_mlx.engine.trace import read_trace
from qwen_chat_mlx.tui.cli import main

MODEL = Path(__file__).parents[2] / "engine" / "fixtures" / "fp8-1"
SMALL = ["bench", "--model", str(MODEL), "--set", 'model.memory_limit="4 GiB"', "--expert-cache", "25 %"]
TINY = [*SMALL, "--prompt-tokens", "16", "--max-tokens", "4"]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("QWEN_CHAT_HOME", str(tmp_path))


@pytest.fixture
def here(monkeypatch):
    """Runs happen in this process, which is quicker."""
    from qwen_chat_mlx.engine.bench import bench
    from qwen_chat_mlx.engine.bench.run import run_here

    monkeypatch.setattr(bench.measure, "__defaults__", (bench.measure.__defaults__[0], run_here))


def test_json_has_a_report_a_workload_and_a_run_a_child(here, capsys):
    arms = ["--arm", "mtp=off", "--arm", "mtp=fixed,max_draft=2"]
    assert main([*TINY, *arms, "--workload", "code", "--runs", "2", "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)["reports"]
    assert report["workload"] == "code"
    assert report["order"] == ["mtp=off", "mtp=fixed,max_draft=2", "mtp=fixed,max_draft=2", "mtp=off"]
    off, fixed = report["arms"]
    assert fixed["same_ids"]
    assert off["config"]["mtp.mode"] == "off"
    assert fixed["config"]["mtp.max_draft"] == 2
    assert fixed["ratio"]["pairs"] == 2
    assert len(off["runs"]) == 2
    assert len(off["runs"][0]["token_ids"]) == 4


def test_the_table_and_the_markdown_show_every_arm(here, capsys):
    arms = ["--arm", "mtp=off", "--arm", "expert_cache=100%"]
    assert main([*TINY, *arms, "--runs", "1"]) == 0
    shown = capsys.readouterr().out
    for wanted in (
        "code: 16 prompt tokens", "novel: 16", "expert_cache=100%", "decode, tok/s", "ratio", "sha256",
        "One run of each arm. Order: mtp=off | ", "nothing read",
    ):  # fmt: skip
        assert wanted in shown
    assert "brackets" not in shown
    assert main([*TINY, *arms, "--runs", "1", "--workload", "novel", "--markdown"]) == 0
    shown = capsys.readouterr().out
    heads = [line for line in shown.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in heads}) == 1
    assert "`expert_cache=100%`" in heads[0]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--arm", "max_drft=2"], "did you mean 'max_draft'"),
        (["--workload", "poem"], "no workload 'poem'"),
        (["--runs", "0"], "--runs must be at least 1"),
        (["--runs", "x"], "invalid int value"),
        (["--prompt-tokens", "9999999"], "tokens for this model"),
        (["--workload", "~nobody-of-this-name/x"], "no workload"),
        (["--prompt-tokens", "-1"], "--prompt-tokens must be at least 1"),
        (["--json", "--markdown"], "not allowed with"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(more, said, capsys):
    assert main([*TINY, *more]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def test_where_the_system_tells_nothing_of_its_cache_that_is_explained_and_several_runs_have_brackets(
    here, capsys, monkeypatch
):
    from qwen_chat_mlx.tui.cli import _bench_text

    monkeypatch.setattr(_bench_text, "_page_cache", lambda arm: _bench_text.UNKNOWN)
    assert main([*TINY, "--workload", "code", "--runs", "2"]) == 0
    shown = capsys.readouterr().out
    assert "Page cache unknown: the system does not tell which reads it served from memory." in shown
    assert "Median of the runs, in brackets the lowest and highest. Order: " in shown


def test_a_trace_is_not_written_over_by_the_next_run(here, tmp_path, capsys):
    one = ["--workload", "code", "--runs", "1"]
    trace = str(tmp_path / "t")
    for more in (["--workload", "code"], ["--runs", "1"], [*one, "--arm", "mtp=off", "--arm", "mtp=fixed"]):
        assert main([*TINY, *more, "--trace", trace]) == 2
        assert f"2 runs would write the trace {trace}, each over the one before" in capsys.readouterr().err
    arms = [part for mtp in ("off", "fixed") for part in ("--arm", f"mtp={mtp},trace={trace}.{mtp}")]
    assert main([*TINY, *one, *arms]) == 0
    assert [read_trace(f"{trace}.{mtp}").header.settings["mtp"] for mtp in ("off", "fixed")] == ["off", "fixed"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no full disk to offer")
def test_a_trace_that_ends_early_in_a_child_is_told_beside_the_report(capsys):
    assert main([*TINY, "--workload", "code", "--runs", "1", "--trace", "/dev/full", "--json"]) == 0
    out, told = capsys.readouterr()
    assert told == "qwen-chat: as set: The trace /dev/full ends early: No space left on device.\n"
    assert len(json.loads(out)["reports"][0]["arms"][0]["runs"][0]["warnings"]) == 1


def test_the_error_of_a_child_is_one_sentence(capsys):
    assert main([*TINY, "--context", "64", "--max-tokens", "60", "--workload", "code"]) == 2
    told = capsys.readouterr().err
    assert "do not fit the context of 64" in told
    assert told.count("\n") == 1


@pytest.fixture
def disk(monkeypatch):
    """A disk that was measured already: raw 200 MB/s, the engine's reads 180."""
    from qwen_chat_mlx.engine.bench import io
    from qwen_chat_mlx.engine.bench.disk import DiskReport

    rates = {arm: (2e8,) if arm == "raw" else (1.8e8,) for arm in io.ARMS}
    depths = tuple(DiskReport(rates, 1 << 20, n, True, 0.001) for n in io.DEPTHS)
    monkeypatch.setattr(io, "measure_io", lambda config, tell: io.IoReport("/a/shard", 1 << 20, depths))


def test_the_disk_is_shown_by_reads_in_flight(disk, capsys):
    assert main([*SMALL, "--io"]) == 0
    shown = capsys.readouterr().out
    assert "reads of 1.0 MiB, past the page cache" in shown
    assert "180 (0.90)" in shown
    assert main([*SMALL, "--io", "--markdown"]) == 0
    assert "| 32 | 200 | 180 (0.90) |" in capsys.readouterr().out
    assert main([*SMALL, "--io", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [d["workers"] for d in found["depths"]] == [1, 2, 4, 8, 16, 32]
    assert found["depths"][0]["ratios"]["aligned"] == pytest.approx(0.9)


@pytest.mark.parametrize(
    "more", [["--arm", "nonsense=1"], ["--workload", "x"], ["--runs", "-3"], ["--max-tokens", "4"], ["--trace", "t"],
             ["--prompt-tokens", "16"], ["--drop-page-cache"]],
)  # fmt: skip
def test_what_only_runs_have_is_refused_where_the_disk_is_measured(more, disk, capsys):
    assert main([*SMALL, "--io", *more]) == 2
    out, told = capsys.readouterr()
    assert out == ""
    assert f"{more[0]} means nothing to --io" in told


def test_ctrl_c_ends_the_child_too():
    command = [sys.executable, "-m", "qwen_chat_mlx", *TINY, "--prompt-tokens", "1500", "--max-tokens", "2000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as bench:
        try:
            children = _wait_for_children(bench.pid)
            bench.send_signal(signal.SIGINT)
            out, err = bench.communicate(timeout=60)
        finally:
            bench.kill()
    assert bench.returncode == 130
    assert (out, err) == (b"", b"")
    for pid in children:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def _wait_for_children(pid, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done = subprocess.run(
            ["pgrep", "-P", str(pid), "-f", "engine.bench.child"], capture_output=True, text=True, check=False
        )
        found = [int(p) for p in re.findall(r"\d+", done.stdout)]
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError("no child was started")
