"""The benchmark: the chat's own door, arms in turn, figures that add up, children that never stay behind."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from qwen_chat_mlx.engine.bench import child, workloads
from qwen_chat_mlx.engine.bench.arms import parse_arms
from qwen_chat_mlx.engine.bench.bench import Bench, measure, order_of
from qwen_chat_mlx.engine.bench.figures import FIGURES, MOST_UNEXPLAINED, figures_of, token_gaps
from qwen_chat_mlx.engine.bench.run import Now, RunResult, RunTask, run_here
from qwen_chat_mlx.engine.bench.workloads import Workload, cut, load_workload, prompt_for
from qwen_chat_mlx.engine.checkpoint.index import open_checkpoint
from qwen_chat_mlx.engine.checkpoint.pack import pack
from qwen_chat_mlx.engine.config import EngineConfig
from qwen_chat_mlx.engine.errors import CheckpointError, ConfigError, QwenChatError, UsageError
from qwen_chat_mlx.engine.session import Session
from qwen_chat_mlx.engine.stats import DraftStats, EngineStats, ExpertStats, ThroughputStats, TimingStats, minus
from qwen_chat_mlx.engine.tokenizer import Tokenizer

MODEL = Path(__file__).parents[1] / "fixtures" / "fp8-1"
SMALL = EngineConfig(
    model=str(MODEL),
    memory_limit="4 GiB",
    expert_cache="25 %",
    direct_io="off",
    read_workers=3,
    mtp="fixed",
    max_draft=2,
)


def read(text: str) -> Any:
    return int(text) if text.isdigit() else text


def task(config: EngineConfig = SMALL, prompt_tokens: int = 24, max_tokens: int = 6, **more: Any) -> RunTask:
    text = prompt_for(load_workload("code"), config.model, prompt_tokens)
    return RunTask(asdict(config), text, prompt_tokens, max_tokens, **more)


@pytest.fixture(scope="module")
def done() -> RunResult:
    """One run in this process."""
    return run_here(task())


# ---- one run


@pytest.mark.parametrize("mtp", ["off", "fixed"])
def test_a_run_gives_the_ids_and_counters_of_the_session(mtp: str) -> None:
    config = replace(SMALL, mtp=mtp)  # type: ignore[arg-type]
    t = task(config)
    through_the_door = run_here(t)
    index = open_checkpoint(MODEL)
    ids = Tokenizer.load(MODEL, index.config, index.generation_config).encode(t.prompt)
    assert len(ids) == t.prompt_tokens
    session = Session.open(config)
    try:
        opened = session.stats()
        steps = list(session.generate(ids, t.max_tokens))
        stats = json.loads(json.dumps(asdict(minus(session.stats(), opened))))
    finally:
        session.close()
    theirs = json.loads(json.dumps(through_the_door.stats))
    assert list(through_the_door.token_ids) == [i for s in steps for i in s.tokens]
    assert theirs["drafts"] == stats["drafts"]
    for pool in ("experts", "draft_experts"):
        assert theirs[pool] == stats[pool]
    for name in ("reads", "read_bytes", "errors"):
        assert theirs["ssd"][name] == stats["ssd"][name]


def test_every_figure_is_there_and_what_was_counted_is_a_number(done: RunResult) -> None:
    assert set(done.figures) == {f.name for f in FIGURES}
    assert [n for n, v in done.figures.items() if v is None] == []
    assert done.ids_sha256 == hashlib.sha256(b"".join(i.to_bytes(4, "little") for i in done.token_ids)).hexdigest()
    assert sum(i * n for i, n in enumerate(done.depth_counts)) == done.stats["drafts"]["proposed"] > 0
    assert done.stats["throughput"]["reused_tokens"] == 0


def test_the_parts_of_the_time_add_up_to_what_is_seen_from_outside() -> None:
    long = run_here(task(prompt_tokens=200, max_tokens=40))
    left = long.figures["unexplained_share"]
    assert left is not None
    assert -0.001 <= left <= MOST_UNEXPLAINED


def test_a_prompt_and_reply_that_do_not_fit_are_refused_before_the_prompt() -> None:
    with pytest.raises(
        UsageError, match=r"24 prompt tokens and 60 more do not fit the context of 64.*or raise --context"
    ):
        run_here(task(replace(SMALL, context=64), max_tokens=60))


def test_a_context_that_is_the_models_most_is_not_to_be_raised() -> None:
    with pytest.raises(UsageError) as caught:
        run_here(task(max_tokens=1 << 20))
    assert caught.value.hint == "Lower --prompt-tokens or --max-tokens."


def test_dropping_the_page_cache_says_what_was_done() -> None:
    said = run_here(task(max_tokens=2, drop_page_cache=True)).page_cache
    assert said.startswith("dropped" if hasattr(os, "posix_fadvise") else "not dropped")


def test_dropping_the_page_cache_covers_the_experts_of_a_packed_folder(tmp_path: Path) -> None:
    done = pack(MODEL, tmp_path / "packed")
    said = run_here(task(replace(SMALL, model=str(done.folder)), max_tokens=2, drop_page_cache=True)).page_cache
    files = [p for p in done.folder.rglob("*") if p.is_file()]
    assert said.startswith("not ") or f"({len(files)} files, {sum(p.stat().st_size for p in files):,} bytes)" in said


# ---- figures


def test_tokens_that_come_together_are_no_time_apart() -> None:
    assert token_gaps([(1.0, 1), (1.5, 2), (3.5, 1)]) == [0.0, 0.5, 2.0]
    assert token_gaps([]) == token_gaps([(1.0, 1)]) == []


def test_figures_are_the_plain_arithmetic_of_the_counters() -> None:
    stats = EngineStats(
        throughput=ThroughputStats(
            requests=2, prefill_tokens=100, prefill_s=2.0, generated_tokens=12, decode_s=5.0, ttft_s=2.1
        ),
        drafts=DraftStats(rounds=4, proposed=8, accepted=6, committed=10),
        experts=ExpertStats(misses=99, plain_misses=3, verify_misses=20, plain_bytes=30, verify_bytes=240),
        draft_experts=ExpertStats(misses=7, draft_misses=7, draft_bytes=84),
        timing=TimingStats(
            wall_s=7.2, prefill_s=2.0, plain_s=1.0, draft_s=1.0, verify_s=2.0, rewind_s=1.0, other_s=0.2
        ),
    )
    found = figures_of(
        stats, [[(2.1, 1)], [(5.1, 1), (10.1, 9)]], 7.5, {"peak_rss_bytes": 1.0, "load_s": 1.0, "cpu_s": 1.0}
    )
    assert found["prefill_tok_s"] == 50
    assert found["decode_tok_s"] == 2
    assert found["acceptance"] == 0.75
    assert found["tokens_per_round"] == 2.5
    assert found["loads_per_token"] == 30 / 12
    assert [found[f"{kind}_bytes_per_token"] for kind in ("plain", "verify", "draft")] == [2.5, 20, 7]
    assert found["unexplained_share"] == pytest.approx(0.3 / 7.5)
    assert (found["gap_p50_s"], found["gap_p95_s"]) == (0.0, 5.0)


def test_a_run_that_made_nothing_has_no_rates() -> None:
    found = figures_of(EngineStats(), [], 0.0, {"peak_rss_bytes": 1.0, "load_s": 0.0, "cpu_s": 0.0})
    for name in ("prefill_tok_s", "decode_tok_s", "gap_p50_s", "hit_rate", "page_cache_share", "ssd_p50_s", "ttft_s"):
        assert found[name] is None


# ---- workloads


def test_conversations_are_held_like_a_chat_until_enough_was_said() -> None:
    chat = load_workload("chat")
    assert chat.conversations[0][0]
    report = measure(
        Bench(parse_arms(["mtp=off", "mtp=fixed"], SMALL, read), chat, max_tokens=40, runs=1), run=run_here
    )
    off, fixed = report.arms
    (run,) = off.runs
    assert fixed.same_ids
    assert len(run.token_ids) == run.stats["throughput"]["generated_tokens"] == 40
    assert run.stats["throughput"]["requests"] >= 1
    assert report.prompt_tokens == 0


def test_every_reply_of_a_conversation_is_asked_with_what_was_said_before() -> None:
    config = EngineConfig(memory_limit="4 GiB", direct_io="off", context=512, mtp="off")
    found = run_here(RunTask(asdict(config), "", 0, 60, conversations=(("Hello", "My name is Ann."), ("Hello",) * 9)))
    throughput = found.stats["throughput"]
    assert throughput["requests"] > 2
    assert throughput["reused_tokens"] > 0
    assert len(found.token_ids) == throughput["generated_tokens"] == 60
    assert found.finish_reason == "length"


@pytest.mark.parametrize("name", ["code", "novel"])
def test_bundled_texts_are_cut_to_the_token(name: str) -> None:
    index = open_checkpoint(MODEL)
    tokenizer = Tokenizer.load(MODEL, index.config, index.generation_config)
    for tokens in (1, 17, 4096):
        assert len(tokenizer.encode(prompt_for(load_workload(name), str(MODEL), tokens))) == tokens


def test_a_file_of_ones_own_is_a_workload(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("Überall Äpfel 🍎. " * 20, encoding="utf-8-sig")
    found = load_workload(str(path))
    assert found.name == str(path)
    assert found.text.startswith("Über")
    assert prompt_for(found, str(MODEL), 21)


def test_a_file_never_goes_by_the_name_of_another_or_of_a_bundled_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a/x.txt", "b/x.txt", "a/code"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert [load_workload(n).name for n in ("a/x.txt", "b/x.txt", "a/code", "code")] == [
        "a/x.txt", "b/x.txt", "a/code", "code",
    ]  # fmt: skip


def test_no_more_of_a_text_is_encoded_than_its_prompt_needs() -> None:
    index = open_checkpoint(MODEL)
    codec = Tokenizer.load(MODEL, index.config, index.generation_config)
    seen: list[int] = []

    class Counting:
        decode = codec.decode

        def encode(self, text: str) -> list[int]:
            seen.append(len(text))
            return codec.encode(text)

    text = load_workload("novel").text
    whole = " " * 100_000 + text * (1 + 2_000_000 // len(text))
    assert cut(Counting(), Workload("long", text * (1 + 2_000_000 // len(text))), 20)  # type: ignore[arg-type]
    assert max(seen) < 20_000
    assert len(codec.encode(cut(codec, Workload("spaces first", whole), 5000))) == 5000


def test_a_text_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "_MOST_BYTES", 1 << 20)
    with pytest.raises(UsageError, match="/dev/zero has more than 1 MiB"):
        load_workload("/dev/zero")


def test_texts_that_cannot_serve_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(UsageError, match="not UTF-8"):
        load_workload(str(tmp_path / "latin"))
    with pytest.raises(UsageError, match="no workload 'poem'"):
        load_workload("poem")
    with pytest.raises(UsageError, match="cannot be read"):
        load_workload(str(tmp_path))
    with pytest.raises(UsageError, match=r"'a' has 3 tokens.*4 was asked"):
        prompt_for(Workload("a", "xyz"), str(MODEL), 4)
    with pytest.raises(UsageError, match="has 0 tokens"):
        prompt_for(Workload("a", ""), str(MODEL), 1)
    with pytest.raises(CheckpointError):
        prompt_for(Workload("a", "xyz"), "/nowhere/at/all", 1)


# ---- arms


def test_an_arm_sets_what_it_names_and_leaves_the_rest() -> None:
    off, fixed, full = parse_arms(["mtp=off", "mtp=fixed, max_draft=5", "offload.expert_cache=50 %"], SMALL, read)
    assert off.config == replace(SMALL, mtp="off")
    assert fixed.config == replace(SMALL, mtp="fixed", max_draft=5)
    assert fixed.name == "mtp=fixed,max_draft=5"
    assert fixed.changes == {"mtp.mode": "fixed", "mtp.max_draft": 5}
    assert full.config == replace(SMALL, expert_cache="50 %")


def test_without_arms_the_settings_are_measured_as_they_are() -> None:
    (only,) = parse_arms([], SMALL, read)
    assert (only.config, only.changes) == (SMALL, {})


def test_the_same_arm_again_has_a_name_of_its_own() -> None:
    assert [a.name for a in parse_arms(["mtp=off"] * 3, SMALL, read)] == ["mtp=off", "mtp=off (2)", "mtp=off (3)"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_drft=2", "did you mean 'max_draft'"),
        ("mode=off", "did you mean 'mtp'"),
        ("speed=11", "there is no setting 'speed'"),
        ("", "there is no setting ''"),
        ("mtp", "gives mtp no value"),
        ("mtp=", "gives mtp no value"),
        ("mtp=off,", "there is no setting ''"),
        ("mtp=off,mtp=auto", "sets mtp.mode twice"),
        ("temperature=1", "greedy"),
    ],
)
def test_a_nonsense_arm_is_one_sentence(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_arms([text], SMALL, read)


def test_a_value_that_a_setting_does_not_take_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'off'"):
        parse_arms(["mtp=ofn"], SMALL, read)


# ---- the whole


def test_arms_take_turns_forwards_and_backwards() -> None:
    assert list(order_of(2, 4)) == [0, 1, 1, 0, 0, 1, 1, 0]
    assert list(order_of(3, 2)) == [0, 1, 2, 2, 1, 0]


def test_a_report_has_the_median_the_range_and_the_ratio(done: RunResult) -> None:
    speeds = iter([10.0, 11.0, 14.0, 12.0, 8.0, 12.0])
    ids = iter(["a", "a", "b", "a", "a", "a"])

    def run(t: RunTask, tell: Callable[[Now], None]) -> RunResult:
        tell(Now("decoding", 1, 6, "tokens"))
        return replace(done, figures={**done.figures, "decode_tok_s": next(speeds)}, ids_sha256=next(ids))

    told: list[tuple[int, str, bool]] = []
    arms = parse_arms(["mtp=off", "mtp=fixed"], SMALL, read)
    bench = Bench(arms, load_workload("novel"), 16, 6, runs=3)
    report = measure(bench, lambda here, now: told.append((here.number, here.arm, now is None)), run)
    off, fixed = report.arms
    # In order: off 10, fixed 11, fixed 14, off 12, off 8, fixed 12.
    assert report.order == ("mtp=off", "mtp=fixed", "mtp=fixed", "mtp=off", "mtp=off", "mtp=fixed")
    assert off.spreads["decode_tok_s"] is not None
    assert asdict(off.spreads["decode_tok_s"]) == {"median": 10.0, "low": 8.0, "high": 12.0}
    assert off.ratio is None
    assert fixed.ratio is not None
    assert fixed.ratio.median == pytest.approx(14 / 12)
    assert fixed.ratio.low == pytest.approx(11 / 10)
    assert fixed.ratio.high == pytest.approx(12 / 8)
    assert (off.repeats, fixed.repeats, fixed.same_ids) == (True, False, True)
    assert told[:3] == [(1, "mtp=off", True), (1, "mtp=off", False), (2, "mtp=fixed", True)]
    assert json.loads(json.dumps(report.as_json()))["arms"][1]["config"]["mtp.mode"] == "fixed"


@pytest.mark.parametrize("name", ["prompt_tokens", "max_tokens", "runs"])
def test_nothing_is_measured_less_than_once(name: str) -> None:
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} must be at least 1"):
        Bench(parse_arms([], SMALL, read), load_workload("code"), **{name: 0})


# ---- children


def test_a_child_gives_the_same_as_a_run_here(done: RunResult) -> None:
    seen: list[Now] = []
    found = child.run_in_child(task(), seen.append)
    assert found.token_ids == done.token_ids
    assert found.depth_counts == done.depth_counts
    assert found.figures["hit_rate"] == done.figures["hit_rate"]
    assert seen


def test_an_error_of_a_child_is_the_error_of_the_run() -> None:
    with pytest.raises(CheckpointError, match="There is no folder"):
        child.run_in_child(RunTask({"model": "/nowhere/at/all"}, "x", 1, 1))


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[subprocess.Popen[bytes]]]:
    """`children(code)`: children run this code instead; returns those that were started."""
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def install(code: str) -> list[subprocess.Popen[bytes]]:
        def popen(_: list[str], **how: Any) -> subprocess.Popen[bytes]:
            started.append(real([sys.executable, "-c", code], **how))
            return started[-1]

        monkeypatch.setattr(child.subprocess, "Popen", popen)
        return started

    return install


def test_a_child_that_dies_is_one_sentence(children: Callable[[str], Any]) -> None:
    children("import os, sys; print('the last word', file=sys.stderr, flush=True); os.kill(os.getpid(), 9)")
    with pytest.raises(QwenChatError, match=r"ended by SIGKILL\. The last it said: the last word") as caught:
        child.run_in_child(RunTask({}, "x", 1, 1))
    assert "Memory" in caught.value.hint
    children("raise SystemExit(3)")
    with pytest.raises(QwenChatError, match="ended with status 3 and no result"):
        child.run_in_child(RunTask({}, "x", 1, 1))


def test_an_interrupted_run_leaves_no_child(children: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_ENDS_WITHIN_S", 0.2)
    now = json.dumps({"now": asdict(Now("prompt", 1, 2, "tokens"))})
    started = children(f"import time; print({now!r}, flush=True); time.sleep(60)")

    def interrupt(_: Now) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        child.run_in_child(RunTask({}, "x", 1, 1), interrupt)
    assert started[0].returncode == -signal.SIGKILL


def test_a_child_whose_parent_is_gone_ends() -> None:
    left = subprocess.Popen(
        [sys.executable, "-m", "qwen_chat_mlx.engine.bench.child"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert left.stdin is not None
    left.stdin.write(json.dumps(asdict(task(prompt_tokens=2000, max_tokens=2000))).encode() + b"\n")
    left.stdin.flush()
    time.sleep(0.5)
    left.stdin.close()
    assert left.wait(60) == 1
