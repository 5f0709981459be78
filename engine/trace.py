"""The one trace format: what a run routed and how its steps went, as lines of JSON. `--trace` writes it, replay reads it.

The first line is the header, then come step lines and routes lines in the order they happened. Knows no tensor and no
policy; a reader of traces needs nothing else.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

from .errors import UsageError

__all__ = ["Kind", "Pool", "Routes", "StepRecord", "Trace", "TraceHeader", "TraceWriter", "read_trace"]

VERSION = 1
PROMPT_ROWS_KEPT = 512
"""Of a prompt's routes only so many rows at the end are written."""
_BUFFER_BYTES = 1 << 20
_BEGINNING = b'{"trace":'
"""Of every trace, whatever its version."""
_MOST_EXPERTS = 1 << 20
"""Of all layers together: a policy keeps some numbers for each."""
_MOST_LINE_BYTES = 16 << 20
"""A prompt's routes with 512 rows of 4,096 experts."""
_MOST = 1 << 40
"""Of every other number."""
_log = logging.getLogger("qwen_chat_mlx.engine")

Kind = Literal["prompt", "plain", "verify", "draft"]
Pool = Literal["trunk", "draft"]


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """What was running."""

    layers: int
    experts: int
    top_k: int
    fingerprint: str = ""
    """Of the checkpoint."""
    expert_bytes: int = 0
    slots: int = 0
    draft_slots: int = 0
    policy: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    """Further facts, for people."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of a reply: a round, or plain decoding with nothing drafted."""

    step: int
    at: int
    """Tokens in the timeline before the step."""
    tokens: int
    """Tokens it committed."""
    drafted: int = 0
    accepted: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    """By phase. A line is written when its tokens are handed out, so "rewind" is that of the round before."""


@dataclass(frozen=True, slots=True)
class Routes:
    """The experts one forward asked one layer for."""

    step: int
    layer: int
    kind: Kind
    rows: tuple[tuple[int, ...], ...]
    """Sorted expert ids of each row, oldest first, none empty; in a prompt all are of one length, elsewhere a single row
    may stand for the union of several."""
    pool: Pool = "trunk"


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole trace, in the order it was written."""

    header: TraceHeader
    steps: tuple[StepRecord, ...]
    routes: tuple[Routes, ...]


class TraceWriter:
    """Writes a trace. After the constructor nothing is raised: a full disk ends the trace and `error` says so."""

    def __init__(self, path: str | Path, header: TraceHeader) -> None:
        """Raises UsageError when the file cannot be opened, another run writes it, or it holds anything but a trace.

        An existing trace is replaced.
        """
        self.path = str(path)
        self.error = ""
        """One sentence once writing has failed; nothing is written after that."""
        try:
            self._file: BinaryIO | None = open(path, "ab", buffering=_BUFFER_BYTES)  # noqa: SIM115
        except OSError as e:
            raise UsageError(
                f"The trace file {path} cannot be written: {e.strerror}.", "Name a file in a folder that exists."
            ) from None
        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise UsageError(f"Another run writes the trace file {path}.", "Name another file.") from None
        except OSError:
            _log.debug("%s cannot be locked", path)  # a file system without locks
        if stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            if not _replaceable(path):
                self._file.close()
                raise UsageError(
                    f"The file {path} is there and holds no trace.",
                    "Name a file that does not exist, or an earlier trace, which is replaced.",
                )
            self._file.truncate(0)
        self._write({"trace": VERSION, **asdict(header)})

    def step(self, record: StepRecord) -> None:
        line = {"step": record.step, "at": record.at, "tokens": record.tokens}
        if record.drafted:
            line |= {"drafted": record.drafted, "accepted": record.accepted}
        self._write(line | {"seconds": {k: round(v, 6) for k, v in record.seconds.items()}})

    def routes(self, step: int, layer: int, kind: Kind, rows: Sequence[Sequence[int]], pool: Pool = "trunk") -> None:
        """`rows` are expert ids as Python ints, in any order within a row; long prompts keep their end."""
        kept = [sorted(row) for row in rows[-PROMPT_ROWS_KEPT:]]
        line: dict[str, Any] = {"routes": kind, "step": step, "layer": layer, "rows": kept}
        self._write(line if pool == "trunk" else line | {"pool": pool})

    def close(self) -> None:
        """Write what is buffered. Harmless when called again."""
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.close()
        except OSError as e:
            self._failed(e)

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        except OSError as e:
            file, self._file = self._file, None
            self._failed(e)
            # What could not be written stays in the buffer; closing tries once more and may fail the same way.
            try:
                file.close()
            except OSError:
                return

    def _failed(self, error: OSError) -> None:
        self.error = f"The trace {self.path} ends early: {error.strerror or error}."
        # Without a handler, Python prints warnings on stderr; the full screen keeps that for its log.
        _log.warning("%s", self.error)


def read_trace(path: str | Path) -> Trace:
    """A trace from its file. A last line that a crash cut short is left out.

    Raises UsageError with the line number when the file is no trace, of another version, or damaged.
    """
    header: TraceHeader | None = None
    steps: list[StepRecord] = []
    routes: list[Routes] = []
    for number, line in _lines(path):
        try:
            if len(line) > _MOST_LINE_BYTES:
                raise ValueError(f"it is longer than {_MOST_LINE_BYTES >> 20} MiB")
            value = json.loads(line)
            if not isinstance(value, dict):
                raise ValueError("it is not an object")
            if header is None:
                header = _header(value)
            elif "routes" in value:
                routes.append(_routes(value, header))
            else:
                steps.append(_step(value))
        except (ValueError, KeyError, TypeError, RecursionError) as e:
            what = f"{e.args[0]!r} is missing" if isinstance(e, KeyError) else str(e)
            if isinstance(e, (json.JSONDecodeError, UnicodeDecodeError, RecursionError)):
                what = "it is not JSON"
            raise UsageError(
                f"{path}, line {number}: this is not a line of a trace ({what}).",
                "Give a file that was written with --trace.",
            ) from None
    if header is None:
        raise UsageError(f"{path} is empty.", "Give a file that was written with --trace.")
    return Trace(header, tuple(steps), tuple(routes))


def _replaceable(path: str | Path) -> bool:
    """Whether a file is empty or begins like a trace; one that cannot be read is somebody's."""
    try:
        with open(path, "rb") as file:
            return file.read(len(_BEGINNING)) in (b"", _BEGINNING)
    except OSError:
        return False


