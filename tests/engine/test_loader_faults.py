"""Bad checkpoints, a failing disk and stops at every stage, through Session.open: one clear error, and the next works."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from qwen_chat_mlx.engine.config import EngineConfig
from qwen_chat_mlx.engine.errors import Cancelled, CheckpointError, QwenChatError, StorageError, UnavailableError
from qwen_chat_mlx.engine.loader import survey

NEVER, ALWAYS = 1 << 30, 1
TABLE = "model.language_model.layers.1.ple.ple_embedding"
EXPERT = "model.language_model.layers.2.mlp.experts.5"
CONFIG, INDEX = "config.json", "model.safetensors.index.json"


def text(change: Callable[[dict[str, Any]], None]) -> Callable[[Any], None]:
    """A change to config.json's text_config."""
    return lambda files: files.json(CONFIG, lambda c: change(c["text_config"]))


def cut_in_half(files: Any) -> None:
    path = files.shard_of("lm_head.weight")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def widen_head(files: Any) -> None:
    path, header, data = files.header("lm_head.weight")
    raw = path.read_bytes()
    old, new = json.dumps([320, 64], separators=(",", ":")), json.dumps([64, 320], separators=(",", ":"))
    at = raw.index(b'"lm_head.weight"')
    head = raw[at:data].replace(old.encode(), new.encode(), 1)
    path.write_bytes(raw[:at] + head + raw[data:])
    assert header


NAN = np.frombuffer(b"\xc0\x7f", np.uint8)

