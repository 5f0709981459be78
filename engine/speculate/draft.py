"""The draft layer with its cache: pairs (wide hidden of position i, token i + 1) in, drafts out.

Invariant: the cache holds the pairs of positions base … base + n - 1, all from true wide hiddens, and the wide hiddens of
every position behind them are kept, so that the missing pairs can be filled before the next draft. Self-fed pairs live
only inside a round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import mlx.core as mx
import numpy as np

from ..cache.base import LayerCache
from ..forward import TOGETHER_ROWS
from ..meter import Meter
from ..models.contract import DraftModel, ExpertInput, as_ids
from ..offload.experts import ExpertStore
from ..sampling import Sampler

__all__ = ["Draft", "Drafter"]

FILLED_APART = 16
"""From this many missing pairs on they are put into the cache alone; fewer ride along with the anchor's pair."""


@dataclass(frozen=True, slots=True)
class Draft:
    """One drafted token."""

    token: int
    confidence: float
    """Probability that the draft layer gave to it, before the sampler's filters."""
    weights: mx.array
    """The filtered log-weights [V] it was drawn from."""


class _Kept:
    """Wide hiddens of positions start … end - 1, in the pieces in which they came.

    It only grows at its end: who saved it goes back by cutting it there, however long it has become.
    """

    def __init__(self, start: int = 0, pieces: Sequence[mx.array] = ()) -> None:
        self.start = start
        self._pieces = list(pieces)
        self.end = start + sum(p.shape[0] for p in self._pieces)
        self.nbytes = sum(p.nbytes for p in self._pieces)

    def append(self, start: int, wide: mx.array) -> None:
        if self.start == self.end:
            self.start = self.end = start
        assert start == self.end, "positions follow each other"
        self._pieces.append(wide)
        self.end += wide.shape[0]
        self.nbytes += wide.nbytes

    def cut(self, end: int) -> None:
        """Forget what was appended since it ended at `end`."""
        while self._pieces and self.end > end:
            piece = self._pieces.pop()
            self.end -= piece.shape[0]
            self.nbytes -= piece.nbytes
        if not self._pieces:
            self.start = self.end = end

    def newest(self, most_bytes: int) -> _Kept:
        """The newest pieces within `most_bytes`; the last one at least."""
        first, n_bytes = len(self._pieces), 0
        while first and (first == len(self._pieces) or n_bytes + self._pieces[first - 1].nbytes <= most_bytes):
            first -= 1
            n_bytes += self._pieces[first].nbytes
        return _Kept(self.start + sum(p.shape[0] for p in self._pieces[:first]), self._pieces[first:])

    def __len__(self) -> int:
        return len(self._pieces)

    def rows(self, first: int, end: int) -> mx.array:
        """Positions first … end - 1 as [end - first, W]; copies no more than the pieces that these lie in."""
        found, start = [], self.start
        for piece in self._pieces:
            if start < end and first < start + piece.shape[0]:
                found.append(piece[max(0, first - start) : end - start])
            start += piece.shape[0]
        return found[0] if len(found) == 1 else mx.concatenate(found, axis=0)

    def before(self, end: int) -> _Kept:
        """The part below position `end`."""
        kept, left = [], end - self.start
        for piece in self._pieces:
            if left <= 0:
                break
            kept.append(piece[:left])
            left -= piece.shape[0]
        return _Kept(self.start, kept)


