"""Panels in all their states and sizes, without a screen."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import qwen_chat_mlx.tui.panels as folder
from qwen_chat_mlx.engine.events import MtpChanged, StatsTaken
from qwen_chat_mlx.engine.fake import FakeDisk, FakeEngine, FakeReply, FakeScript
from qwen_chat_mlx.engine.stats import (
    ContextStats,
    DraftStats,
    EngineStats,
    ExpertStats,
    HistogramRecorder,
    MemoryStats,
    MtpStats,
    SsdStats,
    ThroughputStats,
    TimingStats,
)
from qwen_chat_mlx.tui.panels.base import Judge, Panel, View, find_panels
from qwen_chat_mlx.tui.panels.draw import bar, ramp, spark
from qwen_chat_mlx.tui.state import ChatState
from qwen_chat_mlx.tui.widgets.metrics import SidePanel

LONG = " ".join(f"word{i}" for i in range(3000))


def run(script: FakeScript, seconds: float, then: Callable[[FakeEngine], None] | None = None, more: float = 0) -> View:
    """The panels' view after a prompt and some seconds over the scripted engine."""
    state = ChatState(lambda: engine.now)
    engine = FakeEngine(state.apply, script, manual=True)
    engine.advance(5)
    if seconds:
        engine.submit(state.ask("go"))
        engine.advance(seconds)
    if then is not None:
        then(engine)
        engine.advance(more)
    return View(state, engine.now)


def text(panel_id: str, view: View, width: int = 29) -> str:
    panel = next(p for p in find_panels() if p.id == panel_id)
    return "\n".join(r.plain for r in panel.side(view, width))


def long(**more: Any) -> FakeScript:
    reply = {k: more.pop(k) for k in ("accept", "park_after") if k in more}
    return replace(FakeScript(replies=(FakeReply(LONG, **reply),)), **more)


MTP: dict[str, tuple[FakeScript, float, list[str]]] = {
    "before the first token": (long(), 0, ["WARM", "accept —", "— tok/round", "0/32 drafts seen"]),
    "on": (long(), 30, ["● ON k=3", "accept ", "tok/round", "1 █", "2 █", "3 █"]),
    "warm": (long(warm_drafts=10**6), 5, ["◐ WARM k=3", "drafts seen"]),
    "parked": (long(park_after=20), 20, ["‖ PARKED", "a plain step is faster"]),
    "fallback": (long(accept=(0.0,)), 30, ["▲ FALLBACK", "32 rounds in a row"]),
    "off": (long(mtp="off"), 5, ["○ OFF (you)", "switched off by you"]),
    "unavailable": (long(model=replace(FakeScript().model, has_mtp=False)), 5, ["– n/a", "no MTP layer"]),
    "fixed": (long(mtp="fixed"), 30, ["ON fixed"]),
}


@pytest.mark.parametrize("name", MTP)
def test_every_state_of_drafting_has_its_words(name: str) -> None:
    script, seconds, words = MTP[name]
    shown = " ".join(text("mtp_draft", run(script, seconds)).split())
    for word in words:
        assert word in shown, shown


def test_no_two_states_of_drafting_look_the_same() -> None:
    shown = {text("mtp_draft", run(script, seconds)) for script, seconds, _ in MTP.values()}
    assert len(shown) == len(MTP)


def test_the_fallback_counter_fills_toward_its_limit_and_trips() -> None:
    filling = text("fallback", run(long(accept=(0.0,)), 3))
    assert "▮" in filling
    assert "/32" in filling
    tripped = text("fallback", run(long(accept=(0.0,)), 30))
    assert "32/32" in tripped
    assert "tripped 1×" in tripped
    assert "this reply" in tripped


def test_the_cache_goes_from_cold_to_hot() -> None:
    cold = run(long(disk=FakeDisk(warm_steps=400)), 3)
    hot = run(long(), 30)
    panel = next(p for p in find_panels() if p.id == "expert_cache")
    assert panel.read(cold).key.level == "bad"
    assert panel.read(hot).key.level in ("good", "fair")
    assert "GiB" in text("expert_cache", hot)


def test_hits_against_the_best_possible_are_said_once_they_are_known() -> None:
    view = run(long(), 30)
    assert "of best" not in text("expert_cache", view)
    stats = view.state.stats
    assert stats is not None
    view.state.stats = replace(stats, experts=replace(stats.experts, of_best=0.97))
    shown = text("expert_cache", View(view.state, view.now))
    assert "97% of best" in shown
    recent = view.recent
    loads = recent.experts.decode_misses + recent.draft_experts.decode_misses
    made = recent.drafts.committed + recent.drafts.plain_steps
    assert loads > 0
    assert f"{loads / made:.0f}/tok" in shown