BAD: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no config": (lambda f: (f.folder / CONFIG).unlink(), "config.json"),
    "a config that is no JSON": (lambda f: (f.folder / CONFIG).write_text("{"), "config.json"),
    "another architecture": (
        lambda f: f.json(CONFIG, lambda c: c.update(model_type="qwen4_exq")), "'qwen4_exq' is not supported.*qwen4_exp",
    ),
    "no architecture": (lambda f: f.json(CONFIG, lambda c: c.pop("model_type")), "None is not supported"),
    "a key that is missing": (text(lambda c: c.pop("num_experts")), "num_experts is missing"),
    "a key of another type": (text(lambda c: c.update(hidden_size="64")), "hidden_size is '64'"),
    "more experts a token than there are": (text(lambda c: c.update(num_experts_per_tok=9)), "num_experts_per_tok is 9"),
    "an architecture that is no text": (lambda f: f.json(CONFIG, lambda c: c.update(model_type=["x"])), "not supported"),
    "a budget below a block": (text(lambda c: c.update(indexer_budget=1)), "indexer_budget is 1"),
    "no rotation speed": (text(lambda c: c["rope_parameters"].pop("rope_theta")), "rope_theta is missing"),
    "a rotation nobody knows": (text(lambda c: c["rope_parameters"].update(rope_type="yarn")), "rope_type is 'yarn'"),
    "more features turned than there are": (
        text(lambda c: c["rope_parameters"].update(partial_rotary_factor=2.0)), "partial_rotary_factor means",
    ),
    "an odd number of features turned": (
        text(lambda c: c["rope_parameters"].update(partial_rotary_factor=3 / c["head_dim"])), "means 3 of",
    ),
    "an end outside the vocabulary": (text(lambda c: c.update(eos_token_id=10**8)), "eos_token_id is 100000000"),
    "n-grams longer than what is kept": (text(lambda c: c.update(ngram_size=9)), "ngram_size is 9"),
    "parts of the table stored differently": (
        lambda f: f.widen(f"{TABLE}.ngram_embedding.shard_2.weight"), "shard_2.*BF16",
    ),
    "a scale for an expert that is stored plainly": (
        lambda f: f.widen(f"{EXPERT}.up_proj.weight"), r"experts\.5\.up_proj\.weight_scale_inv",
    ),
    "too few kinds of layers": (text(lambda c: c["layer_types"].pop()), "layer_types names 3 layers"),
    "a kind of layer nobody knows": (text(lambda c: c.update(layer_types=["x"] * 4)), "layer_types holds 'x'"),
    "experts that are not there": (text(lambda c: c.update(num_experts=9)), r"experts\.8|\[8, 64\]"),
    "a layer that is not there": (
        text(lambda c: c.update(num_hidden_layers=5, layer_types=[*c["layer_types"], "linear_attention"])),
        r"layers\.4\.",
    ),
    "no shard": (lambda f: f.shard_of("lm_head.weight").unlink(), "model-00001-of-00002.safetensors"),
    "half a shard": (cut_in_half, "model-00001-of-00002.safetensors"),
    "an index that lies about sizes": (lambda f: f.json(INDEX, lambda i: i["metadata"].update(total_size=1)), "total_size 1"),
    "no index and a shard too few": (
        lambda f: ((f.folder / INDEX).unlink(), (f.folder / "model-00002-of-00002.safetensors").unlink()), "00002",
    ),
    "a shape that lies": (widen_head, r"lm_head\.weight.*\[64, 320\].*\[320, 64\]"),
    "a tensor under another name": (
        lambda f: f.rename("lm_head.weight", "lm_haed.weight"), r"lm_head\.weight.*lm_haed\.weight|lm_haed.*lm_head",
    ),
    "a tensor nobody knows": (
        lambda f: f.rename("model.language_model.layers.0.linear_attn.A_log", "model.language_model.layers.0.linear_attn.A_lag"),
        "A_lag",
    ),
    "an expert without its scale": (lambda f: f.drop(f"{EXPERT}.up_proj.weight_scale_inv"), r"experts\.5\.up_proj"),
    "a scale that is not a number": (
        lambda f: f.change(f"{EXPERT}.gate_proj.weight_scale_inv", lambda b: b.__setitem__(slice(0, 2), NAN)),
        rf"{EXPERT}.gate_proj.weight_scale_inv",
    ),
    "a scale of zero": (
        lambda f: f.change(f"{EXPERT}.down_proj.weight_scale_inv", lambda b: b.__setitem__(slice(0, 2), 0)),
        rf"{EXPERT}.down_proj.weight_scale_inv",
    ),
    "a table scale that is not a number": (
        lambda f: f.change(f"{TABLE}.ngram_embedding.weight_scale", lambda b: b.__setitem__(slice(0, 2), NAN)),
        "ngram_embedding.weight_scale",
    ),
    "another n-gram factor": (
        lambda f: f.change(f"{TABLE}.layer_multipliers", lambda b: b.__setitem__(0, b[0] ^ 2)), "layer_multipliers.*seed 1234",
    ),
    "another n-gram offset": (
        lambda f: f.change(f"{TABLE}.ngram_heads_offsets", lambda b: b.__setitem__(8, b[8] ^ 1)), "ngram_heads_offsets",
    ),
    "another n-gram size": (
        lambda f: f.change(f"{TABLE}.ngram_heads_vocab_sizes", lambda b: b.__setitem__(0, b[0] ^ 4)), "ngram_heads_vocab_sizes",
    ),
    "another seed": (text(lambda c: c.update(seed=0)), "seed 0"),
    "a missing part of the table": (
        lambda f: f.drop(f"{TABLE}.ngram_embedding.shard_2.weight"), r"shard_2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_checkpoint_is_one_clear_error_that_names_the_place(
    files: Any, open_session: Callable[..., Any], fault: str, no_thread_left: None
) -> None:
    damage, words = BAD[fault]
    damage(files)
    with pytest.raises(CheckpointError, match=f"(?s){words}") as e:
        open_session(files.folder)
    assert len(e.value.message) < 700
    assert e.value.__class__ is CheckpointError
    assert e.value.hint
    assert str(files.folder) in e.value.message or e.value.tensor or e.value.path


