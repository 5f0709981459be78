"""The rewind beside another way to the same states: mixers of recurrent layers run again on captured block inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest


def recurrent_layers(session: Any) -> list[int]:
    return [i for i, layer in enumerate(session.model.layers) if not layer._sparse]


@pytest.mark.parametrize("verify", ["strict", "batched"])
def test_the_states_are_those_of_table_embedding_input_mix_and_mixer_run_again(
    tiny: Any, plain: Any, open_session: Callable[..., Any], scripted: Callable[..., Any], verify: str
) -> None:
    session = open_session(tiny, mtp="fixed", max_draft=3, verify=verify)
    scripted(session, plain.with_reply(tiny.prompt, 24), lambda r: r % 4)
    rounds, layers = session._rounds, session.model.layers
    seen: dict[int, list[tuple[Any, Any]]] = {}
    for number in recurrent_layers(session):
        layers[number].mix = _capturing(session, number, layers[number].mix, seen)
    saved: list[Any] = []
    save, keep, compared = rounds._save, rounds._keep, []

    def saving() -> Any:
        seen.clear()
        saved[:] = [c.save() for c in session.caches]
        return save()

    def comparing(kept: int, ids: Sequence[int], wide: Any) -> float:
        took = keep(kept, ids, wide)
        for number in recurrent_layers(session):
            layer, cache = layers[number], layers[number].new_cache()
            cache.restore(saved[number])
            x = mx.concatenate([x for x, _ in seen[number]])[:kept]
            mixer = cache
            if layer._ple is not None:
                rows = mx.concatenate([r for _, r in seen[number]])[:kept]
                x, mixer = x + layer._ple(x, rows, cache["ple"]), cache["mixer"]
            layer._mixer(layer._attn_mix(x)[0], mixer)
            for got, want in zip(session.caches[number].arrays(), cache.arrays(), strict=True):
                np.testing.assert_allclose(np.array(got), np.array(want), atol=1e-5)
            compared.append(kept)
        return took

    rounds._save, rounds._keep = saving, comparing
    for _ in session.generate(tiny.prompt, 20, ignore_eos=True):
        pass
    assert set(compared) == {1, 2, 3, 4}


def _capturing(session: Any, number: int, mix: Any, seen: dict[int, list[tuple[Any, Any]]]) -> Any:
    def watched(x: Any, cache: Any, rows: Any, *, apart: bool = False) -> Any:
        if session.meter.phase_name == "verify":
            seen.setdefault(number, []).append((x, rows))
        return mix(x, cache, rows, apart=apart)

    return watched