class Drafter:
    """Drafts for one timeline."""

    def __init__(self, model: DraftModel, store: ExpertStore, meter: Meter, *, step: int, keep_bytes: int) -> None:
        """`step` pairs go through the layer at once; wide hiddens are kept up to `keep_bytes` while nothing is drafted."""
        self._model, self._store, self._meter = model, store, meter
        self._step, self._keep_bytes = step, keep_bytes
        self.cache: LayerCache = model.layer.new_cache()
        self._base = 0
        self._kept = _Kept()
        self._last_wide: mx.array | None = None
        self._self_fed = 0
        self.first_rows = 0
        """Pairs that the first forward of the latest round took, missing ones included."""
        self.refilled = 0
        """Pairs filled in after drafting was off."""
        self.on_routes: Callable[[np.ndarray], None] | None = None
        """Told the expert ids [t, k] of every forward."""
        self.holes = 0
        """Times the cache had to start anew because too many wide hiddens were missing."""

    def fresh(self) -> Drafter:
        """A drafter over the same layer with nothing in its cache."""
        return Drafter(self._model, self._store, self._meter, step=self._step, keep_bytes=self._keep_bytes)

    # ---- following the trunk

    @property
    def kept_rows(self) -> int:
        """Positions whose wide hiddens are kept."""
        return self._kept.end - self._kept.start

    @property
    def _next(self) -> int:
        """Position of the first pair that is missing."""
        return self._base + self.cache.position - self._self_fed

    def note(self, start: int, wide: mx.array) -> None:
        """The trunk has consumed positions start … start + T - 1 with residual wide [T, W], for good."""
        self._kept.append(start, wide)

    def shrink(self) -> None:
        """Drop the oldest kept rows beyond the budget; called while nothing is drafted."""
        if self._kept.nbytes > self._keep_bytes:
            # An eighth more than has to go, so that not every step drops some.
            self._kept = self._kept.newest(self._keep_bytes - self._keep_bytes // 8)

    def rewind(self, position: int, wide: mx.array | None) -> None:
        """The timeline ends at `position` again; `wide` [1, W] is the residual of its last row."""
        self._drop_self_fed()
        last = position - 1
        if last < self._base or wide is None:
            self.cache, self._base = self._model.layer.new_cache(), max(0, last)
            self._kept = _Kept(last, [wide]) if wide is not None else _Kept()
            return
        if self._next > last:
            self.cache.restore(last - self._base)
        if self._next < last and self._kept.start <= last:
            self._kept = self._kept.before(position)
        else:
            self._kept = _Kept(last, [wide])

    def save(self) -> Any:
        """State for `restore`, taken outside a round."""
        return self.cache, self.cache.save(), self._base, self._kept, self._kept.end

    def restore(self, saved: Any) -> None:
        self.cache, state, self._base, self._kept, end = saved
        self.cache.restore(state)
        self._kept.cut(end)
        self._self_fed = 0

    # ---- filling

    def fill(self, tokens: Sequence[int], progress: Callable[[int, int], None] = lambda *_: None) -> int:
        """Append every pair that `tokens`, the trunk's timeline, allows. Returns how many.

        The cache needs of a pair only what goes into the layer, so no expert is asked and nothing attended. Leaves the last
        position's wide hidden kept: its pair needs the token that comes next.
        """
        self._drop_self_fed()
        if not len(self._kept):
            return 0
        if self._kept.start > self._next:
            # Wide hiddens are missing before the kept ones: start anew from the newest contiguous run.
            self.cache, self._base = self._model.layer.new_cache(), self._kept.start
            self.holes += 1
        first, kept = self._next, self._kept
        count = kept.end - 1 - first
        for start in range(first, first + count, self._step):
            self._meter.check()
            stop = min(first + count, start + self._step)
            x = self._model.join(kept.rows(start, stop), as_ids(tokens[start + 1 : stop + 1]))
            self._model.layer.append(x, self.cache)
            mx.eval(self.cache.arrays())
            progress(stop - first, count)
        # A slice would keep all of the prompt's rows alive.
        last = mx.contiguous(kept.rows(first + count, kept.end))
        mx.eval(last)
        self._kept = _Kept(first + count, [last])
        return count

    def score(
        self, wide: Callable[[int, int], mx.array], tokens: Sequence[int],
        on_rows: Callable[[mx.array], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """Append pairs in steps, with the whole layer computed: `wide(start, stop)` gives their wide hiddens [t, W], tokens
        [T] are all of theirs; `on_rows(residual [t, W])` sees each step."""
        count = len(tokens)
        for start in range(0, count, self._step):
            stop = min(count, start + self._step)
            x = self._run(wide(start, stop), tokens[start:stop])
            mx.eval(x, self.cache.arrays())
            on_rows(x)

    def _run(self, wide: mx.array, tokens: Sequence[int], *, last: bool = False) -> mx.array:
        """Pairs [T] -> the layer's own residual [T, W], or [1, W] of the `last` alone; the cache grows by T."""
        self._meter.check()
        layer = self._model.layer
        x, asked = layer.mix(self._model.join(wide, as_ids(tokens)), self.cache, None)
        if last and len(tokens) > 1:
            # The cache has what it needs of the other pairs before their experts.
            x, asked = x[-1:], ExpertInput(*(getattr(asked, f.name)[-1:] for f in fields(asked)))
        if asked.ids.size < TOGETHER_ROWS and self.on_routes is None:
            self._store.fill()
            if self._store.whole():
                return layer.merge(x, asked, self._store.run_unread(0, [asked.hidden], [asked.ids])[0])
        with self._meter.wait("router_sync"):
            mx.eval(asked.ids)
        self._store.syncs += 1
        ids = np.array(asked.ids)
        if self.on_routes is not None:
            self.on_routes(ids)
        outputs = self._store.run(0, [asked.hidden], [ids], together=ids.shape[0] > 1)[0]
        return layer.merge(x, asked, outputs)

    # ---- drafting

    def start(self, tokens: Sequence[int], anchor: int) -> mx.array:
        """Fill what is missing together with the anchor's pair; logits [V] for the token behind the anchor.

        `tokens` is the trunk's timeline, `anchor` the token sampled behind it.
        """
        last = len(tokens) - 1
        self.first_rows = last + 1 - self._next
        if last - self._next >= FILLED_APART or self._kept.start > self._next:
            self.refilled += self.fill(tokens)
        self._drop_self_fed()
        first = self._next
        self._last_wide = self._run(self._kept.rows(first, last + 1), [*tokens[first + 1 :], anchor], last=True)
        return self._model.head(self._last_wide)[0]

    def go_on(self, token: int) -> mx.array:
        """Feed the draft just made with the layer's own residual; logits [V] for the token behind it."""
        assert self._last_wide is not None
        self._last_wide = self._run(self._last_wide, [token])
        self._self_fed += 1
        return self._model.head(self._last_wide)[0]

    def choose(self, logits: mx.array, sampler: Sampler, extra: Sequence[int], position: int) -> Draft:
        """The draft for `position`, by the trunk's own sampler."""
        weights = sampler.filter(logits, extra)
        picked = sampler.pick(weights, position)
        sure = mx.exp(logits[mx.maximum(picked, 0)] - mx.logsumexp(logits))
        mx.eval(picked, sure, self.cache.arrays())
        token = int(picked)
        # Where the layer's output is not a number any draft is as good: the trunk decides, and it will say no.
        return Draft(token, float(sure), weights) if token >= 0 else Draft(0, 0.0, weights)

    def end_round(self) -> None:
        """Forget the self-fed pairs; the anchor's pair stays, it is a true one, and with it no kept row is needed."""
        self._drop_self_fed()
        self._kept = _Kept(self._next)

    def _drop_self_fed(self) -> None:
        if self._self_fed:
            self.cache.restore(self.cache.position - self._self_fed)
            self._self_fed = 0

    def arrays(self) -> list[mx.array]:
        """What has to be evaluated with the trunk's states."""
        return self.cache.arrays()

    def nbytes(self) -> int:
        return self.cache.nbytes() + self._kept.nbytes
