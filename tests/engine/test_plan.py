"""The memory plan as arithmetic: what is counted, what budgets become, and what is refused with which numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from qwen_chat_mlx.engine.config import EngineConfig
from qwen_chat_mlx.engine.errors import MemoryPlanError
from qwen_chat_mlx.engine.machine import Machine
from qwen_chat_mlx.engine.plan import (
    GIB,
    MARKS,
    MIB,
    PROGRAM_BYTES,
    MemoryPlan,
    Needs,
    PoolNeeds,
    make_plan,
    size_text,
)

EXPERT_BYTES = 3 * 640 * 2560
"""One FP8 expert of the published model: a whole number of pages."""
RESIDENT = 9_900_000_000
"""Everything of it that is not an expert or a table row, in bfloat16."""


def needs(**changes: Any) -> Needs:
    """The published model in FP8, computed in bfloat16: 48 layers, 512 experts, 10 a token."""
    kv = 13 * 2 * (2 * 2 * 256 + 128 + 32)
    state = 36 * (4 * 48 * 128 * 128 + 3 * 10240 * 2) + 9 * 10240 * 2
    real = Needs(
        item_bytes=2, resident_bytes=RESIDENT, largest_bytes=248320 * 2560 * 2, kv_bytes_a_token=kv, state_bytes=state,
        wide_bytes=4 * 2560 * 2, logits_bytes=248320 * 4, score_bytes=24 * 4, expert_matrix_bytes=4 * EXPERT_BYTES, read_buffer_bytes=MIB,
        max_context=262144, layer_bytes=512 * EXPERT_BYTES,
        experts=PoolNeeds(48 * 512, EXPERT_BYTES, 10), draft=PoolNeeds(512, EXPERT_BYTES, 10),
    )  # fmt: skip
    return replace(real, **changes)


def plan(memory: str = "24 GiB", of: Needs | None = None, **settings: Any) -> MemoryPlan:
    return make_plan(
        EngineConfig(memory_limit=memory, **settings), of or needs(), Machine(limit_bytes=1 * GIB, total_bytes=64 * GIB)
    )


@pytest.mark.parametrize("context", [2048, 32768, 262144])
@pytest.mark.parametrize("memory", ["20 GiB", "24 GiB", "36 GiB", "128 GiB"])
def test_an_automatic_plan_fits_every_context_or_says_by_how_much_not(context: int, memory: str) -> None:
    if (memory, context) == ("20 GiB", 262144):
        with pytest.raises(MemoryPlanError, match="GiB") as e:
            plan(memory, context=context)
        assert e.value.hint
        return
    p = plan(memory, context=context)
    assert p.context == context
    assert p.total_bytes <= p.limit_bytes
    assert 10 <= p.slots <= 48 * 512
    assert 10 <= p.draft_slots <= 512
    # A plan that leaves most of the memory idle would be wrong too.
    if p.slots < 48 * 512:
        assert p.total_bytes >= 0.85 * p.limit_bytes


def test_a_longer_context_takes_its_memory_from_the_experts() -> None:
    slots = [plan("36 GiB", context=c).slots for c in (2048, 32768, 262144)]
    assert slots[0] > slots[1] > slots[2]


def test_every_term_is_what_it_says() -> None:
    p = plan("36 GiB", context=32768, expert_cache="8 GiB", draft_expert_cache="1 GiB", prefill_step=1024)
    n = needs()
    assert p.term("program") == PROGRAM_BYTES
    assert p.term("resident weights") == RESIDENT
    assert p.term("keys and values") == int(n.kv_bytes_a_token * 32768 * 1.25)
    assert p.term("states") == n.state_bytes * (2 + MARKS) + 4 * n.wide_bytes
    assert p.term("prompt window") == 32768 * n.wide_bytes
    assert p.term("read buffers") == 16 * MIB
    assert plan(direct_io="off").term("read buffers") == 0
    assert plan(read_workers=3).term("read buffers") == 3 * MIB
    assert p.term("draft expert slots") == 1 * GIB // EXPERT_BYTES * EXPERT_BYTES
    assert p.term("expert slots") == 8 * GIB // EXPERT_BYTES * EXPERT_BYTES
    assert p.term("layer buffers") == p.layer_buffers * 512 * EXPERT_BYTES
    assert p.total_bytes == sum(size for _, size in p.terms)


@pytest.mark.parametrize(
    ("asked", "slots"),
    [
        ("7.5 GiB", int(7.5 * GIB) // EXPERT_BYTES),
        ("12 %", int(0.12 * 24576)),
        (10 * EXPERT_BYTES, 10),
        ("512 MiB", 109),
    ],
)
def test_budgets_become_whole_slots(asked: str | int, slots: int) -> None:
    assert plan("64 GiB", expert_cache=asked).slots == slots


def test_a_budget_for_everything_takes_no_more_than_everything() -> None:
    assert plan("512 GiB", expert_cache="100 %").slots == 24576
    assert plan("512 GiB", expert_cache="300 GiB").slots == 24576
    assert plan("512 GiB").slots == 24576
    assert plan("512 GiB").draft_slots <= 512


@pytest.mark.parametrize("asked", ["0 %", 0, "1 KiB", 10 * EXPERT_BYTES - 1])
def test_a_budget_below_the_experts_of_one_token_is_refused_with_what_it_takes(asked: str | int) -> None:
    with pytest.raises(MemoryPlanError, match="fewer than the experts of one token") as e:
        plan(expert_cache=asked)
    assert "offload.expert_cache" in e.value.message
    assert size_text(10 * EXPERT_BYTES) in e.value.hint


def test_a_draft_budget_below_one_token_is_refused_with_a_hint_that_helps() -> None:
    with pytest.raises(MemoryPlanError, match="draft_expert_cache") as e:
        plan(draft_expert_cache="1 MiB")
    assert size_text(10 * EXPERT_BYTES) in e.value.hint
    assert plan(draft_expert_cache=10 * EXPERT_BYTES).draft_slots == 10


def test_a_budget_that_does_not_fit_is_refused_with_every_term() -> None:
    with pytest.raises(MemoryPlanError) as e:
        plan("16 GiB", expert_cache="12 GiB")
    for words in ("16.0 GiB are available", "resident weights 9.2 GiB", "expert slots 12.0 GiB"):
        assert words in e.value.message
    assert "Lower offload.expert_cache" in e.value.hint


def test_a_machine_too_small_for_the_model_is_told_so() -> None:
    with pytest.raises(MemoryPlanError, match=r"1.0 GiB is what this machine gives") as e:
        plan("auto")
    assert "smaller model" in e.value.hint
    with pytest.raises(MemoryPlanError, match=r"8.0 GiB is what model.memory_limit allows"):
        plan("8 GiB")


def test_without_a_draft_layer_nothing_is_planned_for_it() -> None:
    p = plan(of=needs(draft=None))
    assert p.draft_slots == 0
    assert p.term("draft expert slots") == p.term("kept for drafting") == 0


def test_layer_buffers_shrink_before_the_expert_slots_do() -> None:
    buffers = [plan(m, context=2048).layer_buffers for m in ("16 GiB", "24 GiB", "48 GiB")]
    assert buffers == sorted(buffers)
    assert buffers[0] < 2
    assert buffers[-1] == 2


def test_with_every_expert_in_a_slot_no_memory_is_kept_for_reading_layers() -> None:
    for asked in ("auto", "100 %"):
        p = plan("256 GiB", context=2048, expert_cache=asked)
        assert (p.slots, p.layer_buffers) == (24576, 0)


def test_an_automatic_context_stays_below_the_models_and_a_given_one_too() -> None:
    assert plan(context="auto").context == 32768
    assert plan(of=needs(max_context=4096)).context == 4096
    assert plan(of=needs(max_context=4096), context=8192).context == 4096


def test_the_limit_of_the_machine_counts_where_none_is_set() -> None:
    small = replace(needs(), resident_bytes=100 * MIB, largest_bytes=MIB)
    p = make_plan(EngineConfig(context=2048), small, Machine(limit_bytes=8 * GIB, total_bytes=16 * GIB))
    assert p.limit_bytes == 8 * GIB
    gpu = make_plan(EngineConfig(context=2048), small, Machine(8 * GIB, 16 * GIB, gpu=True))
    assert gpu.term("allocator cache") == 256 * MIB


@pytest.mark.parametrize(("n", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (7.5 * GIB, "7.5 GiB")])
def test_sizes_are_written_for_people(n: float, text: str) -> None:
    assert size_text(n) == text


def test_the_published_numbers_are_the_ones_the_model_computes() -> None:
    from qwen_chat_mlx.engine.models.qwen4_exp import read_config

    raw = {
        "num_hidden_layers": 48, "hidden_size": 2560, "num_attention_heads": 24, "num_key_value_heads": 2,
        "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "num_experts": 512, "num_experts_per_tok": 10,
        "moe_intermediate_size": 640, "shared_expert_intermediate_size": 640, "hc_count": 4, "hc_lowrank": 320,
        "ple_layer_ids": [2], "ple_embed_dim": 2560, "ngram_size": 3, "heads_per_ngram": 8, "vocab_size": 248320,
        "ngram_vocab_size_base": 20_000_000, "split_ngram_parts": 128, "eos_token_id": 248044, "indexer_n_heads": 4,
        "indexer_head_dim": 128, "indexer_budget": 2048, "indexer_compress_ratio": 4,
        "max_position_embeddings": 262144, "full_attention_interval": 4, "output_gate_type": "sigmoid",
        "rope_parameters": {"rope_theta": 10_000_000, "partial_rotary_factor": 0.25},
    }  # fmt: skip
    shape, n = read_config(raw, "config.json"), needs()
    assert shape.kv_bytes(1024, 2) == n.kv_bytes_a_token * 1024
    assert shape.state_bytes(2) == n.state_bytes
    assert shape.wide * 2 == n.wide_bytes
    assert shape.max_context == n.max_context
