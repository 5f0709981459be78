"""Sampling against a slow numpy version that ranks in Python, and against exact distributions."""

from __future__ import annotations

import math

import hypothesis
import mlx.core as mx
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qwen_chat_mlx.engine import sampling
from qwen_chat_mlx.engine.config import EngineConfig
from qwen_chat_mlx.engine.errors import CheckpointError, RequestError
from qwen_chat_mlx.engine.sampling import Sampler, noise, resolve_sampling, uniform
from qwen_chat_mlx.engine.types import Sampling

EDGE = 1e-5
"""Distance from a border within which float32 and float64 sums may differ."""


def penalised(logits, wanted, prompt, reply):
    x = np.asarray(logits, np.float32).copy()
    for i in {*prompt, *reply}:
        r = np.float32(wanted.repetition_penalty)
        x[i] = x[i] * r if x[i] < 0 else x[i] / r
    for i in set(reply):
        x[i] -= np.float32(wanted.presence_penalty)
    return x


def kept_counts(x, wanted):
    """The fewest and the most tokens that may be kept, and the ranking."""
    ranking = sorted(range(len(x)), key=lambda i: (-x[i], i))
    k = min(wanted.top_k or len(x), len(x))
    v = np.array([x[i] for i in ranking[:k]], np.float64)
    p = np.exp(v - v[0]) / np.exp(v - v[0]).sum()
    counts = []
    for slack in (-EDGE, EDGE):
        n = k
        if wanted.top_p < 1:
            n = sum(1 for i in range(k) if p[:i].sum() < wanted.top_p + slack)
        if wanted.min_p > 0:
            n = min(n, sum(1 for i in range(k) if p[i] >= p[0] * wanted.min_p * (1 - slack)))
        counts.append(max(n, 1))
    return counts[0], counts[1], ranking


values = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 2.5, -math.inf]), st.floats(-30, 30, width=32, allow_subnormal=False)
)


@st.composite
def cases(draw):
    n = draw(st.integers(1, 40))
    logits = draw(st.lists(values, min_size=n, max_size=n).filter(lambda v: max(v) > -math.inf))
    ids = st.lists(st.integers(0, n - 1), max_size=6)
    wanted = Sampling(
        temperature=draw(st.sampled_from([0.3, 0.7, 1.0, 2.0])),
        top_k=draw(st.sampled_from([0, 1, 2, 5, n - 1, n, n + 1, 1000])),
        top_p=draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.999, 1.0])),
        min_p=draw(st.sampled_from([0.0, 0.05, 0.5, 1.0])),
        presence_penalty=draw(st.sampled_from([0.0, 1.5, -0.5])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.7])),
    )
    return logits, wanted, draw(ids), draw(ids), draw(ids)


@given(cases())
@example(([0.0], Sampling(top_k=1, top_p=0.0, min_p=1.0), [], [], []))
@example(([0.0] * 7, Sampling(top_k=3), [], [], []))
@example(([0.0] * 8, Sampling(top_p=0.5), [], [], []))
@example(([1.0, -math.inf, -math.inf], Sampling(top_k=2), [], [], []))
@hypothesis.settings(max_examples=150, deadline=None)
def test_filters_and_penalties_keep_what_the_slow_version_keeps(case):
    logits, wanted, prompt, reply, extra = case
    sampler = Sampler(wanted, len(logits), prompt, 1)
    for token in reply:
        sampler.commit(token)
    got = np.array(sampler.filter(mx.array(logits), extra))
    x = penalised(logits, wanted, prompt, [*reply, *extra]) / np.float32(wanted.temperature)
    fewest, most, ranking = kept_counts(x, wanted)
    kept = np.flatnonzero(got > -np.inf)
    n = len(kept)
    possible = [i for i in ranking[:most] if x[i] > -math.inf]
    assert min(fewest, len(possible)) <= n <= len(possible)
    assert set(kept) == set(possible[:n]), "the kept tokens are the beginning of the ranking"
    np.testing.assert_allclose(got[kept], x[kept], rtol=1e-6)


@given(st.lists(values.filter(lambda v: v > -math.inf), min_size=1, max_size=30), st.integers(0, 5))
@hypothesis.settings(max_examples=50, deadline=None)
def test_greedy_takes_the_first_of_the_largest(logits, position):
    sampler = Sampler(Sampling(temperature=0), len(logits), [], 3)
    token = int(sampler.pick(sampler.filter(mx.array(logits)), position))
    assert token == int(np.argmax(np.array(logits, np.float32)))


