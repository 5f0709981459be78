"""The diagnosis: the engine's own plan, a disk that was really read, arithmetic that holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qwen_chat_mlx.engine.bench.doctor import diagnose, expected_hit_rate
from qwen_chat_mlx.engine.config import EngineConfig
from qwen_chat_mlx.engine.errors import CheckpointError
from qwen_chat_mlx.engine.loader import survey

MODEL = Path(__file__).parents[1] / "fixtures" / "fp8-1"


def test_the_plan_shown_is_the_engines_own() -> None:
    config = EngineConfig(model=str(MODEL), expert_cache="25 %", memory_limit="4 GiB")
    found = diagnose(config)
    assert found.plan == survey(config).plan
    assert found.has_mtp


def test_the_disk_is_read_and_the_expectation_follows_from_it() -> None:
    found = diagnose(EngineConfig(model=str(MODEL), expert_cache="25 %", memory_limit="4 GiB"))
    assert found.disk is not None
    assert found.expected is not None
    assert found.disk.reads >= 16
    asked = found.layers * found.top_k
    assert found.expected.cycles == found.plan.slots / asked
    assert found.expected.misses_a_token == pytest.approx(asked * (1 - found.expected.hit_rate))
    assert found.expected.tokens_a_s == pytest.approx(1 / found.expected.disk_s_a_token)


def test_with_all_experts_in_memory_the_disk_sets_no_limit() -> None:
    found = diagnose(EngineConfig(model=str(MODEL), expert_cache="100 %", memory_limit="4 GiB"))
    assert found.expected is not None
    assert (found.expected.hit_rate, found.expected.tokens_a_s) == (1.0, None)


def test_more_slots_never_lower_the_expected_hit_rate() -> None:
    rates = [expected_hit_rate(i / 10) for i in range(300)]
    assert rates == sorted(rates)
    assert 0 <= rates[0] <= rates[-1] <= 1


def test_a_wrong_folder_is_the_usual_error() -> None:
    with pytest.raises(CheckpointError):
        diagnose(EngineConfig(model="/nowhere/at/all"))


def test_the_verb_prints_both_forms(capsys: pytest.CaptureFixture[str]) -> None:
    from qwen_chat_mlx.tui.cli import main

    assert main(["doctor", "--model", str(MODEL), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["slots"] > 0
    assert main(["doctor", "--model", str(MODEL), "--no-disk"]) == 0
    assert "expert slots" in capsys.readouterr().out
