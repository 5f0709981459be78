"""Packed folders: what the model says from one, what lies in it, and the forms against MLX's own."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from qwen_chat_mlx.engine.checkpoint.codes import Form, form_for
from qwen_chat_mlx.engine.checkpoint.index import open_checkpoint, read_tensor
from qwen_chat_mlx.engine.checkpoint.names import canonical_entries
from qwen_chat_mlx.engine.checkpoint.pack import EXPERT_FORMS, pack, packed_expert_bytes, verify
from qwen_chat_mlx.engine.checkpoint.pack_manifest import PAGE
from qwen_chat_mlx.engine.checkpoint.quant import read_f32, read_quantization
from qwen_chat_mlx.engine.errors import CheckpointError

FIXTURES = Path(__file__).parent / "fixtures"
TRUNK = "model.language_model.layers"


def values(folder: Path, prefix: str, expert: int) -> dict[str, np.ndarray]:
    """One expert's matrices of a published layout, in float32."""
    index = open_checkpoint(folder)
    entries, quantization = canonical_entries(index.entries), read_quantization(index.config, "config.json")
    stem = f"{prefix}.mlp.experts"
    if f"{stem}.down_proj" in entries:
        both, down = (
            read_f32(entries, f"{stem}.{name}", quantization)[expert] for name in ("gate_up_proj", "down_proj")
        )
        return {"gate_up": both, "down": down}
    gate, up, down = (
        read_f32(entries, f"{stem}.{expert}.{role}_proj.weight", quantization) for role in ("gate", "up", "down")
    )
    return {"gate_up": np.concatenate([gate, up]), "down": down}


def mlx_codes(matrix: np.ndarray, form: Form) -> list[np.ndarray]:
    """What mx.quantize stores: codes, scales, and biases."""
    found = mx.quantize(mx.array(matrix), group_size=form.group, bits=form.bits, mode=form.kind)
    return [np.array(a.astype(mx.bfloat16).view(mx.uint16) if a.dtype == mx.float32 else a) for a in found]


def distance(logits: np.ndarray, reference: np.ndarray) -> float:
    """Median over positions of the relative error: with random weights, rounding moves some rows to other experts."""
    off = np.sqrt(np.square(logits - reference).mean(-1)) / reference.std(-1)
    return float(np.median(off))


@pytest.mark.parametrize("name", ["bf16-1", "fp8-2"])
@pytest.mark.parametrize("form", EXPERT_FORMS)
def test_every_blob_holds_the_bytes_of_mlx_and_begins_on_a_page(form: str, name: str, tmp_path: Path) -> None:
    done = pack(FIXTURES / name, tmp_path / "packed", experts=form)
    layout = done.manifest.experts
    assert list(layout.layers) == [*(f"{TRUNK}.{i}" for i in range(4)), "mtp.layers.0"]
    assert layout.blob_bytes % PAGE == 0
    assert layout.blob_bytes == packed_expert_bytes(32, 64, form)
    stored = form_for(form, (64, 32)) if form != "bf16" else None
    for prefix, expert in ((f"{TRUNK}.0", 0), (f"{TRUNK}.3", 7), ("mtp.layers.0", 2)):
        blob = np.fromfile(tmp_path / "packed" / layout.layers[prefix], np.uint8)[expert * layout.blob_bytes :]
        found = [blob[p.offset : p.offset + p.n_bytes] for p in layout.parts]
        want = []
        for matrix in values(FIXTURES / name, prefix, expert).values():
            want += (
                mlx_codes(matrix, stored)
                if stored
                else [np.array(mx.array(matrix).astype(mx.bfloat16).view(mx.uint16))]
            )
        assert len(found) == len(want)
        for ours, theirs in zip(found, want):
            np.testing.assert_array_equal(ours, theirs.reshape(-1).view(np.uint8))


def test_bf16_experts_say_the_same_bit_for_bit(
    tmp_path: Path, open_session: Callable[..., Any], continued: Any
) -> None:
    plain = open_session(FIXTURES / "bf16-1", mtp="auto")
    prompt = np.load(FIXTURES / "bf16-1" / "reference.npz")["prompt"].tolist()
    pack(FIXTURES / "bf16-1", tmp_path / "packed", experts="bf16")
    packed = open_session(tmp_path / "packed", mtp="auto")
    np.testing.assert_array_equal(packed.score(prompt), plain.score(prompt))
    np.testing.assert_array_equal(packed.score_draft(prompt), plain.score_draft(prompt))
    assert continued(packed, prompt, 8) == continued(plain, prompt, 8)


