"""Packing that is stopped, disturbed or asked for what cannot be: one clear error, and nothing half-written is opened."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qwen_chat_mlx.engine.checkpoint import pack as packing
from qwen_chat_mlx.engine.checkpoint import pack_files, pack_manifest
from qwen_chat_mlx.engine.checkpoint.index import open_checkpoint
from qwen_chat_mlx.engine.checkpoint.pack import pack, verify
from qwen_chat_mlx.engine.errors import CheckpointError, QwenChatError, StorageError, UsageError

FIXTURES = Path(__file__).parent / "fixtures"
SOURCE = FIXTURES / "fp8-1"


class Stop(BaseException):
    """What a signal would raise."""


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished pack; not to be changed."""
    target = tmp_path_factory.mktemp("whole") / "packed"
    pack(SOURCE, target)
    return target


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def stop_at(step: int) -> Callable[[str, int, int], None]:
    """Progress that ends the run at the step-th call."""
    calls = 0

    def told(name: str, done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == step:
            raise Stop

    return told


def test_a_run_stopped_anywhere_is_never_opened_and_continues_to_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    steps: list[str] = []
    pack(SOURCE, tmp_path / "count", progress=lambda name, done, total: steps.append(name))
    for step in (1, 4, 9, len(steps) // 2, len(steps) - 1, len(steps)):
        target = tmp_path / f"stopped-{step}"
        with pytest.raises(Stop):
            pack(SOURCE, target, progress=stop_at(step))
        assert not (target / "manifest.json").exists()
        with pytest.raises(CheckpointError, match=r"was not packed to the end\. Run `qwen-chat pack` again"):
            open_checkpoint(target)
        again: list[str] = []
        pack(SOURCE, target, progress=lambda name, done, total, again=again: again.append(name))
        assert len(again) == len(steps) - steps.index(steps[step - 1]), "finished files were written again"
        assert tree(target) == tree(whole)


def test_what_a_killed_run_leaves_is_overwritten(whole: Path, tmp_path: Path) -> None:
    """A kill runs no cleaning up: the temporary file stays, and a finished file may be missing from the journal."""
    target = tmp_path / "packed"
    with pytest.raises(Stop):
        pack(SOURCE, target, progress=stop_at(10))
    (target / "experts").mkdir(exist_ok=True)
    (target / "experts" / "layer_00.bin.part").write_bytes(b"half")
    (target / "experts" / "layer_02.bin").write_bytes(bytes(32768))
    pack(SOURCE, target)
    assert tree(target) == tree(whole)


def test_a_run_killed_before_its_first_file_had_its_name_is_continued(whole: Path, tmp_path: Path) -> None:
    target = tmp_path / "packed"
    target.mkdir()
    (target / "packing.json.part").write_bytes(b"")
    pack(SOURCE, target)
    assert tree(target) == tree(whole)


@pytest.mark.parametrize("name", ["chat_template.jinja", "config.json", "model"])
def test_a_finished_folder_is_not_called_that_of_a_source_that_changed(name: str, tmp_path: Path) -> None:
    source = Path(shutil.copytree(SOURCE, tmp_path / "source"))
    (source / "chat_template.jinja").write_text("{{ messages }}")
    pack(source, tmp_path / "packed")
    before = tree(tmp_path / "packed")
    path = min(source.glob(f"{name}*"))
    raw = bytearray(path.read_bytes())
    raw[-2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CheckpointError):
        pack(source, tmp_path / "packed")
    assert tree(tmp_path / "packed") == before


def test_a_finished_folder_is_left_alone(whole: Path) -> None:
    before = tree(whole)
    done = pack(SOURCE, whole)
    assert done.already
    assert tree(whole) == before


@pytest.mark.parametrize("after", [0, 1, 7, 12, 13])
def test_a_full_disk_is_told_and_leaves_no_half_file(
    after: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, writes = tmp_path / "packed", 0

    def fsync(fd: int) -> None:
        nonlocal writes
        writes += 1
        if writes > 2 * after:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pack_files.os, "fsync", fsync)
    with pytest.raises(StorageError, match=r"there is no space left on the disk\. Make room and run the same"):
        pack(SOURCE, target)
    monkeypatch.undo()
    assert not list(target.rglob("*.part"))
    with pytest.raises(CheckpointError):
        open_checkpoint(target)
    pack(SOURCE, target)
    assert tree(target) == tree(whole)


def test_too_little_space_is_told_before_anything_large_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("usage", (), {"free": 64 << 20})
    monkeypatch.setattr(packing.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(StorageError, match=r"bytes are still to be written, the disk has 67,108,864 left"):
        pack(SOURCE, tmp_path / "packed")
    assert sorted(tree(tmp_path / "packed")) == ["packing.json"]


def test_a_target_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **options: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(StorageError, match=r"cannot be written .Read-only file system.*folder you may write to"):
        pack(SOURCE, tmp_path / "packed")


def test_targets_that_are_something_else_are_refused_and_untouched(whole: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(SOURCE, tmp_path / "source"))
    full = tmp_path / "full"
    full.mkdir()
    (full / "note.txt").write_text("mine")
    file = tmp_path / "file"
    file.write_text("")
    link = tmp_path / "link"
    link.symlink_to(source)
    for target, options, message in (
        (source, {}, "is the source itself"),
        (link, {}, "is the source itself"),
        (full, {}, "is not empty"),
        (file, {}, "is not a folder"),
        (whole, {"experts": "mxfp8"}, "was packed with --experts mxfp4 --resident 16"),
        (whole, {"resident": 8}, "was packed with --experts mxfp4 --resident 16"),
        (tmp_path / "new", {"experts": "mxfp5"}, "There is no expert form 'mxfp5'"),
        (tmp_path / "new", {"resident": 4}, "8 or 16 bits, not 4"),
    ):
        before = tree(target) if target.is_dir() else None
        with pytest.raises(UsageError, match=message):
            pack(source, target, **options)
        assert before is None or tree(target) == before
    assert not (tmp_path / "new").exists()
    with pytest.raises(CheckpointError, match="was packed from another model"):
        pack(FIXTURES / "fp8-2", whole)
    with pytest.raises(CheckpointError, match="is already packed"):
        pack(whole, tmp_path / "new")
    with pytest.raises(CheckpointError, match="There is no folder"):
        pack(tmp_path / "nowhere", tmp_path / "new")


def test_a_stopped_run_goes_on_only_with_the_same_source_and_settings(tmp_path: Path) -> None:
    source = Path(shutil.copytree(SOURCE, tmp_path / "source"))
    target = tmp_path / "packed"
    with pytest.raises(Stop):
        pack(source, target, progress=stop_at(8))
    with pytest.raises(UsageError, match="packing began with --experts mxfp4 --resident 16"):
        pack(source, target, experts="bf16")
    shard = next(source.glob("*.safetensors"))
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)
    with pytest.raises(CheckpointError, match="its source was changed since"):
        pack(source, target)


def test_a_source_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    source = Path(shutil.copytree(SOURCE, tmp_path / "source"))

    def touch(name: str, done: int, total: int) -> None:
        os.utime(next(source.glob("*.safetensors")), ns=(1, done))

    with pytest.raises(CheckpointError, match="its source was changed since"):
        pack(source, tmp_path / "packed", progress=touch)
    with pytest.raises(CheckpointError, match="not packed to the end"):
        open_checkpoint(tmp_path / "packed")


def test_a_second_run_waits_for_nothing_and_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "packed"
    target.mkdir()
    fd = os.open(target, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        with pytest.raises(UsageError, match="another run is packing into it"):
            pack(SOURCE, target)
    finally:
        os.close(fd)
    pack(SOURCE, target)


def test_one_changed_byte_of_any_file_is_found(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_manifest, "_SMALL_BYTES", 0)  # as if every file were too large to be hashed on opening
    for number, name in enumerate(sorted(tree(whole))):
        copy = Path(shutil.copytree(whole, tmp_path / str(number)))
        raw = bytearray((copy / name).read_bytes())
        raw[len(raw) // 2] ^= 1
        (copy / name).write_bytes(raw)
        with pytest.raises(CheckpointError, match=f"{name.split('/')[-1]}"):
            verify(copy)


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "experts/layer_03.bin", "model-00001-of-00001.safetensors"]
)
@pytest.mark.parametrize("damage", ["gone", "short", "changed"])
def test_a_damaged_folder_is_not_opened(name: str, damage: str, copy: Path) -> None:
    raw = bytearray((copy / name).read_bytes())
    (copy / name).unlink()
    if damage != "gone":
        raw[-2] ^= 1
        (copy / name).write_bytes(raw[: len(raw) - (damage == "short")])
    with pytest.raises(CheckpointError, match=name.rsplit("/", maxsplit=1)[-1]):
        open_checkpoint(copy)


@pytest.mark.parametrize("damage", ["a folder in its place", "a shard's name", "a header's end"])
def test_the_way_out_of_a_damaged_packed_folder_is_to_pack_again(
    damage: str, copy: Path, open_session: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_manifest, "_SMALL_BYTES", 0)  # as if every file were too large to be hashed on opening
    path = copy / "model-table-00001-of-00001.safetensors"
    raw = path.read_bytes()
    if damage == "a folder in its place":
        path.unlink()
        path.mkdir()
    elif damage == "a shard's name":
        path.write_bytes(raw.replace(b"shard_1", b"shard_9", 1))
    else:
        path.write_bytes(b"\xff" * 8 + raw[8:])
    with pytest.raises(CheckpointError) as caught:
        open_session(copy)
    assert caught.value.hint == pack_manifest.REPACK


def resigned(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest and give it a digest that fits, as a stranger could."""
    table = json.loads((folder / "manifest.json").read_text())
    change(table)
    table["sha256"] = pack_manifest._digest(table)
    (folder / "manifest.json").write_text(json.dumps(table))


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t["files"].update({"../outside": {"bytes": 1, "sha256": ""}}),
        lambda t: t["files"].update({"/outside": {"bytes": 1, "sha256": ""}}),
        lambda t: t["experts"]["layers"].update({"mtp.layers.0": "config.json"}),
        lambda t: t["experts"]["layers"].update({"mtp.layers.0": "missing"}),
        lambda t: t["experts"].update(blob_bytes=100),
        lambda t: t["experts"].update(form="nvfp4"),
        lambda t: t["experts"].update(group=0),
        lambda t: t["experts"]["parts"].pop(),
        lambda t: t["experts"]["parts"][0].update(shape=[0, 8]),
        lambda t: t["experts"]["parts"][2].update(offset=-64),
        lambda t: t["experts"].pop("count"),
        lambda t: t.update(files=[]),
        lambda t: t.update(version=2),
        lambda t: t["resident"].update(quantised=5),
    ],
)
def test_a_nonsense_manifest_is_one_clear_error(change: Callable[[dict[str, Any]], None], copy: Path) -> None:
    resigned(copy, change)
    with pytest.raises(CheckpointError, match=r"manifest\.json (is not usable|has the version 2)"):
        open_checkpoint(copy)


def test_a_manifest_without_a_layer_or_for_another_count_is_refused(
    copy: Path, open_session: Callable[..., Any]
) -> None:
    resigned(copy, lambda t: t["experts"]["layers"].pop("model.language_model.layers.2"))
    with pytest.raises(QwenChatError, match=r"layers\.2"):
        open_session(copy)


def test_another_programs_manifest_does_not_matter(tmp_path: Path) -> None:
    source = Path(shutil.copytree(SOURCE, tmp_path / "source"))
    (source / "manifest.json").write_text('{"formatVersion": 2}')
    assert open_checkpoint(source).packed is None
    with pytest.raises(UsageError, match=r"already holds another manifest\.json"):
        pack(SOURCE, source)


def test_a_value_that_is_not_finite_is_refused_before_it_is_rounded(files: Any, tmp_path: Path) -> None:
    name = "model.language_model.layers.2.mlp.experts.5.up_proj.weight"
    files.change(name, lambda raw: raw.__setitem__(3, 0x7F))
    with pytest.raises(CheckpointError, match=rf"{name}' holds a value that is not finite"):
        pack(files.folder, tmp_path / "packed")


def test_experts_of_a_width_that_no_group_divides_can_stay_bf16(tmp_path: Path) -> None:
    assert packing.packed_expert_bytes(24, 64, "mxfp4") is None
    assert packing.packed_expert_bytes(24, 64, "bf16") == 12288
