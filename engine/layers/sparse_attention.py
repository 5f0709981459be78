"""QSA: attention over the blocks that an indexer selects, and the tail behind the last complete block.

A query scores every complete block of `ratio` tokens before it: sum over index heads of relu(q . k) / sqrt(d). It attends
the `budget // ratio` best blocks, the earlier one at equal scores (ReLU makes equal zeros common), and the tail. While no
more blocks exist than that, this is plain causal attention, and no score is computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ..cache.index import IndexKeys
from ..cache.kv import KVCache
from .linear import Take, linear
from .norm import centred, rms_norm
from .rope import Rope

__all__ = ["SparseAttention", "best_blocks"]

_TILE_BYTES = 64 << 20
"""Scores of one tile of queries stay below this."""


def best_blocks(scores: mx.array, count: int) -> mx.array:
    """Mask [..., blocks] of the `count` highest scores of each row, the earlier block first at equal scores."""
    place = scores.shape[-1] - count
    threshold = mx.partition(scores, place, axis=-1)[..., place, None]
    above = scores > threshold
    equal = scores == threshold
    left = count - above.sum(axis=-1, keepdims=True)
    return above | (equal & (mx.cumsum(equal.astype(mx.int32), axis=-1) <= left))


class SparseAttention:
    """One QSA layer: [T, H] -> [T, H]."""

    def __init__(
        self, take: Take, *, heads: int, kv_heads: int, head_dim: int, index_heads: int, index_dim: int, budget: int,
        ratio: int, rope: Rope, eps: float,
    ) -> None:  # fmt: skip
        self._q, self._k = linear(take("q_proj.weight")), linear(take("k_proj.weight"))
        self._v, self._o = linear(take("v_proj.weight")), linear(take("o_proj.weight"))
        self._q_norm = centred(take("q_norm.weight", mx.float32))
        self._k_norm = centred(take("k_norm.weight", mx.float32))
        self._index_qk = linear(take("indexer.index_qk_proj.weight"))
        self._index_q_norm = centred(take("indexer.q_layernorm.weight", mx.float32))
        self._index_k_norm = centred(take("indexer.k_layernorm.weight", mx.float32))
        self._heads, self._kv_heads, self._head_dim = heads, kv_heads, head_dim
        self._index_heads, self._index_dim = index_heads, index_dim
        self._index_width = index_heads * index_dim
        self._ratio, self._most_blocks = ratio, budget // ratio
        self._rope, self._eps = rope, eps

    def new_cache(self) -> KVCache:
        return KVCache(IndexKeys(self._ratio))

    def __call__(self, h: mx.array, cache: KVCache, *, apart: bool = False) -> mx.array:
        """h [T, H] at the positions behind the cache -> [T, H]; the cache grows by T rows.

        `apart`: projections see all rows at once, attention takes one query after another, as in T single steps.
        """
        t, first = h.shape[0], cache.position
        table = self._rope.table(first, t)
        both = self._q(h).reshape(t, self._heads, 2 * self._head_dim)
        q, gate = both[..., : self._head_dim], both[..., self._head_dim :]
        q = self._rope.turn(rms_norm(q, self._q_norm, self._eps), table).swapaxes(0, 1)
        index_q, raw = self._index(h, table)
        keys, values = self._append(h, raw, table, cache)
        if t == 1 or apart:
            out = self._apart(q, index_q, keys, values, cache, first)
        else:
            out = self._many(q, index_q, keys, values, cache, first)
        out = out.swapaxes(0, 1).reshape(t, -1)
        return self._o(out * mx.sigmoid(gate.reshape(t, -1)))

    def append(self, h: mx.array, cache: KVCache) -> None:
        """Only what later rows need of h [T, H]: the cache grows by T rows, nothing is attended."""
        table = self._rope.table(cache.position, h.shape[0])
        self._append(h, self._index_qk(h)[:, self._index_width :], table, cache)

    def _append(
        self, h: mx.array, raw: mx.array, table: tuple[mx.array, mx.array], cache: KVCache
    ) -> tuple[mx.array, mx.array]:
        """Keys, values and raw index keys [T, d] of h into the cache; -> all keys and values."""
        t = h.shape[0]
        k = self._k(h).reshape(t, self._kv_heads, self._head_dim)
        v = self._v(h).reshape(t, self._kv_heads, self._head_dim)
        k = self._rope.turn(rms_norm(k, self._k_norm, self._eps), table)
        cache.index.append(raw, self._pool)
        return cache.append(k.swapaxes(0, 1), v.swapaxes(0, 1))

    def _index(self, h: mx.array, table: tuple[mx.array, mx.array]) -> tuple[mx.array, mx.array]:
        """(index queries [T, index_heads, d], raw index keys [T, d])."""
        qk = self._index_qk(h)
        width = self._index_width
        q = qk[:, :width].reshape(-1, self._index_heads, self._index_dim)
        return self._rope.turn(rms_norm(q, self._index_q_norm, self._eps), table), qk[:, width:]

    def _pool(self, raw: mx.array, first_block: int) -> mx.array:
        """Raw keys [n * ratio, d] -> block keys [n, d]: float32 mean, norm, rotation at each block's first position."""
        blocks = raw.reshape(-1, self._ratio, self._index_dim)
        mean = blocks.astype(mx.float32).mean(axis=1).astype(raw.dtype)
        table = self._rope.table(first_block * self._ratio, blocks.shape[0], self._ratio)
        return self._rope.turn(rms_norm(mean, self._index_k_norm, self._eps), table)

    def _scores(self, index_q: mx.array, pooled: mx.array) -> mx.array:
        """[T, index_heads, d] x [blocks, d] -> [T, blocks] float32."""
        products = index_q.astype(mx.float32) @ pooled.astype(mx.float32).T
        return mx.maximum(products, 0).sum(axis=1) * self._index_dim**-0.5

    def _apart(
        self, q: mx.array, index_q: mx.array, keys: mx.array, values: mx.array, cache: KVCache, first: int
    ) -> mx.array:
        """Each query in the shapes of a single step: gathered rows are attended, nothing is masked.

        Scores and attention are a query's own; only choosing and gathering, which round nothing, is done for all at once.
        """
        ends = range(first + 1, first + q.shape[1] + 1)
        sparse = [end for end in ends if end // self._ratio > self._most_blocks]
        dense = len(ends) - len(sparse)
        near: list[mx.array] = []
        if sparse:
            chosen = self._chosen(index_q[dense:], cache.index.pooled(), sparse)
            near = [self._gathered(held, chosen) for held in (keys, values)]
        outputs = []
        for i, end in enumerate(ends):
            k, v = keys[:, :end], values[:, :end]
            if i >= dense:
                tail = end // self._ratio * self._ratio
                k, v = (mx.concatenate([n[i - dense], x[:, tail:]], axis=1) for n, x in zip(near, (k, v)))
            outputs.append(self._attend(q[:, i : i + 1], k, v, None))
        return outputs[0] if len(outputs) == 1 else mx.concatenate(outputs, axis=1)

    def _chosen(self, index_q: mx.array, pooled: mx.array, ends: Sequence[int]) -> mx.array:
        """int32 [n, most blocks], rising: the blocks that each of n queries attends, whose rows end at `ends`."""
        most = ends[-1] // self._ratio
        rows = []
        for i, end in enumerate(ends):
            blocks = end // self._ratio
            scores = self._scores(index_q[i : i + 1], pooled[:blocks])
            rows.append(
                scores if blocks == most else mx.pad(scores, [(0, 0), (0, most - blocks)], constant_values=-1.0)
            )
        mask = best_blocks(rows[0] if len(rows) == 1 else mx.concatenate(rows), self._most_blocks)
        return mx.sort(mx.where(mask, mx.arange(most), most), axis=-1)[:, : self._most_blocks]

    def _gathered(self, held: mx.array, chosen: mx.array) -> mx.array:
        """The rows of `held` [kv_heads, rows, d] in the chosen blocks [n, b], as [n, kv_heads, b * ratio, d]."""
        blocks, d = held.shape[1] // self._ratio, held.shape[2]
        # A head's blocks lie one behind the other, so that each is copied at once.
        heads = (head[: blocks * self._ratio].reshape(blocks, -1) for head in held)
        picked = [mx.take(head, chosen, axis=0).reshape(chosen.shape[0], -1, d) for head in heads]
        return mx.stack(picked, axis=1)

    def _many(
        self, q: mx.array, index_q: mx.array, keys: mx.array, values: mx.array, cache: KVCache, first: int
    ) -> mx.array:
        """Tiles of queries, each with a mask over the keys that its last query may see."""
        t = q.shape[1]
        tile = max(1, min(t, _TILE_BYTES // (4 * self._heads * keys.shape[1])))
        outputs = []
        for start in range(0, t, tile):
            stop = min(t, start + tile)
            seen = first + stop
            mask = self._mask(index_q[start:stop], cache, first + start, seen)
            outputs.append(self._attend(q[:, start:stop], keys[:, :seen], values[:, :seen], mask))
            if tile < t:
                # A graph of many tiles would be evaluated side by side, the scores of all of them in memory at once.
                mx.eval(outputs[-1])
        return outputs[0] if len(outputs) == 1 else mx.concatenate(outputs, axis=1)

    def _mask(self, index_q: mx.array, cache: KVCache, first: int, seen: int) -> mx.array:
        """Mask [n, seen] of what the queries at positions first … seen - 1 attend."""
        position = mx.arange(first, seen)[:, None]
        causal = mx.arange(seen)[None] <= position
        blocks = seen // self._ratio
        if blocks <= self._most_blocks:
            return causal
        complete = (mx.arange(blocks)[None] + 1) * self._ratio <= position + 1
        scores = self._scores(index_q, cache.index.pooled()[:blocks])
        # Incomplete blocks score below every real one (scores are never negative), so they are never among the best
        # while enough complete ones exist; where they do not exist, the causal mask cuts them.
        chosen = best_blocks(mx.where(complete, scores, -1.0), self._most_blocks)
        chosen = mx.repeat(chosen, self._ratio, axis=1)
        tail = mx.arange(seen)[None] >= (position + 1) // self._ratio * self._ratio
        chosen = mx.pad(chosen, [(0, 0), (0, seen - chosen.shape[1])])
        return causal & (chosen | tail)

    def _attend(self, q: mx.array, keys: mx.array, values: mx.array, mask: mx.array | None) -> mx.array:
        out = mx.fast.scaled_dot_product_attention(
            q[None], keys[None], values[None], scale=self._head_dim**-0.5, mask=mask
        )
        return out[0]