@pytest.mark.parametrize("form", ["mxfp4", "mxfp8"])
def test_rounded_experts_say_what_mlx_makes_of_them(
    form: str, files: Any, tmp_path: Path, open_session: Callable[..., Any]
) -> None:
    """Against an unpacked copy whose BF16 experts were replaced by their rounded values, which BF16 holds exactly."""
    source = Path(shutil.copytree(FIXTURES / "bf16-1", tmp_path / "source"))
    reference = np.load(source / "reference.npz")
    prompt = reference["prompt"].tolist()
    pack(source, tmp_path / "packed", experts=form)
    f = form_for(form, (64, 32))
    assert f is not None

    def change(raw: np.ndarray) -> None:
        w = mx.array(raw.view(np.uint16)).view(mx.bfloat16).reshape(-1, f.group)
        q = mx.quantize(w, group_size=f.group, bits=f.bits, mode=f.kind)
        back = mx.dequantize(*q, group_size=f.group, bits=f.bits, mode=f.kind, dtype=mx.bfloat16)
        raw[:] = np.array(back.view(mx.uint16)).reshape(-1).view(np.uint8)

    for name in open_checkpoint(source).entries:
        if ".mlp.experts." in name:
            type(files)(source).change(name, change)
    want = open_session(source).score(prompt)
    assert np.abs(want - reference["logits"]).max() > 1e-3, "the rounding cannot be seen"
    for cache, threshold in (("100 %", 1), ("25 %", 1 << 30)):
        session = open_session(tmp_path / "packed", expert_cache=cache, layer_major_threshold=threshold, direct_io="on")
        np.testing.assert_allclose(session.score(prompt), want, atol=2e-4, rtol=0)


@pytest.mark.parametrize(("form", "within"), [("mxfp8", 0.1), ("affine8", 0.02), ("affine4", 0.3), ("mxfp4", 0.5)])
@pytest.mark.parametrize("name", ["bf16-1", "fp8-2"])
def test_the_logits_stay_near_the_published_ones(
    form: str, within: float, name: str, tmp_path: Path, open_session: Callable[..., Any]
) -> None:
    reference = np.load(FIXTURES / name / "reference.npz")
    pack(FIXTURES / name, tmp_path / "packed", experts=form)
    logits = open_session(tmp_path / "packed").score(reference["prompt"].tolist())
    assert 0 < distance(logits, reference["logits"]) < within


def test_an_expert_is_one_aligned_read_and_a_layer_is_one_too(tmp_path: Path, open_session: Callable[..., Any]) -> None:
    pack(FIXTURES / "fp8-2", tmp_path / "packed")
    survey = open_session(tmp_path / "packed").loaded.survey
    for layout in (survey.layout, survey.draft_layout):
        for expert in (0, 1, 7):
            (read,) = layout.ranges(layout.n_layers - 1, expert)
            assert (read.offset, read.n_bytes, read.slot_offset) == (expert * layout.slot_bytes, layout.slot_bytes, 0)
            assert read.n_bytes % PAGE == 0
        (whole,) = layout.layer_image(0).ranges
        assert whole.n_bytes == 8 * layout.slot_bytes == Path(whole.path).stat().st_size
        assert layout.expert_bytes == layout.slot_bytes


def test_a_source_may_be_named_as_a_model_of_the_hugging_face_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = tmp_path / "hub" / "models--Qwen--Tiny" / "snapshots" / "abc"
    shutil.copytree(FIXTURES / "fp8-1", snapshot)
    assert pack("Qwen/Tiny", tmp_path / "packed").manifest.source == open_checkpoint(snapshot).fingerprint
    with pytest.raises(CheckpointError, match="neither a folder nor a model in the Hugging Face cache") as e:
        pack("Qwen/Other", tmp_path / "other")
    assert "hf download Qwen/Other" in e.value.hint
    assert not (tmp_path / "other").exists()