@pytest.mark.parametrize(
    ("disk", "words"),
    [
        (FakeDisk(), ["p50 0.", "GB/s", "stall", "page cache n/a"]),
        (FakeDisk(median_ms=9.0), ["p95 2", "ms"]),
        (FakeDisk(cached_share=0.42), ["page cache 42%"]),
        (FakeDisk(reads=False), ["no reads: every expert", "in memory"]),
    ],
)
def test_the_disk_is_told_fast_slow_cached_or_idle(disk: FakeDisk, words: list[str]) -> None:
    shown = " ".join(text("ssd_reads", run(long(disk=disk), 10)).split())
    for word in words:
        assert word in shown, shown


def test_a_slow_disk_is_marked_bad_and_a_fast_one_good() -> None:
    panel = next(p for p in find_panels() if p.id == "ssd_reads")
    assert panel.read(run(long(disk=FakeDisk(median_ms=12.0)), 10)).key.level == "bad"
    panel = next(p for p in find_panels() if p.id == "ssd_reads")
    assert panel.read(run(long(), 10)).key.level == "good"


@pytest.mark.parametrize(
    "panel_id", ["decode", "expert_cache", "ssd_reads", "context", "memory", "mtp_draft", "fallback"]
)
@pytest.mark.parametrize("stats", [None, EngineStats(memory=MemoryStats(plan_bytes=8 << 30, limit_bytes=9 << 30))])
def test_nothing_is_a_dash_and_never_a_zero_before_the_first_sample(panel_id: str, stats: EngineStats | None) -> None:
    view = View(ChatState(lambda: 5.0, stats=stats), 5.0)
    shown = text(panel_id, view)
    assert "—" in shown or "waiting" in shown or "no sample" in shown or "no reads yet" in shown
    assert " 0 B" not in shown
    assert "0.0" not in shown
    assert "0%" not in shown


@pytest.mark.parametrize("width", [8, 20, 29, 60, 140])
def test_rows_keep_to_their_width_in_every_state(width: int) -> None:
    for script, seconds, _ in MTP.values():
        view = run(script, seconds)
        for panel in find_panels():
            assert all(r.cell_length <= width for r in panel.side(view, width))


def test_an_old_sample_is_dimmed_and_says_its_age() -> None:
    view = run(long(), 10)
    view = View(view.state, view.now + 4.2)
    assert "· 4 s ago" in text("expert_cache", view)


def test_a_switch_leaves_a_tick_on_the_graphs() -> None:
    view = run(long(), 10, lambda e: e.set_mtp("off"), 2)
    assert "┊" in text("decode", view)


def test_every_advertised_number_is_there_within_64_tokens() -> None:
    view = run(long(), 3.2)
    assert view.state.turns[-1].tokens <= 64
    side = SidePanel()
    side.panels = find_panels()
    side.view = view
    shown = "\n".join(r.plain for r in side.rows(29, 60))
    assert "—" not in shown, shown


@pytest.mark.parametrize("height", [1, 5, 12, 20, 26, 33, 60])
def test_the_column_keeps_to_its_height_and_to_what_matters_most(height: int) -> None:
    side = SidePanel()
    side.panels = find_panels()
    side.view = run(long(), 10)
    rows = [r.plain for r in side.rows(29, height)]
    assert len(rows) <= height
    if height >= 26:
        for title in ("MTP DRAFT", "FALLBACK", "EXPERT CACHE", "SSD READS"):
            assert any(r.startswith(title) for r in rows)
    assert rows[-1].strip()


def test_ascii_needs_no_other_character() -> None:
    for script, seconds, _ in MTP.values():
        view = run(script, seconds)
        view = View(view.state, view.now, ascii=True)
        for panel in find_panels():
            drawn = "".join(r.plain for r in [*panel.side(view, 40), panel.strip(view, 8), panel.badge(view)])
            assert drawn.replace("—", "-").replace("·", "-").isascii(), drawn


def test_order_and_hiding_follow_the_config() -> None:
    ids = [p.id for p in find_panels()]
    assert ids[:2] == ["decode", "mtp_draft"]
    assert [p.id for p in find_panels(["memory", "ssd_reads"])][:2] == ["memory", "ssd_reads"]
    assert "memory" not in [p.id for p in find_panels(hide=["memory"])]


