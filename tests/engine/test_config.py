"""Budgets of memory as they are written: what they mean, and what is said of those that cannot be used."""

import pytest

from qwen_chat_mlx.engine.config import Budget, EngineConfig, parse_budget
from qwen_chat_mlx.engine.errors import ConfigError


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("auto", Budget()),
        (" AUTO ", Budget()),
        (0, Budget(n_bytes=0)),
        ("7.5 GiB", Budget(n_bytes=15 << 29)),
        (".5kb", Budget(n_bytes=500)),
        ("100 TiB", Budget(n_bytes=100 << 40)),
        ("1 tb", Budget(n_bytes=10**12)),
        ("12 B", Budget(n_bytes=12)),
        ("1024 TiB", Budget(n_bytes=1 << 50)),
        ("12 %", Budget(share=0.12)),
        ("0%", Budget(share=0.0)),
    ],
)
def test_a_budget_is_a_size_a_share_or_auto(written, meant):
    assert parse_budget(written) == meant


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("", "KiB, MiB, GiB, TiB"),
        ("7 PiB", "KiB, MiB, GiB, TiB"),
        ("5 ib", "KiB, MiB, GiB, TiB"),
        ("nan", "KiB, MiB, GiB, TiB"),
        ("inf GiB", "KiB, MiB, GiB, TiB"),
        ("1e3 GiB", "KiB, MiB, GiB, TiB"),
        (-1, "KiB, MiB, GiB, TiB"),
        ("1025 TiB", "at most 1024 TiB"),
        ("9" * 400 + " GiB", "at most 1024 TiB"),
        (1 << 60, "at most 1024 TiB"),
        ("101 %", "a share of at most 100 %"),
        (True, "a size such as"),
        (0.5, "a size such as"),
    ],
)
def test_a_budget_that_cannot_be_used_is_told_what_is_accepted(written, why):
    with pytest.raises(ConfigError, match=why) as e:
        EngineConfig(expert_cache=written)
    assert e.value.key == "offload.expert_cache"


@pytest.mark.parametrize("written", [0, "0 GiB", "12 %", "-1"])
def test_a_limit_of_memory_is_a_size_above_zero(written):
    with pytest.raises(ConfigError, match="a size such as"):
        EngineConfig(memory_limit=written)


def test_long_values_are_shortened_and_a_context_names_auto():
    with pytest.raises(ConfigError, match=r"a whole number from 1 to 4194304") as e:
        EngineConfig(max_tokens="9" * 5000)
    assert len(e.value.message) < 400
    with pytest.raises(ConfigError, match=r"model\.context = 10 .* 'auto' or a whole number from 64"):
        EngineConfig(context=10)


def test_a_share_of_a_number_of_slots_is_that_many_slots():
    slot = 4_915_200
    assert [parse_budget(f"{n} %").resolve(100 * slot, 0) // slot for n in range(101)] == list(range(101))


def test_a_model_may_be_named_by_a_path(tmp_path):
    assert EngineConfig(model=tmp_path / "model").model == str(tmp_path / "model")