def test_greedy_sees_penalties_too():
    sampler = Sampler(Sampling(temperature=0, presence_penalty=2.0), 3, [], 1)
    logits = mx.array([1.0, 3.0, 2.0])
    assert int(sampler.pick(sampler.filter(logits), 0)) == 1
    assert int(sampler.pick(sampler.filter(logits, [1]), 0)) == 2
    sampler.commit(1)
    assert int(sampler.pick(sampler.filter(logits), 0)) == 2


def test_presence_counts_the_reply_and_repetition_the_prompt_as_well():
    logits = mx.array([2.0, -2.0, 2.0])
    presence = Sampler(Sampling(presence_penalty=1.0), 3, [0, 1], 1)
    repetition = Sampler(Sampling(repetition_penalty=2.0), 3, [0, 1], 1)
    assert presence.filter(logits).tolist() == [2.0, -2.0, 2.0]
    assert repetition.filter(logits).tolist() == [1.0, -4.0, 2.0]
    assert logits.tolist() == [2.0, -2.0, 2.0], "the caller's logits stay as they are"


def test_prompt_ids_beyond_the_vocabulary_are_ignored_by_the_penalty():
    sampler = Sampler(Sampling(repetition_penalty=2.0), 2, [0, 7, -1], 1)
    assert sampler.filter(mx.array([2.0, 2.0])).tolist() == [1.0, 2.0]


class Many:
    """Noise for many positions at once, [N, ids], by giving the hash a column of keys. The formulas of Sampler.pick and
    Sampler.accept_rejection are repeated over it, and each test holds its first rows equal to the real ones."""

    def __init__(self, monkeypatch, sampler, count):
        self.sampler, self.count, self.real = sampler, count, sampling._key
        self.monkeypatch = monkeypatch

    def __call__(self, function, *args, salt):
        keys = np.array([self.real(self.sampler.seed, i, salt) for i in range(self.count)], np.uint32)
        with self.monkeypatch.context() as patch:
            patch.setattr(sampling, "_key", lambda *_: (keys[:, :1], keys[:, 1:]))
            return function(self.sampler.seed, 0, *args, salt)

    def picks(self, weights):
        ids = mx.arange(weights.size, dtype=mx.uint32)
        found = np.array(mx.argmax(weights + self(noise, ids, salt=0), axis=-1))
        assert found[:40].tolist() == [int(self.sampler.pick(weights, i)) for i in range(40)]
        return found

    def after_rejection(self, p, q, drafts):
        ids = mx.arange(p.size, dtype=mx.uint32)
        u = self(uniform, mx.array([0], mx.uint32), salt=1)[:, 0]
        rest = mx.log(mx.maximum(p - q, 0.0)) + self(noise, ids, salt=2)
        accepted = u * q[mx.array(drafts)] < p[mx.array(drafts)]
        found = np.array(mx.where(accepted, mx.array(drafts), mx.argmax(rest, axis=-1)))
        real = [int(self.sampler.accept_rejection(p, q, int(drafts[i]), i)) for i in range(40)]
        assert found[:40].tolist() == real
        return found


def p_value(found, probabilities):
    """Upper tail of Pearson's chi-square statistic, by Wilson and Hilferty's approximation."""
    live = probabilities > 0
    counts = np.bincount(found, minlength=len(probabilities))
    assert counts[~live].sum() == 0
    expected = probabilities[live] * len(found)
    df = live.sum() - 1
    statistic = ((counts[live] - expected) ** 2 / expected).sum()
    z = ((statistic / df) ** (1 / 3) - (1 - 2 / (9 * df))) / math.sqrt(2 / (9 * df))
    return 0.5 * math.erfc(z / math.sqrt(2))


LOGITS = mx.array(np.random.default_rng(5).normal(0, 1.5, 24).astype(np.float32))


@pytest.mark.parametrize(
    "settings",
    [
        Sampling(),
        Sampling(temperature=0.7),
        Sampling(temperature=0.7, top_k=8),
        Sampling(top_p=0.8),
        Sampling(min_p=0.1),
    ],
)
def test_20000_draws_follow_the_exact_distribution(monkeypatch, settings):
    sampler = Sampler(settings, 24, [], 11)
    weights = sampler.filter(LOGITS)
    found = Many(monkeypatch, sampler, 20_000).picks(weights)
    assert p_value(found, np.array(sampler.probabilities(weights), np.float64)) > 0.01


