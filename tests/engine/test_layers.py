"""Every layer against a slow, obvious version: NumPy in float64, plain Python integers, or one token at a time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qwen_chat_mlx.engine.cache.recurrent import DeltaRows
from qwen_chat_mlx.engine.layers import gated_delta
from qwen_chat_mlx.engine.layers.gated_delta import GatedDelta, advance, chunked, recurrent
from qwen_chat_mlx.engine.layers.hyper_connection import HyperConnection, inject
from qwen_chat_mlx.engine.layers.moe import Router, SharedExpert, weighted_sum
from qwen_chat_mlx.engine.layers.ngram import NgramEmbedding, NgramHash
from qwen_chat_mlx.engine.layers.norm import centred, group_rms_norm, rms_norm
from qwen_chat_mlx.engine.layers.rope import Rope
from qwen_chat_mlx.engine.layers.sparse_attention import SparseAttention, best_blocks

WITHIN = 1e-5


class Weights:
    """`Take` over random weights that are made when asked for; kept as float64 for the slow version."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.of = {
            name: rng.standard_normal(shape).astype(np.float32) / math.sqrt(shape[-1] if len(shape) > 1 else 4)
            for name, shape in shapes.items()
        }

    def __call__(self, name: str, dtype: mx.Dtype | None = None) -> mx.array:
        return mx.array(self.of[name]).astype(dtype or mx.float32)


