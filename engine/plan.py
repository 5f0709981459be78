"""The memory plan: what a model needs on this machine, and the budgets that "auto" stands for. Pure arithmetic.

One plan serves the engine, `doctor` and the benchmarks. Terms follow the ways in which programs of this kind ran out of
memory: the context's keys and values, states kept for rewinding, whole-layer buffers, conversion scratch, allocator cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from .config import EngineConfig, parse_budget
from .errors import BudgetError, MemoryPlanError
from .machine import Machine

__all__ = ["MemoryPlan", "Needs", "PoolNeeds", "make_plan", "size_text"]

GIB, MIB = 1 << 30, 1 << 20
PROGRAM_BYTES = 200 * MIB
"""Interpreter, libraries, the interface."""
MARKS = 4
"""States kept at stable points of a conversation."""
PREFILL_WINDOW = 32768
"""Most prompt tokens that go through the layers in one layer-major pass."""
WIDE_KEPT_BYTES = 64 * MIB
"""Wide hiddens kept while drafting is off, so that it can be switched on without a hole."""
_AUTO_CONTEXT = 32768
_DRAFT_ALL_BYTES = int(1.3 * GIB)
_TILES_BYTES = 96 * MIB
"""Attention scores of the largest tile of queries, and what is made of them."""
_GROWTH = 1.25
"""Rows grow in steps of a quarter."""


@dataclass(frozen=True, slots=True)
class PoolNeeds:
    """One pool of experts."""

    experts: int
    """Over all layers."""
    slot_bytes: int
    """Bytes of one slot in memory, page padding included."""
    top_k: int


@dataclass(frozen=True, slots=True)
class Needs:
    """What a model asks for, for one computing dtype."""

    item_bytes: int
    resident_bytes: int
    largest_bytes: int
    """The largest resident tensor as stored; converting it to float32 and laying it out takes three times that."""
    kv_bytes_a_token: float
    state_bytes: int
    wide_bytes: int
    """One row of the residual."""
    logits_bytes: int
    """One row of logits in float32."""
    score_bytes: int
    """Attention scores of one query and one key in float32, all heads."""
    expert_matrix_bytes: int
    """The experts that are converted to the computing dtype at once."""
    read_buffer_bytes: int
    """What a reading thread needs of its own to read past the page cache."""
    max_context: int
    layer_bytes: int
    """A buffer for any layer's experts as a whole."""
    experts: PoolNeeds
    draft: PoolNeeds | None


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The budgets, and every term behind them in bytes."""

    context: int
    slots: int
    draft_slots: int
    layer_buffers: int
    """0, 1 or 2 whole-layer buffers for prefill; 0 means that prompts go through the slots."""
    marks: int
    terms: tuple[tuple[str, int], ...]
    limit_bytes: int
    notes: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        return sum(n for _, n in self.terms)

    def term(self, name: str) -> int:
        return dict(self.terms)[name]


def size_text(n: float) -> str:
    """Bytes for people: "7.5 GiB"."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", 1024)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{int(n)} B"