@pytest.mark.parametrize("top_k", [0, 10])
def test_20000_rejected_or_accepted_drafts_follow_the_trunks_distribution(monkeypatch, top_k):
    sampler = Sampler(Sampling(temperature=0.8, top_k=top_k), 24, [], 12)
    trunk = sampler.filter(LOGITS)
    draft = sampler.filter(LOGITS + mx.array(np.random.default_rng(6).normal(0, 0.7, 24).astype(np.float32)))
    p, q = sampler.probabilities(trunk), sampler.probabilities(draft)
    many = Many(monkeypatch, sampler, 20_000)
    drafts = many.picks(draft)
    found = many.after_rejection(p, q, drafts)
    assert p_value(found, np.array(p, np.float64)) > 0.01
    overlap = float(mx.sum(mx.minimum(p, q)))
    assert abs((found == drafts).mean() - overlap) < 0.015, "accepted as often as the distributions overlap"


def test_rejection_accepts_a_draft_of_the_same_distribution_always():
    sampler = Sampler(Sampling(), 24, [], 12)
    p = sampler.probabilities(sampler.filter(LOGITS))
    assert all(int(sampler.accept_rejection(p, p, i % 24, i)) == i % 24 for i in range(50))


def test_rejection_never_gives_a_token_that_the_trunk_rules_out():
    sampler = Sampler(Sampling(), 3, [], 12)
    p, q = mx.array([0.0, 0.5, 0.5]), mx.array([1.0, 0.0, 0.0])
    assert {int(sampler.accept_rejection(p, q, 0, i)) for i in range(30)} == {1, 2}


def test_a_greedy_draft_is_accepted_iff_it_is_the_argmax():
    sampler = Sampler(Sampling(temperature=0), 3, [], 12)
    p = sampler.probabilities(sampler.filter(mx.array([0.0, 2.0, 2.0])))
    assert p.tolist() == [0.0, 1.0, 0.0]
    q = sampler.probabilities(sampler.filter(mx.array([5.0, 2.0, 1.0])))
    assert int(sampler.accept_rejection(p, q, 0, 4)) == 1
    assert int(sampler.accept_rejection(p, p, 1, 4)) == 1


def test_a_draw_depends_on_seed_and_position_and_on_nothing_drawn_before():
    a, b = Sampler(Sampling(), 24, [], 5), Sampler(Sampling(), 24, [], 5)
    weights = a.filter(LOGITS)
    forward = [int(a.pick(weights, i)) for i in range(40)]
    backward = [int(b.pick(weights, i)) for i in reversed(range(40))][::-1]
    assert forward == backward
    other = Sampler(Sampling(), 24, [], 6)
    assert forward != [int(other.pick(weights, i)) for i in range(40)]


def test_a_row_of_a_batch_gives_the_token_of_the_row_alone():
    sampler = Sampler(Sampling(temperature=0.9, top_k=12, top_p=0.95), 24, [], 5)
    batch = mx.array(np.random.default_rng(1).normal(0, 2, (6, 24)).astype(np.float32))
    together = [int(t) for t in mx.stack([sampler.pick(sampler.filter(batch[i]), 100 + i) for i in range(6)])]
    alone = [int(sampler.pick(sampler.filter(mx.array(np.array(batch[i]))), 100 + i)) for i in range(6)]
    assert together == alone


def test_picking_among_the_top_k_equals_picking_with_noise_for_the_whole_vocabulary():
    few, all_ = Sampler(Sampling(top_k=5), 24, [], 9), Sampler(Sampling(), 24, [], 9)
    weights = few.filter(LOGITS)
    assert [int(few.pick(weights, i)) for i in range(30)] == [int(all_.pick(weights, i)) for i in range(30)]


def test_coupled_draws_of_equal_weights_agree_and_of_near_weights_mostly():
    sampler = Sampler(Sampling(), 24, [], 9)
    near = LOGITS + 0.05 * mx.sin(mx.arange(24))
    same = [int(sampler.pick(LOGITS, i)) == int(sampler.pick(near, i)) for i in range(60)]
    assert sum(same) > 50