def test_a_new_panel_is_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weather.py").write_text(
        "from qwen_chat_mlx.tui.panels.base import Cell, Panel, Reading, Row\n"
        "class Weather(Panel):\n"
        "    title, short, order = 'WEATHER', 'sky', 5\n"
        "    def read(self, view):\n"
        "        return Reading(Cell('blue'), (Row((Cell('21', '°C'),)),))\n"
    )
    monkeypatch.setattr(folder, "__path__", [*folder.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "qwen_chat_mlx.tui.panels.weather", raising=False)
    found = next(p for p in find_panels() if p.id == "weather")
    view = View(ChatState(lambda: 0.0), 0.0)
    assert [r.plain.strip() for r in found.side(view, 20)] == ["WEATHER", "21 °C"]
    assert found.strip(view, 8).plain == "sky blue"
    sys.modules.pop("qwen_chat_mlx.tui.panels.weather", None)


def test_a_file_without_a_panel_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nothing_here.py").write_text("x = 1\n")
    monkeypatch.setattr(folder, "__path__", [*folder.__path__, str(tmp_path)])
    with pytest.raises(TypeError, match="nothing_here"):
        find_panels()


def test_thresholds_have_slack_so_that_an_edge_does_not_flicker() -> None:
    judge = Judge(0.2, 0.5)
    assert [judge.level(v) for v in (0.6, 0.499, 0.48, 0.505, 0.1, 0.21, 0.22)] == [
        "good", "good", "fair", "good", "bad", "bad", "fair",
    ]  # fmt: skip
    assert judge.level(None) == ""


def test_graphs_have_fixed_ends() -> None:
    assert spark([0.8, 0.81, 0.8], 0, 1).plain == "▇▇▇"
    assert spark([None, 0.0, 1.0, 2.0, float("nan")], 0, 1).plain == " ▁██ "
    assert spark([0.1, 1.0, 10.0, 100.0], 0.1, 100.0, log=True).plain == "▁▃▆█"
    assert spark([0.5, 0.5], 0, 1, ticks=[1]).plain == "▅┊"
    assert bar(None, 4).plain == "    "
    assert bar(0.5, 4).plain == "██  "
    assert ramp(0, 4, style="").plain == "▯▯▯▯"
    assert ramp(0.01, 4, style="").plain == "▮▯▯▯"
    assert ramp(1, 4, style="").plain == "▮▮▮▮"


def test_panels_say_what_they_are() -> None:
    for panel in find_panels():
        assert panel.title == panel.title.upper()
        assert isinstance(panel, Panel)
        assert sys.modules[type(panel).__module__].__doc__


def extreme() -> EngineStats:
    """Numbers as long as they get."""
    times = HistogramRecorder()
    for _ in range(1000):
        times.record(59.9)
    many = (10_000_000,) * 5
    return EngineStats(
        throughput=ThroughputStats(
            prefill_tokens=10_000_000, prefill_s=800.0, generated_tokens=12_345, decode_s=10.0, ttft_s=36_000.0
        ),
        drafts=DraftStats(
            rounds=10_000_000, proposed=50_000_000, accepted=49_000_000, committed=59_000_000, fallbacks=12_345,
            proposed_at=many, accepted_at=many,
        ),
        mtp=MtpStats("fixed", "ON", "always 5 drafts a round", 5, 31, 32),
        experts=ExpertStats(
            hits=10**9, misses=10**9, evictions=10**9, resident_bytes=1023 * 2**30, budget_bytes=1023 * 2**30
        ),
        ssd=SsdStats(
            reads=10**6, read_bytes=10**13, busy_s=10.0, cached_bytes=10**12, judged_bytes=10**12, latency=times.copy(),
            buffered_reason="the file system has no direct I/O",
        ),
        memory=MemoryStats(
            rss_bytes=1023 * 2**30, plan_bytes=1023 * 2**30, peak_bytes=1023 * 2**30, major_faults=123_456_789
        ),
        context=ContextStats(used=1_048_575, limit=1_048_576),
        timing=TimingStats(ssd_wait_s=1000.0),
    )  # fmt: skip


@pytest.mark.parametrize("state_word", ["ON", "PARKED", "FALLBACK", "OFF", "UNAVAILABLE"])
def test_no_number_and_no_unit_is_ever_cut_at_the_side(state_word: Any) -> None:
    state = ChatState(lambda: 100.0)
    state.apply(replace(FakeScript().model, context=1_048_576))
    state.ask("go")
    state.turns[-1].prompt_tokens = 1_048_000
    why = "a draft costs 123.45 plain steps, and 100% are expected to stand, which is not worth it"
    state.apply(MtpChanged(0, "fixed", state_word, why))
    state.apply(StatsTaken(EngineStats(), 98.0))
    state.apply(StatsTaken(extreme(), 99.5))
    view = View(state, 100.0)
    shown = {p.id: [r.plain for r in p.side(view, 30)] for p in find_panels()}
    for rows in shown.values():
        assert max(len(r) for r in rows) <= 30, rows
        assert not any("…" in r for r in rows), rows
    words = {name: " ".join(" ".join(rows).split()) for name, rows in shown.items()}
    for name, wanted in {
        "decode": ["tok/s", "10 h 00 min", "prefill 12,500/s", "avg 1,234"],
        "expert_cache": ["miss ", "/round", "1023 / 1023 GiB", "evict ", "/s"],
        "ssd_reads": [
            "p50 ",
            "p99 ",
            " ms",
            "GB/s",
            "stall ",
            "page cache 100%",
            "not direct: page cache",
            "max 59900 ms",
        ],
        "memory": ["1023 / 1023 GiB", "mlx peak 1023 GiB", "page-ins 123.5M"],
        "context": ["1.0M/1.0M", "of the last prompt"],
        "mtp_draft": [why] if state_word not in ("ON",) else ["ON fixed k=5", "tok/round", "5 "],
        "fallback": ["tripped 12345×" if state_word != "UNAVAILABLE" else "n/a"],
    }.items():
        for word in wanted:
            assert word in words[name], (word, words[name])
