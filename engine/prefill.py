"""A prompt through a model, in whichever order is cheaper: layer by layer, or chunk by chunk. Knows no session.

Chunks end at multiples of the step and at `cuts`, behind which the state of every layer is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from .cache.base import LayerCache, arrays_of
from .forward import Forward
from .plan import PREFILL_WINDOW

__all__ = ["PromptOrder", "chunk_ends", "run_prompt"]

OnRows = Callable[[int, mx.array], None]
"""(offset of the first row, residual after the last layer [t, W]); rows arrive in order."""
OnCut = Callable[[int, list[Any], mx.array], None]
"""(offset, every layer's saved state, residual of the last row [1, W])."""
OnWindow = Callable[[int], None]
"""(offset behind a window of a layer-major pass), once its rows have been handed out."""
OnProgress = Callable[[float, str], None]
"""(tokens through, phase)."""


@dataclass(frozen=True, slots=True)
class PromptOrder:
    """How prompts are cut."""

    step: int
    layer_major_from: int
    """New tokens from which on layers are the outer loop."""


def chunk_ends(total: int, step: int, cuts: Sequence[int]) -> list[int]:
    """Ascending ends of chunks of at most `step` tokens, with every cut in 1 … total - 1 among them."""
    ends: list[int] = []
    start = 0
    for cut in sorted({c for c in cuts if 0 < c < total} | {total}):
        ends += [*range(start + step, cut, step), cut]
        start = cut
    return ends


def run_prompt(
    forward: Forward,
    caches: Sequence[LayerCache],
    before: Sequence[int],
    ids: Sequence[int],
    order: PromptOrder,
    *,
    cuts: Sequence[int] = (),
    on_rows: OnRows = lambda *_: None,
    on_cut: OnCut = lambda *_: None,
    on_window: OnWindow = lambda _: None,
    progress: OnProgress = lambda *_: None,
) -> mx.array:
    """ids behind the caches -> residual of the last row [1, W], evaluated with the caches.

    On an error the caches are left between two states: the caller restores them.
    """
    ends = chunk_ends(len(ids), order.step, cuts)
    wanted = {c for c in cuts if 0 < c < len(ids)}
    last: mx.array | None = None
    if len(ids) >= order.layer_major_from and forward.can_layer_major:
        for first, stop in _windows(ends):
            last = _window(forward, caches, before, ids, ends, first, stop, wanted, on_rows, on_cut, progress)
            on_window(ends[stop - 1])
    else:
        start = 0
        for end in ends:
            wide = forward.token_major(caches, _last(before, ids, start), ids[start:end])
            with forward.meter.wait("output_sync"):
                mx.eval(wide, arrays_of(list(caches)))
            on_rows(start, wide)
            last = wide[-1:]
            if end in wanted:
                on_cut(end, [c.save() for c in caches], last)
            progress(end, "prompt")
            start = end
    assert last is not None
    return last


def _last(before: Sequence[int], ids: Sequence[int], start: int, count: int = 16) -> list[int]:
    """The last few tokens before offset `start`."""
    return [*before[max(0, len(before) - count) :], *ids[max(0, start - count) : start]]


def _windows(ends: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of chunks [first, stop) of at most PREFILL_WINDOW tokens each."""
    windows: list[tuple[int, int]] = []
    first = begin = 0
    for i, end in enumerate(ends):
        if end - begin > PREFILL_WINDOW and i > first:
            windows.append((first, i))
            first, begin = i, ends[i - 1]
    return [*windows, (first, len(ends))]


def _window(
    forward: Forward, caches: Sequence[LayerCache], before: Sequence[int], ids: Sequence[int], ends: Sequence[int],
    first: int, stop: int, wanted: set[int], on_rows: OnRows, on_cut: OnCut, progress: OnProgress,
) -> mx.array:  # fmt: skip
    """Chunks [first, stop) layer by layer."""
    starts = [0, *ends[:-1]][first:stop]
    begin = starts[0]
    chunks = [ids[a:b] for a, b in zip(starts, ends[first:stop])]
    size = ends[stop - 1] - begin
    saves = [i for i, end in enumerate(ends[first:stop]) if end in wanted]
    done = forward.layer_major(
        caches, _last(before, ids, begin), chunks, saves,
        lambda n, of: progress(begin + size * n / of, "prompt"),
    )  # fmt: skip
    for i, start in enumerate(starts):
        on_rows(start, done.wide[i])
        if i in done.saved:
            on_cut(ends[first + i], done.saved[i], done.wide[i][-1:])
    return done.wide[-1][-1:]