def test_noise_is_gumbel_and_finite_and_salts_are_independent():
    ids = mx.arange(200_000, dtype=mx.uint32)
    g = np.array(noise(3, 17, ids), np.float64)
    assert np.isfinite(g).all()
    assert abs(g.mean() - 0.5772) < 0.02
    assert abs(g.var() - math.pi**2 / 6) < 0.05
    u = np.array(uniform(3, 17, ids), np.float64)
    v = np.array(uniform(3, 18, ids), np.float64)
    w = np.array(uniform(3, 17, ids, salt=2), np.float64)
    assert 0 < u.min() < u.max() < 1
    for other in (v, w, np.roll(u, 1)):
        assert abs(np.corrcoef(u, other)[0, 1]) < 0.01
    assert len(np.unique(u)) > 190_000


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "wanted", [Sampling(temperature=0), Sampling(), Sampling(top_k=2), Sampling(top_p=0.5), Sampling(min_p=0.1)]
)
def test_logits_that_are_not_numbers_are_one_clear_error(bad, wanted):
    sampler = Sampler(wanted, 4, [], 1)
    token = int(sampler.pick(sampler.filter(mx.array([1.0, bad, 0.5, -math.inf])), 0))
    with pytest.raises(RequestError, match="not a number"):
        sampler.commit(token)


def test_logits_that_rule_out_every_token_are_an_error_too():
    sampler = Sampler(Sampling(), 3, [], 1)
    with pytest.raises(RequestError):
        sampler.commit(int(sampler.pick(sampler.filter(mx.full([3], -math.inf)), 0)))


def test_bfloat16_logits_are_filtered_at_float32():
    sampler = Sampler(Sampling(top_k=2), 4, [], 1)
    got = sampler.filter(mx.array([1.0, 2.0, 3.0, 0.0], mx.bfloat16))
    assert got.dtype == mx.float32
    assert got.tolist() == [-math.inf, 2.0, 3.0, -math.inf]


def test_a_seed_is_drawn_when_none_is_given_and_kept():
    assert Sampler(Sampling(seed=4), 3, []).seed == 4
    assert Sampler(Sampling(seed=4), 3, [], 9).seed == 9
    assert Sampler(Sampling(), 3, []).seed != Sampler(Sampling(), 3, []).seed


PUBLISHED = {"do_sample": True, "temperature": 1.0, "top_k": 20, "top_p": 0.95, "eos_token_id": [1, 0]}


def test_the_request_wins_over_config_over_checkpoint_over_neutral():
    config = EngineConfig(temperature=0.5, seed=7)
    got = resolve_sampling(None, config, PUBLISHED)
    assert got == Sampling(temperature=0.5, top_k=20, top_p=0.95, seed=7)
    assert resolve_sampling(Sampling(top_p=0.3), config, PUBLISHED) == Sampling(top_p=0.3, seed=7)
    assert resolve_sampling(Sampling(seed=1), config, PUBLISHED).seed == 1
    assert resolve_sampling(None, EngineConfig(), {}) == Sampling()
    changed = resolve_sampling(None, config, PUBLISHED, [("top_k", 3), ("seed", 2)])
    assert changed == Sampling(temperature=0.5, top_k=3, top_p=0.95, seed=2)


def test_a_checkpoint_that_does_not_sample_is_greedy_unless_the_config_says_otherwise():
    greedy = {"do_sample": False, "temperature": 0.6}
    assert resolve_sampling(None, EngineConfig(), greedy).greedy
    assert resolve_sampling(None, EngineConfig(temperature=0.4), greedy).temperature == 0.4


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", -1), ("top_p", 1.5), ("top_k", -3), ("min_p", "x"), ("top_k", 2.5)]
)
def test_a_bad_value_is_blamed_on_where_it_stands(name, value):
    with pytest.raises(CheckpointError, match=rf"generation_config.json: {name} = .* it takes"):
        resolve_sampling(None, EngineConfig(), {name: value})
    with pytest.raises(RequestError, match=name):
        resolve_sampling(Sampling(**{name: value}), EngineConfig(), {})
    with pytest.raises(RequestError, match=name):
        resolve_sampling(None, EngineConfig(), {}, [(name, value)])


def test_a_null_in_generation_config_is_no_value_and_an_unknown_change_is_an_error():
    assert resolve_sampling(None, EngineConfig(), {"top_k": None}) == Sampling()
    with pytest.raises(RequestError, match="Did you mean top_k"):
        resolve_sampling(None, EngineConfig(), {}, [("topk", 3)])
    with pytest.raises(RequestError, match="top_k has no value"):
        resolve_sampling(None, EngineConfig(), {}, [("top_k", None)])
