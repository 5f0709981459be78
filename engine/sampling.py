"""How a token is chosen from logits: penalties, filters, and noise that depends on nothing but seed and position.

Every choice is a pure function of (logits, tokens before it, position, seed): a row gives the same token alone, in a
batch, in a draft or in its verification, and whatever was drawn before. Knows no model, cache or text.

Order: repetition penalty, presence penalty, temperature, top-k, top-p, min-p (the order of Hugging Face's filters).
Each filter keeps the first tokens of one ranking: larger logit first, equal logits by smaller id.
"""

from __future__ import annotations

import hashlib
import math
import reprlib
import secrets
import struct
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import mlx.core as mx
import numpy as np

from .config import EngineConfig, check, settings_of
from .errors import CheckpointError, ConfigError, RequestError, nearest
from .types import Sampling

__all__ = ["Sampler", "noise", "resolve_sampling", "uniform"]

_DRAW, _ACCEPT, _RESIDUAL = 0, 1, 2
"""Salts: independent noise for the draw, for the acceptance test and for the draw after a rejection."""


def resolve_sampling(
    request: Sampling | None,
    config: EngineConfig,
    generation_config: dict[str, Any],
    changes: Iterable[tuple[str, float | int | None]] = (),
) -> Sampling:
    """The sampling of one reply: the request's, else per value the config's, the checkpoint's, or the neutral one.

    `do_sample: false` in generation_config means temperature 0. `changes` replace single values of the result. Without
    a seed of the request, the config's stands. Raises CheckpointError for a value in generation_config that cannot be
    used, RequestError for one in the request or the changes.
    """
    if request is None:
        found = _of_checkpoint(generation_config)
        found.update({n: v for n in _CHECKS if (v := getattr(config, n)) is not None})
        request = Sampling(**found)
    wanted: dict[str, Any] = {f.name: getattr(request, f.name) for f in fields(Sampling)} | dict(changes)
    for name, value in wanted.items():
        if name not in _CHECKS:
            near = nearest(name, _CHECKS)
            raise RequestError(f"There is no sampling setting {name!r}.", f"Did you mean {near[0]}?" if near else "")
        try:
            if value is None and name != "seed":
                raise ConfigError(f"sampling.{name} has no value.")
            wanted[name] = check(_CHECKS[name], value)
        except ConfigError as e:
            raise RequestError(e.message) from None
    if wanted["seed"] is None:
        wanted["seed"] = config.seed
    return Sampling(**wanted)


_CHECKS = {s.field: s for s in settings_of(EngineConfig) if s.field in {f.name for f in fields(Sampling)}}


def _of_checkpoint(generation_config: dict[str, Any]) -> dict[str, Any]:
    """The sampling values that a generation_config.json sets."""
    found: dict[str, Any] = {}
    for name in _CHECKS.keys() - {"seed"}:
        value = generation_config.get(name)
        if value is None:
            continue
        try:
            found[name] = check(_CHECKS[name], value)
        except ConfigError as e:
            what = e.message.split(": it takes ")[-1]
            message = f"generation_config.json: {name} = {reprlib.repr(value)} cannot be used: it takes {what}"
            raise CheckpointError(message, path="generation_config.json") from None
    if generation_config.get("do_sample") is False:
        found["temperature"] = 0.0
    return found


def _hash(x: mx.array, key: tuple[int, int]) -> mx.array:
    """uint32 of x's shape: two rounds of a 32-bit finaliser with full avalanche, keyed before each round."""
    for k in key:
        x = x + mx.array(k, mx.uint32)
        x = (x ^ (x >> 16)) * mx.array(0x21F0AAAD, mx.uint32)
        x = (x ^ (x >> 15)) * mx.array(0xD35A2D97, mx.uint32)
        x = x ^ (x >> 15)
    return x