def _lines(path: str | Path) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, line) of every line that is not blank, without a last one that does not end in a newline.

    A longer line than there can be in a trace is cut to one byte more, and the first line of the file always comes.
    """
    try:
        with open(path, "rb") as file:
            for number in count(1):
                line = file.readline(_MOST_LINE_BYTES + 1)
                if not line:
                    return
                whole = line.endswith(b"\n") or len(line) > _MOST_LINE_BYTES
                if line.strip() and (whole or number == 1):
                    yield number, line
    except OSError as e:
        raise UsageError(
            f"The trace {path} cannot be read: {e.strerror}.", "Give a file that was written with --trace."
        ) from None


def _header(value: dict[str, Any]) -> TraceHeader:
    if value.get("trace") != VERSION:
        raise ValueError(f"no header of version {VERSION}")
    header = TraceHeader(**{f.name: value[f.name] for f in fields(TraceHeader) if f.name in value})
    for name in ("layers", "experts", "top_k"):
        _number(getattr(header, name), 1, _MOST_EXPERTS, name)
    if header.layers * header.experts > _MOST_EXPERTS:
        raise ValueError(f"{header.layers} layers of {header.experts} experts are more than {_MOST_EXPERTS}")
    if header.top_k > header.experts:
        raise ValueError("top_k exceeds experts")
    for name in ("expert_bytes", "slots", "draft_slots"):
        _number(getattr(header, name), 0, _MOST, name)
    for name in ("fingerprint", "policy"):
        if not isinstance(getattr(header, name), str):
            raise ValueError(f"{name} is not a text")
    if not isinstance(header.settings, dict) or any(isinstance(v, (dict, list)) for v in header.settings.values()):
        raise ValueError("settings are not names with plain values")
    return header


def _step(value: dict[str, Any]) -> StepRecord:
    for f in ("step", "at", "tokens"):
        value[f]
    unknown = value.keys() - {f.name for f in fields(StepRecord)}
    if unknown:
        raise ValueError(f"nothing is known of {sorted(unknown)[0]!r}")
    record = StepRecord(**value)
    for name in ("step", "at", "tokens", "drafted", "accepted"):
        _number(getattr(record, name), 0, _MOST, name)
    if not isinstance(record.seconds, dict):
        raise ValueError("seconds are not by phase")
    return record


def _routes(value: dict[str, Any], header: TraceHeader) -> Routes:
    if value["routes"] not in get_args(Kind):
        raise ValueError(f"routes of an unknown kind {value['routes']!r}")
    pool = value.get("pool", "trunk")
    if pool not in get_args(Pool):
        raise ValueError(f"an unknown pool {pool!r}")
    _number(value["step"], 0, _MOST, "step")
    _number(value["layer"], 0, header.layers - 1 if pool == "trunk" else 0, "layer")
    rows = tuple(tuple(row) for row in value["rows"])
    if not rows or not all(rows):
        raise ValueError("a row without an expert, or no row")
    if value["routes"] == "prompt" and len({len(row) for row in rows}) > 1:
        raise ValueError("the rows of a prompt are not of one length")
    for row in rows:
        for expert in row:
            _number(expert, 0, header.experts - 1, "expert")
        if len(set(row)) != len(row):
            raise ValueError("an expert is named twice in a row")
    return Routes(value["step"], value["layer"], value["routes"], rows, pool)


def _number(value: Any, low: int, high: int, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name} is {value!r}, not a number from {low} to {high}")
