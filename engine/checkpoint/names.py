"""Tensor names: one canonical spelling for the prefixes in use, near names for errors, and the check of a census.

Canonical is the spelling of the published releases: `model.language_model.layers.N...`, `lm_head.weight`, `mtp....`,
`model.visual....`. Knows no shapes of any model: what must be there is handed in by the model's own file.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ..errors import CheckpointError
from .header import TensorEntry, shown

__all__ = [
    "MIXED",
    "SKIPPED",
    "CensusReport",
    "Expected",
    "canonical_entries",
    "check_census",
    "did_you_mean",
    "nearest_names",
    "normalise_name",
    "table_shards",
]

MIXED = "The download is not complete or two downloads were mixed; download the model again."
"""The way out where the files of a folder do not fit one another."""
SKIPPED = ("model.visual.",)
"""Canonical prefixes of tensors that a text model does not use."""

_TRUNK = "model.language_model."
_PREFIXES = (_TRUNK, "language_model.model.", "language_model.", "model.")
_TRUNK_HEADS = frozenset({"layers", "embed_tokens", "hyper_connection_mixer", "norm"})
_VISION_HEADS = frozenset({"visual", "vision_tower"})
_SHARDS = re.compile(r"(ngram_embedding\.)shards\.(\d+)(?=\.|$)")
_SHARD = re.compile(r"\.shard_(\d+)\.weight$")
_DIGITS = re.compile(r"\d+")


def normalise_name(name: str) -> str:
    """The canonical spelling of a tensor's name; a name of no known group stays as it is.

    Takes trunk names with and without `model.` and `language_model.` in either order, `mtp.` behind any of these,
    `visual.` and `vision_tower.`, and n-gram shards as `shard_N` or `shards.N`.
    """
    rest = name
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            rest = name[len(prefix) :]
            break
    head, _, tail = rest.partition(".")
    if head in _TRUNK_HEADS:
        if "ngram_embedding.shards." in rest:
            rest = _SHARDS.sub(r"\1shard_\2", rest)
        return _TRUNK + rest
    if head in _VISION_HEADS:
        return f"model.visual.{tail}"
    if head in ("mtp", "lm_head"):
        return rest
    return name


def canonical_entries(entries: Mapping[str, TensorEntry]) -> dict[str, TensorEntry]:
    """The entries under canonical names (`entry.name` keeps the file's). Raises CheckpointError where two would meet."""
    canonical: dict[str, TensorEntry] = {}
    for name, entry in entries.items():
        known = canonical.setdefault(normalise_name(name), entry)
        if known is not entry:
            raise CheckpointError(
                f"{entry.path}: tensor {shown(name)} is the same one as {shown(known.name)} in {known.path}.",
                MIXED,
                path=entry.path,
                tensor=name,
            )
    return canonical


def table_shards(entries: Mapping[str, TensorEntry], stem: str) -> tuple[TensorEntry, ...]:
    """The row shards of a table in order: `stem.weight` alone, or `stem.shard_0.weight`, `stem.shard_1.weight`, ...

    () when there is neither. Raises CheckpointError when a shard is missing between others or both forms are there.
    """
    whole = entries.get(f"{stem}.weight")
    shards: list[TensorEntry] = []
    while (entry := entries.get(f"{stem}.shard_{len(shards)}.weight")) is not None:
        shards.append(entry)
    count = sum(1 for name in entries if name.startswith(f"{stem}.shard_") and _SHARD.search(name))
    if count != len(shards):
        name = f"{stem}.shard_{len(shards)}.weight"
        raise CheckpointError(f"Tensor {shown(name)} is missing, later shards of it are there.", MIXED, tensor=name)
    if whole is not None and shards:
        raise CheckpointError(
            f"{whole.path}: tensor {shown(stem)} is there whole and in shards.", MIXED, path=whole.path, tensor=stem
        )
    return tuple(shards) if whole is None else (whole,)


def nearest_names(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """The up to `most` known names most like `name`, best first; quick for 150,000 names.

    Names are first compared with their numbers left out, of which few different ones exist, then by their numbers.
    """
    families: dict[str, list[str]] = {}
    for other in known:
        families.setdefault(_DIGITS.sub("#", other), []).append(other)
    numbers = [int(number) for number in _DIGITS.findall(name) if len(number) < 20]
    near = difflib.get_close_matches(_DIGITS.sub("#", name), list(families), n=most, cutoff=0.5)
    members = [sorted(families[family], key=lambda other: _distance(numbers, other)) for family in near]
    found = [family[0] for family in members]
    return (found + members[0][1:])[:most] if found else []


def _distance(numbers: list[int], other: str) -> tuple[list[int], str]:
    theirs = [int(number) for number in _DIGITS.findall(other) if len(number) < 20]
    return [abs(a - b) for a, b in zip(numbers, theirs)], other


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint with the nearest known names, or "" when none is near."""
    near = nearest_names(name, known)
    return f"Nearest names: {', '.join(map(shown, near))}." if near else ""


@dataclass(frozen=True, slots=True)
class Expected:
    """What one tensor must be. Share instances: a checkpoint has many tensors and few kinds of them."""

    shape: tuple[int, ...]
    dtypes: Collection[str]
    """The safetensors dtypes that are right."""


@dataclass(frozen=True, slots=True)
class CensusReport:
    """What a passed census found: tensors and bytes that the model uses, and those of known unused groups."""

    used_count: int
    used_bytes: int
    skipped_count: int
    skipped_bytes: int


def check_census(
    entries: Mapping[str, TensorEntry], expected: Mapping[str, Expected], skip_prefixes: tuple[str, ...], where: str
) -> CensusReport:
    """Hold canonical `entries` against `expected`; names that begin with one of `skip_prefixes` are only counted.

    Raises one CheckpointError for the first tensor of a wrong shape or dtype, else missing, else unknown, with the
    number of further ones. `where` names the checkpoint in that error.
    """
    missing = [name for name in expected if name not in entries]
    wrong: list[str] = []
    unknown: list[str] = []
    used_bytes = skipped_count = skipped_bytes = 0
    for name, entry in entries.items():
        want = expected.get(name)
        if want is not None:
            used_bytes += entry.n_bytes
            if entry.shape != want.shape or entry.dtype not in want.dtypes:
                wrong.append(name)
        elif name.startswith(skip_prefixes):
            skipped_count += 1
            skipped_bytes += entry.n_bytes
        else:
            unknown.append(name)
    faults = len(wrong) + len(missing) + len(unknown)
    if faults:
        more = f" (and {faults - 1} more)" if faults > 1 else ""
        raise _census_error(entries, expected, where, wrong=wrong, missing=missing, unknown=unknown, more=more)
    return CensusReport(len(expected), used_bytes, skipped_count, skipped_bytes)


def _census_error(
    entries: Mapping[str, TensorEntry],
    expected: Mapping[str, Expected],
    where: str,
    *,
    wrong: list[str],
    missing: list[str],
    unknown: list[str],
    more: str,
) -> CheckpointError:
    if wrong:
        name = wrong[0]
        entry, want = entries[name], expected[name]
        return CheckpointError(
            f"{entry.path}: tensor {shown(entry.name)} is {entry.dtype} {list(entry.shape)}, "
            f"expected {' or '.join(want.dtypes)} {list(want.shape)}{more}.",
            "The weights do not fit config.json.",
            path=entry.path,
            tensor=entry.name,
        )
    if missing:
        name = missing[0]
        near = did_you_mean(name, unknown or entries)
        return CheckpointError(f"{where}: tensor {shown(name)} is missing{more}.", near, path=where, tensor=name)
    entry = entries[unknown[0]]
    return CheckpointError(
        f"{entry.path}: tensor {shown(entry.name)} is not part of this model{more}.",
        did_you_mean(unknown[0], expected),
        path=entry.path,
        tensor=entry.name,
    )
