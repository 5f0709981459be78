"""What layers remember: tentative rows that are kept in part, saved states, and rows that grow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from qwen_chat_mlx.engine.cache.base import CacheGroup
from qwen_chat_mlx.engine.cache.index import IndexKeys
from qwen_chat_mlx.engine.cache.recurrent import History
from qwen_chat_mlx.engine.cache.rows import Rows

ROWS = 6


@pytest.fixture(scope="module")
def layers(tiny: Any) -> Iterator[dict[str, Any]]:
    """One layer of every kind, from a real checkpoint: their `mix` feeds the cache as the model does."""
    from qwen_chat_mlx.engine.config import EngineConfig
    from qwen_chat_mlx.engine.session import Session

    session = Session.open(EngineConfig(model=str(tiny.path), memory_limit="4 GiB", mtp="off"))
    first, with_table, _, sparse = session.model.layers
    yield {"delta": first, "delta and table": with_table, "sparse": sparse}
    session.close()


class Feeder:
    """Feeds fixed random rows to a layer's cache."""

    def __init__(self, layer: Any, kind: str, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.layer = layer
        self.x = mx.array(rng.standard_normal((64, 256)).astype(np.float32))
        self.rows = mx.array(rng.standard_normal((64, 64)).astype(np.float32)) if "table" in kind else None

    def feed(self, cache: Any, start: int, stop: int, *, single: bool = False) -> mx.array:
        """Rows start … stop - 1, in one piece or one by one; the residuals behind the layer's mixer."""
        cuts = [(i, i + 1) for i in range(start, stop)] if single else [(start, stop)] * (stop > start)
        outputs = []
        for a, b in cuts:
            x, asked = self.layer.mix(self.x[a:b], cache, None if self.rows is None else self.rows[a:b])
            outputs += [x, asked.hidden]
        mx.eval(outputs, cache.arrays())
        return mx.concatenate(outputs[::2]) if outputs else self.x[:0]


def state_of(cache: Any) -> list[np.ndarray]:
    """Every array of a cache that counts, as NumPy; the room that rows have left is not part of it."""
    if isinstance(cache, CacheGroup):
        return [a for part in cache.parts.values() for a in state_of(part)]
    if hasattr(cache, "keys"):
        found = [r.valid() for r in (cache.keys, cache.values, cache.index._raw) if r.length]
        return [np.array(a) for a in (*found, *([cache.index.pooled()] if cache.index.blocks else []))]
    return [np.array(a) for a in cache.arrays()]


def same(a: Any, b: Any) -> None:
    assert a.position == b.position
    left, right = state_of(a), state_of(b)
    assert len(left) == len(right)
    for x, y in zip(left, right):
        np.testing.assert_array_equal(x, y)


KINDS = ["delta", "delta and table", "sparse"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", [0, 3, 21])
@pytest.mark.parametrize("keep", range(ROWS + 1))
def test_keeping_some_rows_equals_a_cache_that_saw_only_those(
    layers: dict[str, Any], kind: str, before: int, keep: int
) -> None:
    feeder = Feeder(layers[kind], kind)
    kept, plain = layers[kind].new_cache(), layers[kind].new_cache()
    for cache in (kept, plain):
        feeder.feed(cache, 0, before)
    kept.open_span()
    feeder.feed(kept, before, before + ROWS, single=True)
    kept.commit(keep)
    feeder.feed(plain, before, before + keep, single=True)
    same(kept, plain)
    following = [feeder.feed(cache, 40, 45, single=True) for cache in (kept, plain)]
    np.testing.assert_array_equal(np.array(following[0]), np.array(following[1]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keep", [0, 2, 4, ROWS])
def test_a_span_fed_in_one_piece_can_be_kept_in_part(layers: dict[str, Any], kind: str, keep: int) -> None:
    feeder = Feeder(layers[kind], kind)
    kept, plain = layers[kind].new_cache(), layers[kind].new_cache()
    for cache in (kept, plain):
        feeder.feed(cache, 0, 17)
    kept.open_span()
    feeder.feed(kept, 17, 17 + ROWS)
    kept.commit(keep)
    feeder.feed(plain, 17, 17 + keep)
    assert kept.position == plain.position == 17 + keep
    for x, y in zip(state_of(kept), state_of(plain)):
        np.testing.assert_allclose(x, y, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_spans_follow_each_other(layers: dict[str, Any], kind: str) -> None:
    feeder = Feeder(layers[kind], kind)
    kept, plain = layers[kind].new_cache(), layers[kind].new_cache()
    at = 0
    for keep in (3, 0, 4, 1):
        kept.open_span()
        feeder.feed(kept, at, at + 4, single=True)
        kept.commit(keep)
        feeder.feed(plain, at, at + keep, single=True)
        at += keep
    same(kept, plain)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_state_comes_back_whatever_was_fed_in_between(layers: dict[str, Any], kind: str) -> None:
    feeder = Feeder(layers[kind], kind)
    cache, plain = layers[kind].new_cache(), layers[kind].new_cache()
    empty = cache.save()
    feeder.feed(cache, 0, 18)
    feeder.feed(plain, 0, 18)
    saved = cache.save()
    for _ in range(2):
        feeder.feed(cache, 18, 30)
        cache.open_span()
        feeder.feed(cache, 30, 33)
        cache.restore(saved)
        same(cache, plain)
    cache.restore(empty)
    assert cache.position == 0
    feeder.feed(cache, 0, 18)
    same(cache, plain)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_cache_holds_is_counted(layers: dict[str, Any], kind: str) -> None:
    feeder, cache = Feeder(layers[kind], kind), layers[kind].new_cache()
    feeder.feed(cache, 0, 20)
    assert cache.nbytes() == sum(a.nbytes for a in cache.arrays())
    assert cache.saved_nbytes() == (0 if kind == "sparse" else cache.nbytes())


# ---- the parts


def test_rows_grow_and_are_cut_without_changing_what_stays() -> None:
    rows, expected = Rows(), np.zeros((2, 0, 3), np.float32)
    rng = np.random.default_rng(0)
    for n, cut in ((1, None), (255, None), (1, 200), (300, None), (0, 10), (5, 0), (700, 650), (1, None)):
        x = rng.standard_normal((2, n, 3)).astype(np.float32)
        rows.append(mx.array(x))
        expected = np.concatenate([expected, x], axis=1)
        if cut is not None:
            rows.cut(cut)
            expected = expected[:, :cut]
        assert rows.length == expected.shape[1]
        np.testing.assert_array_equal(np.array(rows.valid()), expected)


def test_rows_that_were_handed_out_stay_as_they_were() -> None:
    rows = Rows()
    rows.append(mx.arange(6, dtype=mx.float32).reshape(2, 3))
    seen = rows.valid()
    rows.cut(1)
    rows.append(mx.zeros((300, 3)))
    np.testing.assert_array_equal(np.array(seen), np.arange(6, dtype=np.float32).reshape(2, 3))


def test_cutting_beyond_the_end_changes_nothing() -> None:
    rows = Rows()
    rows.append(mx.ones((4, 2)))
    rows.cut(9)
    assert rows.length == 4


def test_a_block_is_pooled_once_and_only_when_its_last_token_arrives() -> None:
    pooled: list[tuple[int, int]] = []

    def pool(raw: mx.array, first: int) -> mx.array:
        pooled.append((first, raw.shape[0]))
        return raw.reshape(-1, 4, 2).mean(axis=1)

    keys = IndexKeys(4)
    for n in (3, 1, 9, 0, 2, 1):
        keys.append(mx.ones((n, 2)), pool)
    assert pooled == [(0, 4), (1, 8), (3, 4)]
    assert (keys.length, keys.blocks) == (16, 4)
    keys.cut(11)
    assert keys.blocks == 2
    keys.append(mx.ones((1, 2)), pool)
    assert pooled[-1] == (2, 4)
    keys.cut(12)
    keys.append(mx.ones((3, 2)), pool)
    assert len(pooled) == 4


@pytest.mark.parametrize("size", [1, 2, 5, 40])
def test_a_history_hands_out_the_last_rows_however_it_was_fed(size: int) -> None:
    x = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
    history = History(4, 3, mx.float32)
    padded = np.concatenate([np.zeros((4, 3), np.float32), x])
    for start in range(0, 40, size):
        joined = history.extend(mx.array(x[start : start + size]))
        np.testing.assert_array_equal(np.array(joined), padded[start : start + size + 4])
    assert history.position == 40


def test_a_history_keeps_no_more_than_its_rows_alive() -> None:
    history = History(3, 1024, mx.float32)
    mx.eval(history.extend(mx.ones((4096, 1024))), history.arrays())
    mx.clear_cache()
    before = mx.get_active_memory()
    history.extend(mx.ones((4096, 1024)))
    mx.eval(history.arrays())
    mx.clear_cache()
    assert mx.get_active_memory() - before < 1 << 20


def test_spans_do_not_nest(layers: dict[str, Any]) -> None:
    for layer in layers.values():
        cache = layer.new_cache()
        cache.open_span()
        with pytest.raises(AssertionError):
            cache.open_span()
