"""Packing a model folder: experts rewritten as page-aligned blobs, one read each; all else copied. No MLX.

The target can be opened only when everything is in it: a journal stands there from the first moment, the manifest is
written last. A run that was killed is continued by the same call; memory stays that of a few experts. The n-gram table is
copied, so the target needs nothing of its source afterwards.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import CheckpointError, StorageError, UsageError
from .codes import Form, encode, form_for
from .folder import find_model
from .header import TensorEntry, shown, unreadable
from .index import read_tensor
from .pack_files import Output, safetensors_header, storage_error, write_file
from .pack_journal import Journal, other_source
from .pack_manifest import (
    EXPERT_FORMS,
    JOURNAL,
    MANIFEST,
    PackedExperts,
    PackedFile,
    PackManifest,
    blob_layout,
    hash_file,
    read_manifest,
)  # fmt: skip
from .pack_source import Source
from .quant import widen

__all__ = ["EXPERT_FORMS", "Packed", "pack", "packed_expert_bytes", "verify"]

Progress = Callable[[str, int, int], None]
"""(file name, bytes done, bytes in all)"""

_SHARD_BYTES = 4 << 30
_CHUNK_BYTES = 16 << 20
_MARGIN_BYTES = 64 << 20
_RESIDENT = Form("affine", 8, 64)
_DENSE = tuple(
    f"{name}.weight"
    for name in (
        "lm_head", "q_proj", "k_proj", "v_proj", "o_proj", "in_proj_qkv", "in_proj_z", "out_proj", "gate_proj",
        "up_proj", "down_proj", "key_proj", "value_proj", "fc_embedding", "fc_hidden", "input_mix_weight_down",
    )
)  # fmt: skip
"""Matrices that --resident 8 rounds: large and used in products only. Routers, gates, injections, index projections,
convolutions, norms and the low-rank way back up decide or scale what flows on, and stay as they are."""


@dataclass(frozen=True, slots=True)
class Packed:
    """What a call of `pack` left behind."""

    folder: Path
    manifest: PackManifest
    source_expert_bytes: int
    already: bool
    """The folder had been packed completely before."""


@dataclass(frozen=True, slots=True)
class _Job:
    """One file to be written; its size is known before."""

    name: str
    n_bytes: int
    fill: Callable[[Output], None]


def pack(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, experts: str = "mxfp4", resident: int = 16,
    planned: Callable[[int, int], None] = lambda target, source: None, progress: Progress = lambda name, done, total: None,
) -> Packed:  # fmt: skip
    """Pack the model folder `source` into `target`, or continue doing so. Raises CheckpointError, StorageError, UsageError.

    A text names the source as `model.path` does: a folder, or "org/name" in the Hugging Face cache.
    `experts` is one of EXPERT_FORMS, `resident` 16 (as stored) or 8 (large dense matrices affine with 8 bits). `planned`
    gets the bytes that the target and the source's files take, before the first one is written.
    """
    source, target = find_model(source) if isinstance(source, str) else Path(source), Path(target)
    if experts not in EXPERT_FORMS:
        raise UsageError(f"There is no expert form {experts!r}; known are {', '.join(EXPERT_FORMS)}.")
    if resident not in (8, 16):
        raise UsageError(f"Resident tensors are stored with 8 or 16 bits, not {resident}.")
    if target.exists() and source.exists() and os.path.samefile(source, target):
        raise UsageError(f"{target} is the source itself.", "Give another folder to pack into.")
    opened = Source(source)
    layout, form = _expert_layout(opened, experts)
    done = _finished(target, opened, experts, resident)
    if done is not None:
        return Packed(target, done, opened.expert_bytes(), True)
    dense, jobs = _jobs(opened, layout, form, resident)
    with Journal(target, opened, {"experts": experts, "resident": resident}) as journal:
        planned(sum(job.n_bytes for job in jobs), sum(n_bytes for n_bytes, _ in opened.stamps().values()))
        files = _write(target, jobs, journal, progress)
        journal.check_source()
        manifest = PackManifest(
            source=opened.index.fingerprint, source_name=opened.folder.resolve().name, files_read=journal.files_read,
            experts=layout, resident_bits=resident, resident_group=_RESIDENT.group if dense else 0, quantised=dense,
            files=files,
        )  # fmt: skip
        write_file(target / MANIFEST, lambda out: out.write(manifest.to_json()))
        journal.remove()
    found = read_manifest(target)
    assert found is not None
    return Packed(target, found, opened.expert_bytes(), False)


def verify(target: str | os.PathLike[str], progress: Progress = lambda name, done, total: None) -> PackManifest:
    """Read every byte of a packed folder again. Raises CheckpointError for the first file that is not what was written."""
    target = Path(target)
    manifest = read_manifest(target)
    if manifest is None:
        raise CheckpointError(
            f"{target} is not a packed model folder.", "Give a folder that `qwen-chat pack` wrote.", path=str(target)
        )
    total, before = manifest.total_bytes, 0
    for name, file in manifest.files.items():
        done = [before]

        def told(n: int, done: list[int] = done, name: str = name) -> None:
            done[0] += n
            progress(name, done[0], total)

        if hash_file(str(target / name), told) != file.sha256:
            raise CheckpointError(
                f"{target / name} was changed after packing.",
                "Delete the folder and pack the model again.",
                path=str(target / name),
            )
        before += file.n_bytes
    return manifest


def packed_expert_bytes(width: int, hidden: int, experts: str) -> int | None:
    """Bytes of one packed expert (a read) of these widths; None where the form does not fit them."""
    form = form_for(experts, (hidden, width)) if experts != "bf16" else None
    if form is None and experts != "bf16":
        return None
    return blob_layout(width, hidden, form)[1]


def _finished(target: Path, opened: Source, experts: str, resident: int) -> PackManifest | None:
    """The manifest of a target that is complete already; refuses one that holds something else."""
    if not (target / MANIFEST).exists():
        return None
    found = read_manifest(target)
    if found is None:
        raise UsageError(f"{target} already holds another {MANIFEST}.", "Give an empty folder.")
    if found.source != opened.index.fingerprint:
        raise other_source(target)
    read, stamps = found.files_read, opened.stamps()
    changed = sorted(name for name in {*read, *stamps} if read.get(name) != stamps.get(name))
    if read and changed:
        raise CheckpointError(
            f"{target} was packed when {shown(changed[0])} of the source had another size or time of change.",
            "Use the folder as it is, or delete it and pack again.",
            path=str(opened.folder / changed[0]),
        )
    if (found.experts.form, found.resident_bits) != (experts, resident):
        was = f"--experts {found.experts.form} --resident {found.resident_bits}"
        raise UsageError(f"{target} was packed with {was}.", "Give another folder, or delete this one.")
    with contextlib.suppress(OSError):
        (target / JOURNAL).unlink(missing_ok=True)
    return found


def _expert_layout(source: Source, experts: str) -> tuple[PackedExperts, Form | None]:
    form = None
    if experts != "bf16":
        form = form_for(experts, (source.hidden, source.width))
        if form is None:
            raise UsageError(
                f"{source.folder}: experts of {source.width} x {source.hidden} cannot be stored as {experts}, which "
                "groups 32 columns.",
                "Use --experts bf16.",
            )
    parts, blob_bytes = blob_layout(source.width, source.hidden, form)
    layers = {prefix: f"experts/{_file_stem(prefix)}.bin" for prefix in source.prefixes}
    return PackedExperts(experts, form.group if form else 0, source.count, blob_bytes, parts, layers), form


def _file_stem(prefix: str) -> str:
    number = int(prefix.rpartition(".")[2]) if prefix.rpartition(".")[2].isdigit() else 0
    return f"{'draft' if prefix.startswith('mtp.') else 'layer'}_{number:02d}"


def _jobs(source: Source, layout: PackedExperts, form: Form | None, resident: int) -> tuple[frozenset[str], list[_Job]]:
    """The quantised matrices, and every file of the target in the order of writing."""
    tensors, tables = source.others()
    dense = frozenset(e.name for e in tensors if resident == 8 and _is_dense(e))
    jobs = [_copy_job(source.folder / name, name) for name in source.small]
    jobs += _tensor_jobs("model", tensors, dense)
    jobs += _tensor_jobs("model-table", tables, frozenset())
    size = layout.count * layout.blob_bytes
    for prefix, name in layout.layers.items():

        def fill(out: Output, prefix: str = prefix) -> None:
            _write_experts(out, source, prefix, layout, form)

        jobs.append(_Job(name, size, fill))
    return dense, jobs


def _is_dense(entry: TensorEntry) -> bool:
    if len(entry.shape) != 2 or entry.dtype not in ("BF16", "F16", "F32") or entry.shape[1] % _RESIDENT.group:
        return False
    return entry.name.endswith(tuple(f".{name}" for name in _DENSE)) or entry.name in _DENSE


def _copy_job(path: Path, name: str) -> _Job:
    def fill(out: Output) -> None:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise unreadable(path, error) from error
        out.write(data)

    return _Job(name, path.stat().st_size, fill)


def _tensor_jobs(stem: str, entries: list[TensorEntry], dense: frozenset[str]) -> list[_Job]:
    """Safetensors files of at most _SHARD_BYTES (or one tensor) each."""
    shards: list[list[TensorEntry]] = []
    size = 0
    for entry in entries:
        if not shards or size + entry.n_bytes > _SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(entry)
        size += entry.n_bytes
    jobs = []
    for i, shard in enumerate(shards):
        header = safetensors_header([stored for entry in shard for stored in _stored(entry, entry.name in dense)])
        n_bytes = len(header) + sum(n for e in shard for _, _, _, n in _stored(e, e.name in dense))

        def fill(out: Output, shard: list[TensorEntry] = shard, header: bytes = header) -> None:
            out.write(header)
            for entry in shard:
                _write_tensor(out, entry, entry.name in dense)

        jobs.append(_Job(f"{stem}-{i + 1:05d}-of-{len(shards):05d}.safetensors", n_bytes, fill))
    return jobs


def _stored(entry: TensorEntry, quantised: bool) -> list[tuple[str, str, tuple[int, ...], int]]:
    """(name, dtype, shape, bytes) of what a tensor becomes."""
    if not quantised:
        return [(entry.name, entry.dtype, entry.shape, entry.n_bytes)]
    rows, columns = entry.shape
    groups, stem = columns // _RESIDENT.group, entry.name.removesuffix(".weight")
    return [
        (entry.name, "U32", (rows, columns * _RESIDENT.bits // 32), rows * columns * _RESIDENT.bits // 8),
        (f"{stem}.scales", "BF16", (rows, groups), rows * groups * 2),
        (f"{stem}.biases", "BF16", (rows, groups), rows * groups * 2),
    ]


def _write_tensor(out: Output, entry: TensorEntry, quantised: bool) -> None:
    """Copy a tensor piece by piece, or write its codes, then its scales and biases."""
    if not quantised:
        for first in range(0, entry.n_bytes, _CHUNK_BYTES):
            n = min(_CHUNK_BYTES, entry.n_bytes - first)
            out.write(read_tensor(TensorEntry(entry.name, "U8", (n,), entry.path, entry.offset + first, n)))
        return
    rows, columns = entry.shape
    row_bytes = entry.n_bytes // rows
    step = max(1, _CHUNK_BYTES // row_bytes)
    scales, biases = [], []
    for first in range(0, rows, step):
        n = min(step, rows - first)
        part = TensorEntry(
            entry.name, entry.dtype, (n, columns), entry.path, entry.offset + first * row_bytes, n * row_bytes
        )
        values = widen(read_tensor(part), entry.dtype)
        if not np.isfinite(values).all():
            raise CheckpointError(
                f"{entry.path}: tensor {entry.name!r} holds a value that is not finite.",
                "The checkpoint is damaged; download it again.",
                path=entry.path,
                tensor=entry.name,
            )
        codes = encode(values, _RESIDENT)
        out.write(codes.weight)
        scales.append(codes.scales)
        biases.append(codes.biases)
    for piece in (*scales, *biases):
        out.write(piece)


def _write_experts(out: Output, source: Source, prefix: str, layout: PackedExperts, form: Form | None) -> None:
    """One layer's blobs in order; a few experts are encoded at a time."""

    def blob(expert: int) -> np.ndarray:
        arrays: list[np.ndarray] = []
        if form is None:
            arrays = source.expert_bf16(prefix, expert)
        else:
            for matrix in source.expert_f32(prefix, expert):
                codes = encode(matrix, form)
                arrays += [codes.weight, codes.scales] + ([codes.biases] if codes.biases is not None else [])
        made = np.zeros(layout.blob_bytes, np.uint8)
        for part, array in zip(layout.parts, arrays):
            made[part.offset : part.offset + part.n_bytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return made

    workers = min(4, os.cpu_count() or 1)
    waiting: deque[Future[np.ndarray]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for expert in range(layout.count):
                waiting.append(pool.submit(blob, expert))
                if len(waiting) > workers:
                    out.write(waiting.popleft().result())
            while waiting:
                out.write(waiting.popleft().result())
        finally:
            for future in waiting:
                future.cancel()


def _write(target: Path, jobs: list[_Job], journal: Journal, progress: Progress) -> dict[str, PackedFile]:
    """Write what is not there yet. The disk must have room for all of it before the first byte."""
    files = {job.name: kept for job in jobs if (kept := journal.kept(job.name, job.n_bytes)) is not None}
    left = sum(job.n_bytes for job in jobs if job.name not in files)
    try:
        free = shutil.disk_usage(target).free
    except OSError as error:
        raise storage_error(error, str(target)) from error
    if left + _MARGIN_BYTES > free:
        raise StorageError(
            f"{target}: {left:,} bytes are still to be written, the disk has {free:,} left.",
            "Make room, or give a folder on another disk.",
            path=str(target),
        )
    total = sum(job.n_bytes for job in jobs)
    done = total - left
    for job in jobs:
        if job.name in files:
            continue

        def told(n: int, name: str = job.name) -> None:
            nonlocal done
            done += n
            progress(name, done, total)

        written = write_file(target / job.name, job.fill, told)
        if written.n_bytes != job.n_bytes:
            raise CheckpointError(
                f"{target / job.name}: {written.n_bytes} bytes were written, {job.n_bytes} expected.",
                "Was the source changed while it was read?",
                path=str(target / job.name),
            )
        files[job.name] = written
        journal.add(job.name, written)
    return files