def _key(seed: int, position: int, salt: int) -> tuple[int, int]:
    packed = struct.pack("<QQI", seed & (2**64 - 1), position, salt)
    return struct.unpack("<2I", hashlib.blake2b(packed, digest_size=8).digest())


def uniform(seed: int, position: int, ids: mx.array, salt: int = _ACCEPT) -> mx.array:
    """Uniform float32 in (0, 1), one for each of `ids` (uint32); each a function of seed, position, salt and id only."""
    bits = _hash(ids * mx.array(0x9E3779B9, mx.uint32), _key(seed, position, salt))
    return mx.minimum((bits.astype(mx.float32) + 0.5) * 2.0**-32, 1 - 2.0**-24)


def noise(seed: int, position: int, ids: mx.array, salt: int = _DRAW) -> mx.array:
    """Gumbel noise, float32, finite, one for each of `ids` (uint32); each a function of seed, position, salt and id."""
    # log1p keeps the resolution where the uniform is small: that is where the largest noise comes from.
    return -mx.log(-mx.log1p(-uniform(seed, position, ids, salt)))


class Sampler:
    """Chooses the tokens of one reply. Holds the set of tokens seen (for the penalties) and nothing else that changes.

    `position` is always the absolute position of the token to be chosen: len(prompt) for the first of the reply.
    """

    def __init__(self, sampling: Sampling, vocab_size: int, prompt_ids: Iterable[int], seed: int | None = None) -> None:
        """`seed` None takes the sampling's own, or draws one; `self.seed` is the one in use."""
        self.sampling = sampling
        self.vocab_size = vocab_size
        chosen = seed if seed is not None else sampling.seed
        self.seed: int = secrets.randbelow(1 << 63) if chosen is None else chosen
        self._ids = mx.arange(vocab_size, dtype=mx.uint32)
        self._in_reply = np.zeros(vocab_size, np.bool_)
        self._seen = np.zeros(vocab_size, np.bool_)
        ids = np.fromiter(prompt_ids, np.int64)
        self._seen[ids[(ids >= 0) & (ids < vocab_size)]] = True

    def filter(self, logits: mx.array, extra_ids: Sequence[int] = ()) -> mx.array:
        """Log-weights of the next token, float32 [V], lazy: not normalised, -inf where dropped.

        `logits` [V] of any float dtype. `extra_ids` are tokens after the committed ones (drafts) that the penalties
        must see as part of the reply. Logits with NaN or +inf leave no token: `pick` then answers -1.
        """
        s = self.sampling
        x = self._penalise(logits.astype(mx.float32), extra_ids)
        # A NaN divisor turns the whole row into NaN, so that no comparison below can hide a single bad logit.
        sound = mx.sum(x) < mx.inf
        x = x / mx.where(sound, 1.0 if s.greedy else s.temperature, mx.nan)
        if s.greedy:
            return x
        if 0 < s.top_k < self.vocab_size or s.top_p < 1.0:
            return self._keep_ranked(x)
        if s.min_p > 0.0:
            return mx.where(x >= mx.max(x) + math.log(s.min_p), x, -mx.inf)
        return x

    def pick(self, weights: mx.array, position: int) -> mx.array:
        """The token, int32 scalar, lazy: the argmax of the weights plus the position's noise (none when greedy).

        Equal values give the smaller id. -1 when no token is left (`commit` and `checked` turn that into the error).
        """
        if self.sampling.greedy:
            return self._argmax(weights, self._ids)
        ids, k = self._ids, self.sampling.top_k
        if 0 < k < self.vocab_size:
            # No more than k weights are finite, so noise for k ids is enough; sorted, so that ties go by id.
            ids = mx.sort(mx.argpartition(-weights, k - 1)[:k])
            weights = weights[ids]
        return self._argmax(weights + noise(self.seed, position, ids), ids)

    def probabilities(self, weights: mx.array) -> mx.array:
        """The distribution that `pick` draws from, float32 [V]."""
        if self.sampling.greedy:
            return (mx.arange(self.vocab_size) == mx.argmax(weights)).astype(mx.float32)
        return mx.softmax(weights)

    def accept_rejection(self, p: mx.array, q: mx.array, token: int, position: int) -> mx.array:
        """Rejection sampling of a draft: int32 scalar, lazy. The answer equals `token` iff the draft is accepted.

        `p`, `q`: probabilities [V] of trunk and draft, with `token` drawn from q by `pick`. Accepted with probability
        min(1, p/q), else drawn from normalised max(p - q, 0); so the answer is distributed as p.
        """
        accepted = uniform(self.seed, position, mx.array(0, mx.uint32)) * q[token] < p[token]
        rest = mx.maximum(p - q, 0.0)
        rest = mx.where(mx.sum(rest) > 0, rest, p)  # nothing left by rounding only, where p and q are all but equal
        drawn = self._argmax(mx.log(rest) + noise(self.seed, position, self._ids, _RESIDUAL), self._ids)
        return mx.where(accepted, mx.array(token, mx.int32), drawn)

    def commit(self, token: int) -> int:
        """Make a chosen token part of the reply and return it. Raises RequestError for -1 (see `checked`)."""
        token = self.checked(token)
        self._in_reply[token] = self._seen[token] = True
        return token

    @staticmethod
    def checked(token: int) -> int:
        """The token itself. Raises RequestError for -1: the logits held NaN or infinity."""
        if token < 0:
            raise RequestError(
                "The model's output for the next token is not a number (NaN or infinite), so nothing can be chosen.",
                "A weight file may be damaged: check the model folder, or try dtype = float32.",
            )
        return int(token)

    @staticmethod
    def _argmax(x: mx.array, ids: mx.array) -> mx.array:
        best = mx.argmax(x)
        # NaN compares false: rows that are all NaN or all -inf give -1.
        return mx.where(x[best] > -mx.inf, ids[best].astype(mx.int32), mx.array(-1, mx.int32))

    def _penalise(self, x: mx.array, extra_ids: Sequence[int]) -> mx.array:
        s = self.sampling
        if s.repetition_penalty != 1.0 and len(ids := _ids_of(self._seen, extra_ids)):
            at = mx.array(ids)
            seen = x[at]
            x[at] = mx.where(seen < 0, seen * s.repetition_penalty, seen / s.repetition_penalty)
        if s.presence_penalty != 0.0 and len(ids := _ids_of(self._in_reply, extra_ids)):
            at = mx.array(ids)
            x[at] = x[at] - s.presence_penalty
        return x

    def _keep_ranked(self, x: mx.array) -> mx.array:
        """top-k, top-p and min-p together: all three keep a beginning of the ranking, so only its length matters."""
        s = self.sampling
        kept = mx.topk(x, s.top_k) if 0 < s.top_k < self.vocab_size else x
        ranked = -mx.sort(-kept)
        within = mx.ones(ranked.shape, mx.bool_)
        if s.top_p < 1.0:
            p = mx.softmax(ranked)
            within = mx.cumsum(p) - p < s.top_p
        if s.min_p > 0.0:
            within = within & (ranked >= ranked[0] + math.log(s.min_p))
        n = mx.maximum(mx.sum(within.astype(mx.int32)), 1)
        last = ranked[n - 1]
        ties = mx.sum((ranked == last) & (mx.arange(ranked.size) < n))
        equal = x == last
        return mx.where((x > last) | (equal & (mx.cumsum(equal.astype(mx.int32)) <= ties)), x, -mx.inf)


def _ids_of(mask: np.ndarray, extra_ids: Sequence[int]) -> np.ndarray:
    """int32 ids that are set in a bool mask [V] or among the further ids, each once, ascending."""
    if len(extra_ids):
        mask = mask.copy()
        mask[np.asarray(extra_ids, np.int64)] = True
    return np.flatnonzero(mask).astype(np.int32)