def make_plan(config: EngineConfig, needs: Needs, where: Machine) -> MemoryPlan:
    """The plan for a config. Raises MemoryPlanError, with the numbers, when what was asked for does not fit."""
    limit = parse_budget(config.memory_limit).n_bytes or where.limit_bytes
    context, fixed = _fixed_terms(config, needs, where)
    left = limit - sum(n for _, n in fixed)
    draft_slots = _draft_slots(config, needs, left)
    draft_bytes = draft_slots * needs.draft.slot_bytes if needs.draft else 0
    left -= draft_bytes
    pool = needs.experts
    least = pool.top_k * pool.slot_bytes
    whole = pool.experts * pool.slot_bytes
    asked = parse_budget(config.expert_cache)
    auto = asked == parse_budget("auto")
    if asked.resolve(whole, int(left * 0.95)) >= whole:
        # All experts are read at the start: a prompt has none left to read layer by layer.
        buffers = 0
    else:
        # Where the experts' budget is fixed, nothing else wants what is left; else buffers and slots share it.
        buffers = _layer_buffers(needs, (left - least) // 3 if auto else left - asked.resolve(whole, 0))
    left -= buffers * needs.layer_bytes
    budget = asked.resolve(whole, int(left * 0.95))
    slots = min(pool.experts, budget // pool.slot_bytes)
    terms = (
        *fixed,
        ("draft expert slots", draft_bytes),
        ("layer buffers", buffers * needs.layer_bytes),
        ("expert slots", slots * pool.slot_bytes),
    )
    plan = MemoryPlan(context, slots, draft_slots, buffers, MARKS, terms, limit)
    if slots < pool.top_k:
        _refuse_budget(config, plan, least, auto)
    if plan.total_bytes > limit:
        raise MemoryPlanError(
            f"The model needs {size_text(plan.total_bytes)} with these settings, {size_text(limit)} are available: "
            + ", ".join(f"{name} {size_text(n)}" for name, n in terms if n)
            + ".",
            "Lower offload.expert_cache or model.context, or raise model.memory_limit.",
        )
    return plan


def _fixed_terms(config: EngineConfig, needs: Needs, where: Machine) -> tuple[int, tuple[tuple[str, int], ...]]:
    """The planned context and the terms that no budget changes."""
    context = min(needs.max_context, _AUTO_CONTEXT) if config.context == "auto" else int(config.context)
    context = min(context, needs.max_context)
    rounds = 1 + config.max_draft
    rows = min(config.prefill_step, context)
    window = min(context, PREFILL_WINDOW) * needs.wide_bytes
    tiles = min(_TILES_BYTES, rows * context * needs.score_bytes * 3 // 2)
    scratch = (
        max(3 * needs.largest_bytes if needs.item_bytes > 2 else 0, 10 * rows * needs.wide_bytes + tiles)
        + 3 * needs.expert_matrix_bytes
        + 4 * needs.logits_bytes
    )
    return context, (
        ("program", PROGRAM_BYTES),
        ("resident weights", needs.resident_bytes),
        ("keys and values", int(needs.kv_bytes_a_token * context * _GROWTH)),
        ("states", needs.state_bytes * (1 + 1 + MARKS) + rounds * needs.wide_bytes),
        ("prompt window", window),
        ("kept for drafting", min(WIDE_KEPT_BYTES, context * needs.wide_bytes) if needs.draft else 0),
        ("scratch", scratch),
        ("read buffers", 0 if config.direct_io == "off" else config.read_workers * needs.read_buffer_bytes),
        ("allocator cache", 256 * MIB if where.gpu else 0),
    )


def _draft_slots(config: EngineConfig, needs: Needs, left: int) -> int:
    if needs.draft is None:
        return 0
    pool = needs.draft
    whole = pool.experts * pool.slot_bytes
    auto = whole if whole <= min(_DRAFT_ALL_BYTES, left // 4) else min(whole, _DRAFT_ALL_BYTES, left // 8)
    budget = parse_budget(config.draft_expert_cache).resolve(whole, max(auto, pool.top_k * pool.slot_bytes))
    slots = min(pool.experts, budget // pool.slot_bytes)
    if slots < pool.top_k:
        raise BudgetError(
            f"offload.draft_expert_cache = {config.draft_expert_cache!r} holds {slots} experts; a token needs "
            f"{pool.top_k} of {size_text(pool.slot_bytes)}.",
            f"Give it at least {size_text(pool.top_k * pool.slot_bytes)}.",
        )
    return slots


def _layer_buffers(needs: Needs, left: int) -> int:
    """As many whole-layer buffers (at most two) as fit in what they may have."""
    return max(0, min(2, left // needs.layer_bytes)) if needs.layer_bytes else 0


def _refuse_budget(config: EngineConfig, plan: MemoryPlan, least: int, auto: bool) -> None:
    if auto:
        given = "is what this machine gives" if config.memory_limit == "auto" else "is what model.memory_limit allows"
        raise MemoryPlanError(
            f"{size_text(plan.limit_bytes)} {given}; without any expert the model needs "
            f"{size_text(plan.total_bytes - plan.term('expert slots'))}, and a token's experts {size_text(least)} more.",
            "Close other programs, lower model.context, or choose a smaller model.",
        )
    raise BudgetError(
        f"offload.expert_cache = {config.expert_cache!r} holds {plan.slots} experts, fewer than the experts of one token.",
        f"Give it at least {size_text(least)}.",
    )