def test_direct_reads_of_a_packed_folder_need_no_copy(tmp_path: Path, open_session: Callable[..., Any]) -> None:
    pack(FIXTURES / "fp8-2", tmp_path / "packed")
    prompt = np.load(FIXTURES / "fp8-2" / "reference.npz")["prompt"].tolist()
    sessions = [open_session(tmp_path / "packed", direct_io=mode) for mode in ("off", "on")]
    first, second = (s.score(prompt) for s in sessions)
    np.testing.assert_array_equal(first, second)
    layout, store = sessions[1].loaded.survey.layout, sessions[1].loaded.store
    for slot in range(2):
        address = ctypes.addressof(ctypes.c_char.from_buffer(store.memory(slot)))
        assert (address | layout.ranges(0, 1)[0].offset | len(store.memory(slot))) % PAGE == 0


def test_resident_tensors_with_eight_bits_stay_near_and_what_decides_stays_as_it_was(
    tmp_path: Path, open_session: Callable[..., Any], continued: Any
) -> None:
    reference = np.load(FIXTURES / "bf16-1" / "reference.npz")
    done = pack(FIXTURES / "bf16-1", tmp_path / "packed", experts="bf16", resident=8)
    names = set(done.manifest.quantised)
    assert {"lm_head.weight", f"{TRUNK}.0.linear_attn.in_proj_qkv.weight", "mtp.fc_hidden.weight"} <= names
    for kept in (
        "mlp.gate",
        "norm",
        "conv1d",
        "inject",
        "shared_expert_gate",
        "weight_up",
        "index",
        "embed",
        "in_proj_a",
    ):
        assert not [name for name in names if f"{kept}." in name or f"{kept}_" in name], kept
    index = open_checkpoint(tmp_path / "packed")
    source = canonical_entries(open_checkpoint(FIXTURES / "bf16-1").entries)
    for name in (f"{TRUNK}.0.mlp.gate.weight", f"{TRUNK}.1.ple.ple_embedding.ngram_embedding.shard_3.weight"):
        np.testing.assert_array_equal(read_tensor(index.entries[name]), read_tensor(source[name]))
    head = mx.array(read_tensor(source["lm_head.weight"])).view(mx.bfloat16)
    for part, want in zip(("weight", "scales", "biases"), mx.quantize(head, group_size=64, bits=8)):
        bits = want if part == "weight" else want.view(mx.uint16)
        np.testing.assert_array_equal(read_tensor(index.entries[f"lm_head.{part}"]), np.array(bits))
    session = open_session(tmp_path / "packed", mtp="auto")
    assert 0 < distance(session.score(reference["prompt"].tolist()), reference["logits"]) < 0.05
    assert len(continued(session, reference["prompt"].tolist(), 4)) == 4
    assert session.score_draft(reference["prompt"].tolist()).shape == reference["mtp_logits"].shape


def test_a_packed_folder_needs_nothing_of_its_source(tmp_path: Path, open_session: Callable[..., Any]) -> None:
    source = Path(shutil.copytree(FIXTURES / "fp8-1", tmp_path / "source"))
    prompt = np.load(source / "reference.npz")["prompt"].tolist()
    done = pack(source, tmp_path / "packed", experts="mxfp8")
    shutil.rmtree(source)
    moved = (tmp_path / "packed").rename(tmp_path / "moved")
    assert verify(moved) == done.manifest
    assert np.isfinite(open_session(moved).score(prompt)).all()
    assert {p.name for p in moved.iterdir()} >= {"config.json", "tokenizer.json", "generation_config.json"}
    assert not list(moved.rglob("*.part"))
    assert not (moved / "packing.json").exists()


def test_an_fp8_source_is_told_once_what_packing_would_save(tmp_path: Path, open_session: Callable[..., Any]) -> None:
    notes = {name: open_session(FIXTURES / name).loaded.survey.notes for name in ("bf16-1", "fp8-1")}
    assert not [n for n in notes["bf16-1"] if "pack" in n]
    (note,) = [n for n in notes["fp8-1"] if "pack" in n]
    assert "`qwen-chat pack` would make each expert read 33% smaller" in note
    # The real sizes gain 47 %.
    assert packed_expert_bytes(640, 2560, "mxfp4") == 2_613_248
    assert round(100 * (1 - 2_613_248 / (3 * 640 * 2560))) == 47
