"""Differences of counters: a window knows its own durations, not those before it."""

from __future__ import annotations

import pytest

from qwen_chat_mlx.engine.stats import HistogramRecorder


def test_the_longest_duration_of_a_window_is_its_own() -> None:
    recorder = HistogramRecorder()
    recorder.record(2.0)
    before = recorder.copy()
    assert recorder.copy().minus(before).max_s == 0.0
    recorder.record(0.0101)
    window = recorder.copy().minus(before)
    assert window.total == 1
    assert window.max_s == pytest.approx(0.0101, rel=0.0625)
    recorder.record(3.0)
    assert recorder.copy().minus(before).max_s == 3.0


@pytest.mark.parametrize("q", [0.0, 0.5, 0.99, 1.0])
def test_no_quantile_is_above_the_longest_duration(q: float) -> None:
    recorder = HistogramRecorder()
    recorder.record(0.0101)
    for recorded in (recorder.copy(), recorder.copy().minus(HistogramRecorder().copy())):
        quantile = recorded.quantile_s(q)
        assert quantile is not None
        assert quantile <= recorded.max_s
