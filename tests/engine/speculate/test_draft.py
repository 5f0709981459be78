"""The draft layer against the reference, and its cache against one filled in a single pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from qwen_chat_mlx.engine.errors import UnavailableError

WITHIN = 2e-4


@pytest.mark.parametrize("step", [1, 7, pytest.param(64, marks=pytest.mark.slow)])
def test_draft_logits_of_every_pair_are_the_references(
    oracle: Any, open_session: Callable[..., Any], step: int
) -> None:
    session = open_session(oracle, mtp="auto", prefill_step=step)
    # Pairs do not see later ones, so a short prompt's logits are the first of the long one's.
    prompt = oracle.prompt[:24] if step == 1 else oracle.prompt
    logits = session.score_draft(prompt)
    reference = oracle.reference["mtp_logits"][: len(prompt) - 1]
    assert logits.shape == reference.shape
    assert np.abs(logits - reference).max() <= WITHIN


@pytest.mark.parametrize("threshold", [1, 1 << 30])
def test_a_self_fed_chain_after_the_prompt_is_the_references(
    oracle: Any, open_session: Callable[..., Any], threshold: int
) -> None:
    session = open_session(oracle, mtp="auto", prefill_step=16, layer_major_threshold=threshold)
    session.prompt(oracle.prompt)
    drafter = session._rounds.drafter
    logits = drafter.start(session.tokens, oracle.greedy[0])
    for j, token in enumerate(oracle.reference["mtp_chain_tokens"].tolist()):
        assert np.abs(np.array(logits) - oracle.reference["mtp_chain_logits"][j]).max() <= WITHIN
        assert int(mx.argmax(logits).item()) == token
        logits = drafter.go_on(token)


def cache_rows(drafter: Any) -> list[np.ndarray]:
    """What the draft cache holds of true pairs."""
    cache = drafter.cache
    n = drafter.cache.position - drafter._self_fed
    pooled = [] if not cache.index.blocks else [np.array(cache.index.pooled())[: n // cache.index.ratio]]
    return [np.array(cache.keys.valid())[:, :n], np.array(cache.values.valid())[:, :n], *pooled]


def filled_in_one_pass(session: Any) -> Any:
    """A drafter with every pair of the session's timeline, from a fresh trunk pass."""
    from qwen_chat_mlx.engine.prefill import run_prompt

    wide: list[Any] = []
    caches = [layer.new_cache() for layer in session.model.layers]
    run_prompt(session.forward, caches, [], session.tokens, session._order, on_rows=lambda _, w: wide.append(w))
    drafter = session._rounds.drafter.fresh()
    rows = mx.concatenate(wide)
    drafter.score(lambda start, stop: rows[start:stop], session.tokens[1:])
    return drafter


@pytest.mark.parametrize("right", [1, 3, pytest.param(0, marks=pytest.mark.slow)])
def test_after_each_refresh_the_draft_cache_is_the_one_of_a_plain_pass(
    tiny: Any, plain: Any, open_session: Callable[..., Any], scripted: Callable[..., Any], right: int
) -> None:
    session = open_session(tiny, mtp="fixed", max_draft=3)
    scripted(session, plain.with_reply(tiny.prompt, 24), lambda _: right)
    for _ in session.generate(tiny.prompt, 14, ignore_eos=True):
        pass
    session._rounds.drafter.fill(session.tokens)
    for got, want in zip(cache_rows(session._rounds.drafter), cache_rows(filled_in_one_pass(session)), strict=True):
        np.testing.assert_allclose(got, want, atol=2e-5)


def test_a_second_turn_fills_only_the_new_pairs(
    tiny: Any, open_session: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_session(tiny, mtp="fixed", max_draft=2)
    session.prompt(tiny.prompt[:40])
    drafter = session._rounds.drafter
    assert drafter.cache.position == 39
    seen: list[int] = []
    join = drafter._model.join
    monkeypatch.setattr(
        drafter._model, "join", lambda wide, tokens: (seen.append(wide.shape[0]), join(wide, tokens))[1]
    )
    session.prompt(tiny.prompt)
    assert (sum(seen), drafter.cache.position) == (len(tiny.prompt) - 40, len(tiny.prompt) - 1)


def test_filling_asks_no_expert_and_attends_nothing(
    tiny: Any, open_session: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = open_session(tiny).loaded.survey.needs.draft
    session = open_session(tiny, mtp="auto", draft_expert_cache=pool.top_k * pool.slot_bytes, prefill_step=16)
    layer = session.model.draft.layer
    monkeypatch.setattr(layer, "mix", lambda *_, **__: pytest.fail("the whole layer was computed"))
    session.prompt(tiny.prompt)
    assert session._rounds.drafter.cache.position == len(tiny.prompt) - 1
    assert session.stats().draft_experts.misses == 0
    monkeypatch.undo()
    for got, want in zip(cache_rows(session._rounds.drafter), cache_rows(filled_in_one_pass(session)), strict=True):
        np.testing.assert_array_equal(got.shape, want.shape)
        np.testing.assert_allclose(got, want, atol=2e-5)
    assert np.abs(session.score_draft(tiny.prompt) - tiny.reference["mtp_logits"]).max() <= WITHIN


def test_a_checkpoint_without_a_draft_layer_works_and_says_why_it_does_not_draft(
    files: Any, folder: Any, tiny: Any, open_session: Callable[..., Any]
) -> None:
    files.drop(*(n for shard in folder.glob("*.safetensors") for n in _names(shard) if n.startswith("mtp.")))
    session = _repacked(folder, open_session, mtp="auto")
    assert [t for s in session.generate(tiny.prompt, 6, ignore_eos=True) for t in s.tokens] == tiny.greedy[:6]
    now = session.mtp_now()
    assert (now.state, now.reason) == ("UNAVAILABLE", "this model has no MTP layer")
    with pytest.raises(UnavailableError, match="MTP"):
        session.score_draft(tiny.prompt)
    with pytest.raises(UnavailableError, match="MTP"):
        open_session(folder, mtp="fixed")


def _names(shard: Any) -> list[str]:
    from safetensors import safe_open

    with safe_open(shard, framework="np") as f:
        return list(f.keys())


def _repacked(folder: Any, open_session: Callable[..., Any], **settings: Any) -> Any:
    """Shards rewritten without holes, as a writer that drops tensors would leave them."""
    import json
    import struct

    total = 0
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    for shard in folder.glob("*.safetensors"):
        raw = shard.read_bytes()
        (size,) = struct.unpack("<Q", raw[:8])
        header, data = json.loads(raw[8 : 8 + size]), raw[8 + size :]
        meta = {k: v for k, v in header.items() if k == "__metadata__"}
        out, offset = b"", 0
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            start, stop = entry["data_offsets"]
            out += data[start:stop]
            meta[name] = {**entry, "data_offsets": [offset, offset + stop - start]}
            offset += stop - start
        total += offset
        text = json.dumps(meta).encode()
        shard.write_bytes(struct.pack("<Q", len(text)) + text + out)
    index["metadata"]["total_size"] = total
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return open_session(folder, **settings)