def test_a_checkpoint_that_was_mended_opens(files: Any, tiny: Any, open_session: Callable[..., Any]) -> None:
    shard = files.shard_of("lm_head.weight")
    aside = shard.rename(shard.with_suffix(".aside"))
    with pytest.raises(CheckpointError):
        open_session(files.folder)
    aside.rename(shard)
    assert np.abs(open_session(files.folder).score(tiny.prompt[:8]) - tiny.logits[:8]).max() <= 2e-4


def test_shards_are_found_without_an_index(files: Any, tiny: Any, open_session: Callable[..., Any]) -> None:
    (files.folder / INDEX).unlink()
    assert np.abs(open_session(files.folder).score(tiny.prompt[:8]) - tiny.logits[:8]).max() <= 2e-4


def test_a_folder_that_does_not_exist_is_named(open_session: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        open_session(tmp_path / "nowhere")


@pytest.mark.parametrize("named", ["", " ", "~nobody-of-this-name/model", "x" * 5000, "a\0b", "no-such/model", "."])
def test_a_model_that_cannot_be_found_is_one_clear_error(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(QwenChatError) as e:
        survey(EngineConfig(model=named))
    assert e.value.exit_code == (1 if named.strip() else 2)
    assert e.value.message[0].isalnum() or e.value.message.startswith((named, repr(named)))
    assert ".:" not in e.value.message
    assert e.value.hint


def test_stored_constants_may_be_absent(files: Any, tiny: Any, open_session: Callable[..., Any]) -> None:
    names = ("layer_multipliers", "ngram_heads_offsets", "ngram_heads_vocab_sizes")
    files.drop(*(f"{TABLE}.{name}" for name in names))
    assert np.abs(open_session(files.folder).score(tiny.prompt) - tiny.logits).max() <= 2e-4


def test_without_a_draft_layer_the_model_runs_and_fixed_drafting_is_refused(
    files: Any, tiny: Any, open_session: Callable[..., Any]
) -> None:
    index = json.loads((files.folder / INDEX).read_text())
    files.drop(*(n for n in index["weight_map"] if n.startswith("mtp.")))
    session = open_session(files.folder, mtp="auto")
    assert np.abs(session.score(tiny.prompt) - tiny.logits).max() <= 2e-4
    assert session.mtp_now().state == "UNAVAILABLE"
    session.set_mtp("auto")
    assert session.mtp_now().state == "UNAVAILABLE"
    with pytest.raises(UnavailableError, match="no MTP layer"):
        open_session(files.folder, mtp="fixed")


# ---- a disk that fails while the model is in use


def fails(kind: str, since: int = 1, what: str = "EIO") -> Callable[[str, int], int | None]:
    def before(of: str, number: int) -> int | None:
        if of != kind or number < since:
            return None
        if what == "EIO":
            raise OSError(errno.EIO, "Input/output error")
        return 0

    return before


COLD: dict[tuple[int, ...], list[int]] = {}
"""Next ids behind a prompt, from sessions that never failed."""


@pytest.fixture
def healthy(tiny: Any, disk: Any, open_session: Callable[..., Any], continued: Any) -> Callable[[Any, list[int]], None]:
    """Two further requests give the ids of a session that never failed; the slots' book is right."""

    def check(session: Any, ids: list[int]) -> None:
        disk.before = lambda kind, number: None
        if tuple(ids) not in COLD:
            COLD[tuple(ids)] = continued(open_session(tiny, expert_cache="100 %"), ids, 3)
        for _ in range(2):
            assert continued(session, ids, 3) == COLD[tuple(ids)]
        consistent(session)

    return check


def consistent(session: Any) -> None:
    """Every resident expert's slot holds exactly its bytes from the files."""
    for store in (session.loaded.store, session.loaded.draft_store):
        residents = store.table.residents()
        assert len(residents) + len(store.table._free) == store.table.slots
        assert len({slot for *_, slot in residents}) == len(residents)
        for layer, expert, slot in residents:
            held = bytes(store.memory(slot))
            for r in store.layout.ranges(layer, expert):
                with Path(r.path).open("rb") as f:
                    f.seek(r.offset)
                    assert f.read(r.n_bytes) == held[r.slot_offset : r.slot_offset + r.n_bytes], (layer, expert)


@pytest.mark.parametrize("what", ["EIO", "end of file"])
@pytest.mark.parametrize(
    ("kind", "since", "threshold"),
    [("experts", 1, NEVER), ("experts", 9, NEVER), ("experts", 1, ALWAYS), ("experts", 3, ALWAYS), ("rows", 1, NEVER), ("rows", 30, ALWAYS)],
)  # fmt: skip
def test_a_read_that_fails_in_the_prompt_is_told_and_forgotten(
    tiny: Any,
    disk: Any,
    open_session: Callable[..., Any],
    healthy: Any,
    kind: str,
    since: int,
    threshold: int,
    what: str,
) -> None:
    session = open_session(tiny, layer_major_threshold=threshold, prefill_step=16)
    ids = tiny.prompt[:40]
    session.prompt(ids[:10])
    disk.forget()
    disk.before = fails(kind, since, what)
    for _ in range(2):
        disk.forget()
        with pytest.raises(StorageError, match=r"model-0000\d-of-00002.safetensors") as e:
            session.prompt(ids)
        assert e.value.hint
        assert session.tokens == ids[:10]
        assert {c.position for c in session.caches} == {10}
    healthy(session, ids)


@pytest.mark.parametrize("what", ["EIO", "end of file"])
@pytest.mark.parametrize("kind", ["experts", "rows"])
def test_a_read_that_fails_between_two_tokens_leaves_the_state_before_it(
    tiny: Any, disk: Any, open_session: Callable[..., Any], healthy: Any, kind: str, what: str
) -> None:
    session = open_session(tiny, expert_cache="10 %")
    ids = tiny.prompt[:40]
    steps = session.generate(ids, 50, ignore_eos=True)
    said = [*next(steps).tokens, *next(steps).tokens]
    disk.forget()
    disk.before = fails(kind, 1, what)
    failed = False
    while not failed and len(said) < 40:
        try:
            said += next(steps).tokens
        except StorageError:
            failed = True
    assert failed
    assert session.tokens == [*ids, *said[:-1]]
    assert {c.position for c in session.caches} == {len(session.tokens)}
    healthy(session, [*ids, *said])
    healthy(session, ids)


def test_short_reads_are_gone_on_with(tiny: Any, disk: Any, open_session: Callable[..., Any]) -> None:
    session = open_session(tiny, layer_major_threshold=ALWAYS)
    disk.before = lambda kind, number: 100 if kind in {"experts", "rows"} else None
    assert np.abs(session.score(tiny.prompt[:20]) - tiny.logits[:20]).max() <= 2e-4


def test_a_read_that_fails_while_loading_is_told_and_loading_again_works(
    tiny: Any, disk: Any, open_session: Callable[..., Any], no_thread_left: None
) -> None:
    for since in (1, 20):
        disk.forget()
        disk.before = fails("weights", since)
        with pytest.raises(QwenChatError, match=r"model-0000\d-of-00002.safetensors"):
            open_session(tiny)
    disk.before = lambda kind, number: None
    session = open_session(tiny)
    assert np.abs(session.score(tiny.prompt[:8]) - tiny.logits[:8]).max() <= 2e-4
    session.close()


def test_scoring_on_a_failing_disk_leaves_the_conversation_alone(
    tiny: Any, disk: Any, open_session: Callable[..., Any], healthy: Any
) -> None:
    session = open_session(tiny)
    ids = tiny.prompt[:30]
    session.prompt(ids)
    disk.before = fails("rows")
    for call in (session.score, session.routes):
        with pytest.raises(StorageError):
            call(tiny.prompt[35:60])
        assert session.forward.on_routes is None
    assert session.tokens == ids
    healthy(session, ids)


# ---- stops


@pytest.mark.parametrize("threshold", [NEVER, ALWAYS])
@pytest.mark.parametrize("at", [1, 4, 7])
def test_a_stop_anywhere_in_a_prompt_leaves_the_timeline_as_it_was(
    tiny: Any, open_session: Callable[..., Any], healthy: Any, threshold: int, at: int
) -> None:
    session = open_session(tiny, layer_major_threshold=threshold, prefill_step=16)
    ids = tiny.prompt[:40]
    session.prompt(ids[:9])
    asked = iter(range(1, 1000))
    session.meter.cancel = lambda: next(asked) == at
    with pytest.raises(Cancelled):
        session.prompt(ids)
    session.meter.cancel = lambda: False
    assert session.tokens == ids[:9]
    assert {c.position for c in session.caches} == {9}
    assert session.stats().ssd.in_flight == 0
    healthy(session, ids)


@pytest.mark.parametrize(("kind", "threshold"), [("experts", NEVER), ("experts", ALWAYS), ("rows", NEVER)])
def test_a_stop_while_waiting_for_the_disk_ends_when_the_read_under_way_does(
    tiny: Any, disk: Any, open_session: Callable[..., Any], healthy: Any, kind: str, threshold: int
) -> None:
    session = open_session(tiny, layer_major_threshold=threshold)
    waiting, go_on = threading.Event(), threading.Event()

    def held(of: str, number: int) -> None:
        if of == kind:
            waiting.set()
            go_on.wait(5)

    # The read that is under way cannot be taken back: it is let go as soon as the stop has been seen.
    def stop() -> bool:
        if waiting.is_set():
            go_on.set()
        return waiting.is_set()

    disk.before, session.meter.cancel = held, stop
    with pytest.raises(Cancelled):
        session.prompt(tiny.prompt)
    session.meter.cancel = lambda: False

    healthy(session, tiny.prompt)


def test_a_stop_between_two_tokens_keeps_what_was_said(
    tiny: Any, open_session: Callable[..., Any], continued: Any, healthy: Any
) -> None:
    session = open_session(tiny)
    steps = session.generate(tiny.prompt, 50, ignore_eos=True)
    said = [t for _ in range(3) for t in next(steps).tokens]
    session.meter.cancel = lambda: True
    with pytest.raises(Cancelled):
        next(steps)
    session.meter.cancel = lambda: False
    assert session.tokens == [*tiny.prompt, *said[:2]]
    assert continued(session, [*tiny.prompt, *said], 2) == tiny.greedy[3:5]
    healthy(session, tiny.prompt)


def test_a_stop_while_loading_ends_every_thread(
    tiny: Any, open_session: Callable[..., Any], no_thread_left: None
) -> None:
    from qwen_chat_mlx.engine.config import EngineConfig
    from qwen_chat_mlx.engine.session import Session

    def stop(phase: str, done: int, total: int, unit: str) -> None:
        if done >= 32 or phase == "reading scales":
            raise Cancelled("Stopped.")

    with pytest.raises(Cancelled):
        Session.open(EngineConfig(model=str(tiny.path), memory_limit="4 GiB"), stop)
    open_session(tiny).close()


def test_closing_ends_every_thread_and_may_be_done_twice(
    tiny: Any, open_session: Callable[..., Any], no_thread_left: None
) -> None:
    session = open_session(tiny)
    mx.eval(session.prompt(tiny.prompt)[0])
    session.close()
    session.close()


def test_a_session_that_cannot_be_made_leaves_no_thread(
    tiny: Any, open_session: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, no_thread_left: None
) -> None:
    monkeypatch.setattr("qwen_chat_mlx.engine.session.PromptOrder", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        open_session(tiny)
