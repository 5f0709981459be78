"""The trace format: what is written is what is read, damage is told with its line, a full disk ends it quietly."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen_chat_mlx.engine import trace
from qwen_chat_mlx.engine.errors import UsageError
from qwen_chat_mlx.engine.trace import Routes, StepRecord, TraceHeader, TraceWriter, read_trace

HEADER = TraceHeader(layers=2, experts=8, top_k=2, fingerprint="abc", slots=6, policy="decay", settings={"mtp": "off"})

rows = st.integers(1, 4).flatmap(
    lambda k: st.lists(st.lists(st.integers(0, 7), min_size=k, max_size=k, unique=True), min_size=1, max_size=4)
)
lines = st.lists(
    st.one_of(
        st.builds(
            StepRecord, st.integers(0, 99), st.integers(0, 99), st.integers(0, 4), st.integers(0, 3), st.just(0),
            st.dictionaries(st.sampled_from(["plain", "draft"]), st.sampled_from([0.5, 0.000001, 12.25])),
        ),
        st.builds(
            lambda layer, pool, *rest: Routes(rest[0], 0 if pool == "draft" else layer, *rest[1:], pool),
            st.integers(0, 1), st.sampled_from(["trunk", "draft"]), st.integers(0, 99), st.sampled_from(["prompt", "plain", "verify", "draft"]),
            rows.map(lambda rs: tuple(tuple(sorted(r)) for r in rs)),
        ),
    ),
    max_size=20,
)  # fmt: skip


@given(lines=lines)
@settings(max_examples=30, deadline=None)
def test_what_is_written_is_what_is_read(tmp_path_factory: pytest.TempPathFactory, lines: list) -> None:
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    with TraceWriter(path, HEADER) as writer:
        for line in lines:
            if isinstance(line, StepRecord):
                writer.step(line)
            else:
                writer.routes(line.step, line.layer, line.kind, line.rows, line.pool)
    writer.close()
    assert not writer.error
    found = read_trace(path)
    assert found.header == HEADER
    assert found.steps == tuple(x for x in lines if isinstance(x, StepRecord))
    assert found.routes == tuple(x for x in lines if isinstance(x, Routes))


def test_rows_are_sorted_and_long_prompts_keep_their_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "PROMPT_ROWS_KEPT", 2)
    with TraceWriter(tmp_path / "t", HEADER) as writer:
        writer.routes(0, 1, "prompt", [[1, 0], [3, 2], [7, 4]])
    assert read_trace(tmp_path / "t").routes == (Routes(0, 1, "prompt", ((2, 3), (4, 7))),)


def test_a_line_cut_short_by_a_crash_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with TraceWriter(path, HEADER) as writer:
        writer.step(StepRecord(1, 5, 1))
        writer.step(StepRecord(2, 6, 1))
    path.write_bytes(path.read_bytes()[:-7])
    assert [s.step for s in read_trace(path).steps] == [1]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("nonsense", "it is not JSON"),
        ("[1]", "not an object"),
        pytest.param("[" * 200_000, "it is not JSON", id="deep"),
        ("{}", "is missing|missing 3 required"),
        ('{"step":1,"at":2,"tokens":-1}', "tokens is -1"),
        ('{"step":1,"at":2,"tokens":1,"odd":3}', "odd"),
        ('{"step":1,"at":2,"tokens":1,"seconds":3}', "seconds are not by phase"),
        ('{"routes":"plain","step":1,"layer":2,"rows":[]}', "layer is 2"),
        ('{"routes":"plain","pool":"draft","step":1,"layer":1,"rows":[[0]]}', "layer is 1"),
        ('{"routes":"plain","step":1,"layer":1,"rows":[]}', "a row without an expert, or no row"),
        ('{"routes":"plain","step":1,"layer":1,"rows":[[0],[]]}', "a row without an expert, or no row"),
        ('{"routes":"prompt","step":1,"layer":1,"rows":[[0,1],[2]]}', "not of one length"),
        ('{"routes":"plain","step":1,"layer":1,"rows":[[8]]}', "expert is 8"),
        ('{"routes":"plain","step":1,"layer":1,"rows":[[3,3]]}', "twice"),
        ('{"routes":"plain","step":1,"layer":1,"rows":[5]}', "iterable"),
        ('{"routes":"dance","step":1,"layer":1,"rows":[]}', "dance"),
        ('{"routes":"plain","step":1,"layer":1,"rows":[],"pool":"sea"}', "sea"),
        ('{"routes":"plain","layer":1,"rows":[]}', "'step' is missing"),
    ],
)
def test_damage_is_told_with_its_line(tmp_path: Path, line: str, what: str) -> None:
    path = tmp_path / "t"
    with TraceWriter(path, HEADER) as writer:
        writer.step(StepRecord(1, 5, 1))
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(UsageError, match=rf"line 3: .*({what})") as e:
        read_trace(path)
    assert e.value.hint


@pytest.mark.parametrize(
    "header",
    [
        '{"trace":2,"layers":1,"experts":1,"top_k":1}',
        '{"layers":1,"experts":1,"top_k":1}',
        '{"trace":1,"layers":1,"experts":1}',
        '{"trace":1,"layers":0,"experts":1,"top_k":1}',
        '{"trace":1,"layers":1,"experts":1,"top_k":2}',
        '{"trace":1,"layers":true,"experts":1,"top_k":1}',
        '{"trace":1,"layers":16384,"experts":16384,"top_k":8}',
        '{"trace":1,"layers":1,"experts":1,"top_k":1,"slots":"many"}',
        '{"trace":1,"layers":1,"experts":1,"top_k":1,"draft_slots":null}',
        '{"trace":1,"layers":1,"experts":1,"top_k":1,"policy":7}',
        '{"trace":1,"layers":1,"experts":1,"top_k":1,"settings":{"a":[[[]]]}}',
    ],
)
def test_another_file_is_refused_at_line_1(tmp_path: Path, header: str) -> None:
    (tmp_path / "t").write_text(header + "\n")
    with pytest.raises(UsageError, match="line 1"):
        read_trace(tmp_path / "t")


@pytest.mark.parametrize("text", ["hello", '{"trace":1,"laye'])
def test_a_file_that_ends_inside_its_first_line_is_no_trace_and_is_not_called_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / "t").write_text(text)
    with pytest.raises(UsageError, match="line 1: this is not a line of a trace"):
        read_trace(tmp_path / "t")


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="the system has no endless file")
def test_an_endless_line_is_not_read_to_its_end() -> None:
    with pytest.raises(UsageError, match=r"line 1: .*it is longer than 16 MiB"):
        read_trace("/dev/zero")


def test_empty_and_missing_files_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("")
    with pytest.raises(UsageError, match="empty"):
        read_trace(tmp_path / "t")
    with pytest.raises(UsageError, match="No such file"):
        read_trace(tmp_path / "none")
    with pytest.raises(UsageError, match="cannot be written"):
        TraceWriter(tmp_path / "none" / "t", HEADER)


def test_two_runs_do_not_write_into_one_file(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t", HEADER) as first:
        first.step(StepRecord(0, 5, 1))
        with pytest.raises(UsageError, match="Another run"):
            TraceWriter(tmp_path / "t", HEADER)
    assert len(read_trace(tmp_path / "t").steps) == 1
    TraceWriter(tmp_path / "t", HEADER).close()
    assert not read_trace(tmp_path / "t").steps


@pytest.mark.parametrize("text", ["{}", '{"model_type": "qwen4_exp"}', "\n", "a note"])
def test_a_file_that_holds_anything_but_a_trace_is_not_replaced(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="is there and holds no trace"):
        TraceWriter(path, HEADER)
    assert path.read_text() == text
    path.write_text("")
    TraceWriter(path, HEADER).close()
    assert read_trace(path).header == HEADER


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no full disk to offer")
@pytest.mark.parametrize("buffer", [1, 1 << 20])
def test_a_full_disk_ends_the_trace_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, buffer: int
) -> None:
    monkeypatch.setattr(trace, "_BUFFER_BYTES", 1024 if buffer == 1 else buffer)
    writer = TraceWriter("/dev/full", HEADER)
    for i in range(500):
        writer.step(StepRecord(i, i, 1))
    writer.close()
    writer.step(StepRecord(1, 1, 1))
    writer.close()
    assert writer.error == "The trace /dev/full ends early: No space left on device."
    assert caplog.messages == [writer.error]


def test_a_line_is_small(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "t", HEADER) as writer:
        writer.routes(1, 0, "plain", [[1, 2]])
    assert json.loads((tmp_path / "t").read_text().splitlines()[1]) == {
        "routes": "plain", "step": 1, "layer": 0, "rows": [[1, 2]],
    }  # fmt: skip