def rows_of(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def far(a: Any, b: Any) -> float:
    """Largest difference, relative to the values' size where they exceed 1."""
    a, b = np.array(a, np.float64), np.array(b, np.float64)
    assert a.shape == b.shape
    return 0.0 if not a.size else float((np.abs(a - b) / np.maximum(1.0, np.abs(b))).max())


def feed(layer: Any, cache: Any, x: mx.array, sizes: Sequence[int]) -> np.ndarray:
    """The layer's outputs for x in pieces of these sizes."""
    outputs, start = [], 0
    for size in sizes:
        outputs.append(np.array(layer(x[start : start + size], cache)))
        start += size
    assert start == x.shape[0]
    return np.concatenate(outputs)


# ---- gated delta rule


def delta_inputs(t: int, decay: float, seed: int = 0) -> tuple[mx.array, DeltaRows, mx.array]:
    rng = np.random.default_rng(seed)
    heads, key, value = 3, 16, 8
    k = rows_of(rng, t, heads, key)
    k /= np.linalg.norm(k, axis=-1, keepdims=True) + 1e-6
    log_decay = mx.array((-decay * rng.random((t, heads))).astype(np.float32))
    rows = DeltaRows(
        mx.array(k),
        mx.array(rows_of(rng, t, heads, value)),
        log_decay,
        mx.array(rng.random((t, heads)).astype(np.float32)),
        mx.exp(log_decay),
    )
    return mx.array(rows_of(rng, t, heads, key) / 4), rows, mx.array(rows_of(rng, heads, value, key))


def slow_delta(q: mx.array, rows: DeltaRows, state: mx.array) -> tuple[np.ndarray, np.ndarray]:
    """The recurrence as written in the paper, in float64."""
    q, k, v, g, b, s = (
        np.array(a, np.float64) for a in (q, rows.keys, rows.values, rows.log_decay, rows.beta, state)
    )  # fmt: skip
    outputs = np.zeros(v.shape)
    for t in range(q.shape[0]):
        for h in range(q.shape[1]):
            s[h] *= np.exp(g[t, h])
            s[h] += b[t, h] * np.outer(v[t, h] - s[h] @ k[t, h], k[t, h])
            outputs[t, h] = s[h] @ q[t, h]
    return outputs, s


@pytest.mark.parametrize("decay", [0.0, 0.05, 2.0, 60.0])
@pytest.mark.parametrize("t", [0, 1, 7, 8, 9, 63, 64, 65, 200])
def test_both_forms_of_the_delta_rule_equal_the_recurrence(t: int, decay: float) -> None:
    q, rows, state = delta_inputs(t, decay, seed=t)
    outputs, after = slow_delta(q, rows, state)
    for form in (recurrent, chunked):
        out, new = form(q, rows, state)
        assert far(out, outputs) <= WITHIN, form.__name__
        assert far(new, after) <= WITHIN, form.__name__


@pytest.mark.parametrize("count", [1, 4, 5])
def test_advancing_the_states_of_several_layers_has_the_bits_of_each_layers_recurrence(count: int) -> None:
    layers = [delta_inputs(5, 0.3, seed) for seed in range(3)]
    after = advance([state for *_, state in layers], [rows for _, rows, _ in layers], count)
    for got, (q, rows, state) in zip(after, layers, strict=True):
        first = DeltaRows(*(getattr(rows, f.name)[:count] for f in dataclasses.fields(rows)))
        np.testing.assert_array_equal(np.array(got), np.array(recurrent(q[:count], first, state)[1]))


def test_a_kernel_is_given_the_layers_as_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(q: Any, k: Any, v: Any, decay: Any, beta: Any, states: Any, mask: Any) -> Any:
        """Has the shapes of mlx-lm's: [B, T, heads, ...] and states [B, heads, value_dim, key_dim]."""
        assert q.shape == k.shape == (*v.shape[:-1], states.shape[-1])
        assert decay.shape == beta.shape == v.shape[:-1]
        after = []
        for b, state in enumerate(states):
            for t in range(k.shape[1]):
                state = gated_delta._update(state, k[b, t], v[b, t], decay[b, t], beta[b, t])  # noqa: PLW2901
            after.append(state)
        return v, mx.stack(after)

    layers = [delta_inputs(5, 0.3, seed) for seed in range(3)]
    states, rows = [state for *_, state in layers], [rows for _, rows, _ in layers]
    want = advance(states, rows, 2)
    monkeypatch.setattr(gated_delta, "gated_delta_kernel", lambda: kernel)
    for got, expected in zip(advance(states, rows, 2), want, strict=True):
        np.testing.assert_array_equal(np.array(got), np.array(expected))


DELTA = {"key_heads": 2, "value_heads": 4, "key_dim": 16, "value_dim": 8, "kernel": 4, "eps": 1e-6}
DELTA_SHAPES = {
    "in_proj_qkv.weight": (96, 32), "in_proj_z.weight": (32, 32), "in_proj_a.weight": (4, 32),
    "in_proj_b.weight": (4, 32), "out_proj.weight": (32, 32), "A_log": (4,), "dt_bias": (4,),
    "conv1d.weight": (96, 1, 4), "norm.weight": (8,),
}  # fmt: skip


@pytest.mark.parametrize("gate", ["sigmoid", "silu"])
@pytest.mark.parametrize("sizes", [[1] * 70, [70], [8, 62], [9, 1, 60], [64, 6], [3, 2, 65]])
def test_delta_layers_do_not_depend_on_how_rows_are_cut(sizes: list[int], gate: str) -> None:
    layer = GatedDelta(Weights(DELTA_SHAPES), gate=gate, **DELTA)  # type: ignore[arg-type]
    x = mx.array(rows_of(np.random.default_rng(1), 70, 32))
    whole, cut = layer.new_cache(), layer.new_cache()
    assert far(feed(layer, cut, x, sizes), feed(layer, whole, x, [70])) <= WITHIN
    assert far(cut.state, whole.state) <= WITHIN
    assert far(cut.history.arrays()[0], whole.history.arrays()[0]) <= WITHIN
    assert cut.position == whole.position == 70


# ---- sparse attention


def slow_best(scores: np.ndarray, count: int) -> np.ndarray:
    mask = np.zeros(scores.shape, bool)
    for row in range(scores.shape[0]):
        order = sorted(range(scores.shape[1]), key=lambda b: (-scores[row, b], b))
        mask[row, order[:count]] = True
    return mask


@given(st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=4), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_the_best_blocks_are_those_of_a_stable_sort(scores: list[list[int]], count: int) -> None:
    values = np.array(scores, np.float32)
    np.testing.assert_array_equal(np.array(best_blocks(mx.array(values), count)), slow_best(values, count))


ATTENTION_SHAPES = {
    "q_proj.weight": (64, 32), "k_proj.weight": (16, 32), "v_proj.weight": (16, 32), "o_proj.weight": (32, 32),
    "q_norm.weight": (16,), "k_norm.weight": (16,), "indexer.index_qk_proj.weight": (24, 32),
    "indexer.q_layernorm.weight": (8,), "indexer.k_layernorm.weight": (8,),
}  # fmt: skip


def attention(budget: int = 16, seed: int = 0) -> SparseAttention:
    return SparseAttention(
        Weights(ATTENTION_SHAPES, seed), heads=2, kv_heads=1, head_dim=16, index_heads=2, index_dim=8, budget=budget,
        ratio=4, rope=Rope(4, 1e4), eps=1e-6,
    )  # fmt: skip


def slow_attention(w: dict[str, np.ndarray], x: np.ndarray, budget: int) -> np.ndarray:
    """Query by query, block by block, in float64."""
    w = {name: v.astype(np.float64) for name, v in w.items()}
    x = x.astype(np.float64)

    def norm(v: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return v / np.sqrt((v * v).mean(-1, keepdims=True) + 1e-6) * (1 + scale)

    def turn(v: np.ndarray, position: int) -> np.ndarray:
        angle = position / 1e4 ** (np.arange(2) / 2)
        z = (v[..., :2] + 1j * v[..., 2:4]) * np.exp(1j * angle)
        return np.concatenate([z.real, z.imag, v[..., 4:]], -1)

    q = (x @ w["q_proj.weight"].T).reshape(-1, 2, 32)
    gate, q = q[..., 16:], norm(q[..., :16], w["q_norm.weight"])
    k, v = norm(x @ w["k_proj.weight"].T, w["k_norm.weight"]), x @ w["v_proj.weight"].T
    index = x @ w["indexer.index_qk_proj.weight"].T
    index_q = norm(index[:, :16].reshape(-1, 2, 8), w["indexer.q_layernorm.weight"])
    out = []
    for t in range(len(x)):
        blocks = (t + 1) // 4
        score = []
        for b in range(blocks):
            pooled = turn(norm(index[4 * b : 4 * b + 4, 16:].mean(0), w["indexer.k_layernorm.weight"]), 4 * b)
            score.append(np.maximum(turn(index_q[t], t) @ pooled, 0).sum())
        chosen = sorted(range(blocks), key=lambda b: (-score[b], b))[: budget // 4]
        seen = sorted([4 * b + i for b in chosen for i in range(4)]) + list(range(4 * blocks, t + 1))
        keys = np.stack([turn(k[s], s) for s in seen])
        logits = turn(q[t], t) @ keys.T / 4
        p = np.exp(logits - logits.max(-1, keepdims=True))
        out.append((p / p.sum(-1, keepdims=True)) @ v[seen])
    mixed = np.stack(out) / (1 + np.exp(-gate))
    return mixed.reshape(len(x), -1) @ w["o_proj.weight"].T


@pytest.mark.parametrize("t", [1, 4, 15, 16, 19, 20, 21, 45])
def test_sparse_attention_equals_the_definition_on_both_sides_of_its_budget(t: int) -> None:
    x = rows_of(np.random.default_rng(t), t, 32)
    layer = attention()
    assert far(layer(mx.array(x), layer.new_cache()), slow_attention(Weights(ATTENTION_SHAPES).of, x, 16)) <= WITHIN


@pytest.mark.parametrize("sizes", [[1] * 45, [16, 1, 1, 27], [19, 2, 24], [20, 25], [3, 13, 4, 1, 24]])
def test_attention_does_not_depend_on_how_rows_are_cut(sizes: list[int]) -> None:
    layer = attention(seed=3)
    x = mx.array(rows_of(np.random.default_rng(2), 45, 32))
    whole, cut = layer.new_cache(), layer.new_cache()
    assert far(feed(layer, cut, x, sizes), feed(layer, whole, x, [45])) <= WITHIN
    for a, b in ((cut.keys, whole.keys), (cut.values, whole.values)):
        assert far(a.valid(), b.valid()) <= WITHIN
    assert far(cut.index.pooled(), whole.index.pooled()) <= WITHIN


@pytest.mark.parametrize("first", [0, 11, 15, 17, 19, 30])
@pytest.mark.parametrize("count", [2, 5])
def test_queries_kept_apart_have_the_bits_of_single_steps_on_both_sides_of_the_budget(first: int, count: int) -> None:
    layer = attention(seed=5)
    x = mx.array(rows_of(np.random.default_rng(first), first + count, 32))
    single, apart = layer.new_cache(), layer.new_cache()
    for cache in (single, apart):
        for i in range(first):
            layer(x[i : i + 1], cache)
    steps = [np.array(layer(x[i : i + 1], single)) for i in range(first, first + count)]
    np.testing.assert_array_equal(np.array(layer(x[first:], apart, apart=True)), np.concatenate(steps))


def test_queries_in_tiles_equal_queries_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = attention()
    x = mx.array(rows_of(np.random.default_rng(4), 45, 32))
    at_once = np.array(layer(x, layer.new_cache()))
    monkeypatch.setattr("qwen_chat_mlx.engine.layers.sparse_attention._TILE_BYTES", 4 * 2 * 45 * 7)
    assert far(layer(x, layer.new_cache()), at_once) <= WITHIN


def test_only_one_tile_of_scores_is_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, keys, tile_bytes = 256, 2048, 256 << 10
    monkeypatch.setattr("qwen_chat_mlx.engine.layers.sparse_attention._TILE_BYTES", tile_bytes)
    layer = attention(seed=5)
    cache = layer.new_cache()
    x = mx.array(rows_of(np.random.default_rng(3), keys, 32))
    for start in range(0, keys - queries, queries):
        mx.eval(layer(x[start : start + queries], cache), cache.arrays())
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(layer(x[-queries:], cache))
    # All scores at once are 16 tiles.
    assert mx.get_peak_memory() - before < 6 * tile_bytes


def test_while_the_budget_covers_every_block_no_score_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = attention()
    monkeypatch.setattr(layer, "_scores", lambda *_: pytest.fail("scored"))
    cache = layer.new_cache()
    x = mx.array(rows_of(np.random.default_rng(5), 19, 32))
    mx.eval(layer(x[:18], cache), layer(x[18:], cache))


# ---- n-gram rows


def slow_rows(h: NgramHash, tokens: list[int], heads: int) -> list[list[int]]:
    """The hash with Python's own integers, wrapped to 64 bits by hand."""

    def wrapped(n: int) -> int:
        return (n + (1 << 63)) % (1 << 64) - (1 << 63)

    rows = []
    for t in range(len(tokens)):
        row: list[int] = []
        seen = [tokens[t]]
        for back in range(1, len(h.multipliers)):
            earlier = tokens[t - back] if t >= back else h.cut_token
            seen.append(h.cut_token if h.cut_token in (*seen[1:], earlier) else earlier)
            mixed = 0
            for value, factor in zip(seen, h.multipliers):
                mixed ^= wrapped(value * factor)
            first = (back - 1) * heads
            row += [mixed % h.sizes[i] + h.offsets[i] for i in range(first, first + heads)]
        rows.append(row)
    return rows


HASH = NgramHash.build(vocab=320, ngram=3, heads=4, base=100, layer=0, seed=1234, cut_token=3)


@given(st.lists(st.sampled_from([3, 3, 5, 7, 150, 319]), min_size=1, max_size=12), st.integers(0, 12))
@settings(max_examples=80, deadline=None)
def test_rows_equal_those_of_unbounded_integers_wherever_the_text_is_cut(tokens: list[int], at: int) -> None:
    at = min(at, len(tokens))
    rows = [*HASH.rows([], tokens[:at]).tolist(), *HASH.rows(tokens[:at], tokens[at:]).tolist()]
    assert rows == slow_rows(HASH, tokens, 4)


def test_negative_products_still_give_rows_of_the_table() -> None:
    big = NgramHash(((1 << 62) + 1, (1 << 61) + 7, (1 << 62) + 3), HASH.sizes, HASH.offsets, 4, 3)
    tokens = list(range(4, 60))
    rows = big.rows([], tokens)
    assert rows.tolist() == slow_rows(big, tokens, 4)
    for head, (size, offset) in enumerate(zip(big.sizes, big.offsets)):
        assert offset <= rows[:, head].min()
        assert rows[:, head].max() < offset + size


def test_the_constants_are_those_of_the_published_model() -> None:
    h = NgramHash.build(vocab=248320, ngram=3, heads=8, base=20_000_000, layer=0, seed=1234, cut_token=248044)
    assert h.multipliers == (23703573157769, 20109073645365, 8052911324071)
    assert [s - 20_000_000 for s in h.sizes] == [3, 23, 33, 47, 59, 63, 69, 77, 81, 93, 107, 147, 153, 159, 161, 171]
    assert h.offsets[-1] + h.sizes[-1] == 320_001_446


PLE_SHAPES = {
    "key_proj.weight": (24, 16), "value_proj.weight": (12, 16), "norm_key.weight": (24,), "norm_query.weight": (24,),
    "norm_conv.weight": (24,), "conv1d.weight": (24, 1, 4),
}  # fmt: skip


def slow_ple(w: dict[str, np.ndarray], x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    w = {name: v.astype(np.float64) for name, v in w.items()}

    def norm(v: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return v / np.sqrt((v * v).mean(-1, keepdims=True) + 1e-6) * (1 + scale.reshape(2, 12))

    x, rows = x.astype(np.float64).reshape(-1, 2, 12), rows.astype(np.float64)
    key = norm((rows @ w["key_proj.weight"].T).reshape(-1, 2, 12), w["norm_key.weight"])
    gate = (key * norm(x, w["norm_query.weight"])).sum(-1, keepdims=True) / math.sqrt(12)
    gate = np.sqrt(np.maximum(np.abs(gate), 1e-6)) * np.sign(gate)
    value = (rows @ w["value_proj.weight"].T)[:, None] / (1 + np.exp(-gate))
    conv_in = norm(value, w["norm_conv.weight"]).reshape(-1, 24)
    out = value.reshape(-1, 24).copy()
    for t in range(len(x)):
        mixed = sum(
            conv_in[t - 3 * (3 - i)] * w["conv1d.weight"][:, 0, i] for i in range(4) if t - 3 * (3 - i) >= 0
        )  # fmt: skip
        out[t] += mixed / (1 + np.exp(-mixed))
    return out


@pytest.mark.parametrize("sizes", [[20], [1] * 20, [2, 9, 9], [10, 1, 9]])
def test_ple_equals_the_dilated_convolution_however_rows_are_cut(sizes: list[int]) -> None:
    weights, rng = Weights(PLE_SHAPES), np.random.default_rng(0)
    layer = NgramEmbedding(weights, streams=2, hidden=12, kernel=4, dilation=3, eps=1e-6)
    x, rows = rows_of(rng, 20, 24), rows_of(rng, 20, 16)
    cache, outputs, start = layer.new_cache(), [], 0
    for n in sizes:
        outputs.append(np.array(layer(mx.array(x[start : start + n]), mx.array(rows[start : start + n]), cache)))
        start += n
    assert far(np.concatenate(outputs), slow_ple(weights.of, x, rows)) <= WITHIN


# ---- rope, norms, hyper-connections


@pytest.mark.parametrize(("first", "step"), [(0, 1), (5, 1), (12, 4), (250_000, 1)])
def test_rope_turns_pairs_by_their_position_and_leaves_the_rest(first: int, step: int) -> None:
    rope, x = Rope(8, 1e7), rows_of(np.random.default_rng(0), 6, 3, 20)
    turned = np.array(rope.turn(mx.array(x), rope.table(first, 6, step)))
    positions = first + step * np.arange(6)
    frequencies = (1.0 / (1e7 ** (np.arange(0, 8, 2, dtype=np.float32) / 8))).astype(np.float32)
    angles = (positions[:, None].astype(np.float32) * frequencies).astype(np.float64)
    z = (x[..., :4] + 1j * x[..., 4:8]) * np.exp(1j * angles)[:, None]
    # At large positions float32 angles are only as exact as their rounding.
    assert far(turned[..., :8], np.concatenate([z.real, z.imag], -1)) <= (WITHIN if first < 1000 else 2e-2)
    np.testing.assert_array_equal(turned[..., 8:], x[..., 8:])


def test_rope_does_not_depend_on_where_a_chunk_begins() -> None:
    rope = Rope(8, 1e7)
    whole, part = rope.table(0, 40), rope.table(33, 7)
    for a, b in zip(whole, part):
        np.testing.assert_array_equal(np.array(a)[33:], np.array(b))


def test_norms_apply_one_plus_the_stored_weight_in_float32() -> None:
    rng = np.random.default_rng(0)
    x, w = rows_of(rng, 5, 3, 16), rows_of(rng, 3, 16) / 8
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-6) * (1 + w)
    assert far(group_rms_norm(mx.array(x), centred(mx.array(w)), 1e-6), expected) <= WITHIN
    assert far(rms_norm(mx.array(x[:, 0]), centred(mx.array(w[0])), 1e-6), expected[:, 0]) <= WITHIN
    assert rms_norm(mx.array(x).astype(mx.bfloat16), mx.ones((16,)), 1e-6).dtype == mx.bfloat16


def test_hyper_connections_mix_and_inject_stream_by_stream() -> None:
    shapes = {
        "hc_norm.weight": (48,), "input_mix_weight_down.weight": (8, 48), "input_mix_weight_up.weight": (48, 8),
        "block_inject_weight.weight": (4, 48),
    }  # fmt: skip
    weights, x = Weights(shapes), rows_of(np.random.default_rng(0), 5, 48)
    w = {name: v.astype(np.float64) for name, v in weights.of.items()}
    normed = x.reshape(5, 4, 12).astype(np.float64)
    normed = normed / np.sqrt((normed**2).mean(-1, keepdims=True) + 1e-6) * (1 + w["hc_norm.weight"].reshape(4, 12))
    flat = normed.reshape(5, 48)
    low = flat @ w["input_mix_weight_down.weight"].T / 4
    low = low / (1 + np.exp(-low))
    gate = 1 / (1 + np.exp(-(low @ w["input_mix_weight_up.weight"].T)))
    expected = (gate.reshape(5, 4, 12) * normed).mean(1)
    strength = 2 / (1 + np.exp(-(flat @ w["block_inject_weight.weight"].T / 4)))
    mixed, into = HyperConnection(weights, 4, 1e-6)(mx.array(x))
    assert into is not None
    assert far(mixed, expected) <= WITHIN
    assert far(into, strength) <= WITHIN
    block = rows_of(np.random.default_rng(1), 5, 12)
    put = x.reshape(5, 4, 12) + strength[:, :, None] * block[:, None]
    assert far(inject(mx.array(x), mx.array(block), into), put.reshape(5, 48)) <= WITHIN


# ---- router, experts


def test_the_router_takes_the_lower_expert_at_equal_scores() -> None:
    gate = np.zeros((8, 4), np.float32)
    gate[[2, 5, 6], 0] = 1.0
    router = Router(lambda name, dtype=None: mx.array(gate), 4, normalise=True)
    ids, weights = router(mx.array([[1.0, 0, 0, 0], [0, 0, 0, 0]]))
    assert ids.tolist() == [[2, 5, 6, 0], [0, 1, 2, 3]]
    np.testing.assert_allclose(np.array(weights).sum(-1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(np.array(weights)[1], 0.25)


@pytest.mark.parametrize("normalise", [True, False])
def test_router_weights_are_softmax_over_all_experts(normalise: bool) -> None:
    weights = Weights({"gate.weight": (16, 8)})
    x = rows_of(np.random.default_rng(0), 6, 8)
    logits = x.astype(np.float64) @ weights.of["gate.weight"].T
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    order = np.argsort(-p, axis=-1, kind="stable")[:, :4]
    best = np.take_along_axis(p, order, -1)
    ids, scores = Router(weights, 4, normalise=normalise)(mx.array(x))
    np.testing.assert_array_equal(np.array(ids), order)
    assert far(scores, best / best.sum(-1, keepdims=True) if normalise else best) <= WITHIN


def test_all_experts_may_be_asked_for() -> None:
    weights = Weights({"gate.weight": (4, 8)})
    ids, scores = Router(weights, 4, normalise=True)(mx.array(rows_of(np.random.default_rng(0), 3, 8)))
    np.testing.assert_array_equal(np.sort(np.array(ids), axis=-1), [[0, 1, 2, 3]] * 3)
    np.testing.assert_allclose(np.array(scores).sum(-1), 1.0, rtol=1e-6)


def test_outputs_are_summed_in_rank_order_and_the_shared_expert_comes_last() -> None:
    rng = np.random.default_rng(0)
    outputs, weights, shared = rows_of(rng, 3, 4, 8), rows_of(rng, 3, 4), rows_of(rng, 3, 8)
    total = outputs[:, 0] * weights[:, 0, None]
    for rank in range(1, 4):
        total = total + outputs[:, rank] * weights[:, rank, None]
    np.testing.assert_array_equal(
        np.array(weighted_sum(mx.array(outputs), mx.array(weights), mx.array(shared))), total + shared
    )


def test_the_shared_expert_is_a_gated_swiglu() -> None:
    shapes = {
        "shared_expert.gate_proj.weight": (6, 8), "shared_expert.up_proj.weight": (6, 8),
        "shared_expert.down_proj.weight": (8, 6), "shared_expert_gate.weight": (1, 8),
    }  # fmt: skip
    weights, x = Weights(shapes), rows_of(np.random.default_rng(0), 5, 8).astype(np.float64)
    w = {name: v.astype(np.float64) for name, v in weights.of.items()}
    gate = x @ w["shared_expert.gate_proj.weight"].T
    hidden = gate / (1 + np.exp(-gate)) * (x @ w["shared_expert.up_proj.weight"].T)
    expected = hidden @ w["shared_expert.down_proj.weight"].T / (1 + np.exp(-(x @ w["shared_expert_gate.weight"].T)))
    assert far(SharedExpert(weights)(mx.array(x.astype(np.float32))), expected) <= WITHIN
