"""What the engine's tests share: tiny checkpoints with the outputs of a reference implementation, and a disk that fails."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FIXTURES = Path(__file__).parent / "fixtures"


@dataclass(frozen=True)
class Oracle:
    """A checkpoint and what the reference says about it; `fixtures/README.md` tells how it was made."""

    path: Path
    reference: dict[str, np.ndarray]

    @classmethod
    def read(cls, path: Path) -> Oracle:
        with np.load(path / "reference.npz") as data:
            return cls(path, dict(data))

    @property
    def prompt(self) -> list[int]:
        return self.reference["prompt"].tolist()

    @property
    def logits(self) -> np.ndarray:
        return self.reference["logits"]

    @property
    def routes(self) -> np.ndarray:
        return self.reference["routes"]

    @property
    def greedy(self) -> list[int]:
        return self.reference["greedy"].tolist()


@pytest.fixture(scope="session", params=["bf16-1", "bf16-2", "fp8-1", "fp8-2"])
def oracle(request: pytest.FixtureRequest) -> Oracle:
    """Every checkpoint of the repository."""
    return Oracle.read(FIXTURES / request.param)


@pytest.fixture(scope="session", params=["bf16-1", "fp8-2"])
def layout(request: pytest.FixtureRequest) -> Oracle:
    """One checkpoint of each published layout: experts fused in bfloat16, experts single in FP8."""
    return Oracle.read(FIXTURES / request.param)


@pytest.fixture(scope="session")
def tiny() -> Oracle:
    """The checkpoint for tests that need just one."""
    return Oracle.read(FIXTURES / "fp8-1")


@pytest.fixture(scope="session", params=list(itertools.product(("small", "medium"), ("bf16", "fp8"))), ids="-".join)
def unseen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """A larger checkpoint made for this run.

    QWEN4_EXP_ORACLE is a script that takes `OUT --preset P --format F --seed N` and writes a checkpoint with its
    reference.npz (run by QWEN4_EXP_ORACLE_PYTHON, else this Python), or a folder that holds such checkpoints as P-F-*.
    """
    source = os.environ.get("QWEN4_EXP_ORACLE")
    if not source:
        pytest.skip("QWEN4_EXP_ORACLE names no script and no folder of checkpoints")
    preset, form = request.param
    if Path(source).is_dir():
        found = sorted(p.parent for p in Path(source).glob(f"{preset}-{form}-*/reference.npz"))
        if not found:
            pytest.skip(f"{source} has no checkpoint {preset}-{form}-*")
        return Oracle.read(found[-1])
    out = tmp_path_factory.mktemp("oracle") / f"{preset}-{form}"
    python, seed = (
        os.environ.get("QWEN4_EXP_ORACLE_PYTHON", sys.executable),
        os.environ.get("QWEN4_EXP_ORACLE_SEED", "7"),
    )
    command = [python, source, str(out), "--preset", preset, "--format", form, "--seed", seed]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return Oracle.read(out)


@pytest.fixture
def folder(tiny: Oracle, tmp_path: Path) -> Path:
    """A copy of the tiny checkpoint, to be damaged."""
    return Path(shutil.copytree(tiny.path, tmp_path / "model"))


SMALL: dict[str, Any] = {
    "memory_limit": "4 GiB", "expert_cache": "25 %", "direct_io": "off", "read_workers": 3, "mtp": "off",
    "verify": "batched",
}  # fmt: skip
"""Settings that make a session the same on every machine."""


@pytest.fixture
def open_session() -> Iterator[Callable[..., Any]]:
    """Opens sessions (Oracle or folder, then settings by name) and closes them at the end."""
    from qwen_chat_mlx.engine.config import EngineConfig
    from qwen_chat_mlx.engine.session import Session

    opened: list[Session] = []

    def start(model: Oracle | Path, **settings: Any) -> Session:
        path = model.path if isinstance(model, Oracle) else model
        opened.append(Session.open(EngineConfig(model=str(path), **{**SMALL, **settings})))
        return opened[-1]

    yield start
    for session in opened:
        session.close()


class Disk:
    """Every read of a loaded model goes through here; `before` may delay it, raise OSError or shorten it."""

    def __init__(self) -> None:
        self.reads: Counter[str] = Counter()
        """Reads by kind: "weights", "experts", "rows"."""
        self.read_bytes: Counter[str] = Counter()
        self.before: Callable[[str, int], int | None] = lambda kind, number: None
        """(kind, number of this read since `forget`, from 1) -> bytes to read, None for all."""
        self._lock = threading.Lock()

    def forget(self) -> None:
        self.reads.clear()
        self.read_bytes.clear()

    def reader(self, workers: int, direct_io: str = "auto") -> Any:
        from qwen_chat_mlx.engine import loader
        from qwen_chat_mlx.engine.offload.files import os_pread
        from qwen_chat_mlx.engine.offload.reader import Reader

        kind = {loader._LOAD_WORKERS: "weights", loader._ROW_WORKERS: "rows"}.get(workers, "experts")

        def pread(fd: int, view: memoryview, offset: int) -> int:
            with self._lock:
                self.reads[kind] += 1
                number = self.reads[kind]
            most = self.before(kind, number)
            n = os_pread(fd, view if most is None else view[:most], offset) if most != 0 else 0
            with self._lock:
                self.read_bytes[kind] += n
            return n

        return Reader(workers, direct_io, pread=pread)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Models opened in this test read from a disk that can be told to fail."""
    from qwen_chat_mlx.engine import loader

    made = Disk()
    monkeypatch.setattr(loader, "Reader", made.reader)
    return made


class Files:
    """Changes a checkpoint on disk: its JSON files, and tensors inside its safetensors files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def json(self, name: str, change: Callable[[dict[str, Any]], None]) -> None:
        path = self.folder / name
        value = json.loads(path.read_text())
        change(value)
        path.write_text(json.dumps(value))

    def shard_of(self, tensor: str) -> Path:
        index = json.loads((self.folder / "model.safetensors.index.json").read_text())
        return self.folder / index["weight_map"][tensor]

    def header(self, tensor: str) -> tuple[Path, dict[str, Any], int]:
        """(shard, its header, offset of its data)."""
        path = self.shard_of(tensor)
        raw = path.read_bytes()
        (size,) = struct.unpack("<Q", raw[:8])
        return path, json.loads(raw[8 : 8 + size]), 8 + size

    def change(self, tensor: str, change: Callable[[np.ndarray], None]) -> None:
        """Let `change` alter the tensor's bytes in place."""
        path, header, data = self.header(tensor)
        start, stop = header[tensor]["data_offsets"]
        raw = np.frombuffer(path.read_bytes(), np.uint8).copy()
        change(raw[data + start : data + stop])
        path.write_bytes(raw.tobytes())

    def rename(self, tensor: str, to: str) -> None:
        """Give a tensor another name, in its shard and in the index."""
        path, header, data = self.header(tensor)
        raw = path.read_bytes()[data:]
        header[to] = header.pop(tensor)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        path.write_bytes(struct.pack("<Q", len(text)) + text + raw)
        self.json("model.safetensors.index.json", lambda i: i["weight_map"].update({to: i["weight_map"].pop(tensor)}))

    def drop(self, *tensors: str) -> None:
        """Remove tensors with their bytes from their shards and from the index."""
        for tensor in tensors:
            self._rewrite(tensor, lambda entry, data: None)

        def without(index: dict[str, Any]) -> None:
            for name in tensors:
                del index["weight_map"][name]

        self.json("model.safetensors.index.json", without)

    def widen(self, tensor: str) -> None:
        """Store a tensor of one byte an element as BF16, each byte twice."""
        self._rewrite(tensor, lambda entry, data: (entry | {"dtype": "BF16"}, np.repeat(data, 2)))

    def _rewrite(
        self, tensor: str, change: Callable[[dict[str, Any], np.ndarray], tuple[dict[str, Any], np.ndarray] | None]
    ) -> None:
        """Put (header entry, bytes) of a tensor in place of what it has, None removing it, without leaving holes."""
        path, header, first = self.header(tensor)
        raw = np.frombuffer(path.read_bytes()[first:], np.uint8)
        made: dict[str, Any] = {"__metadata__": header.pop("__metadata__")} if "__metadata__" in header else {}
        parts: list[np.ndarray] = []
        end = 0
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            part = raw[slice(*entry["data_offsets"])]
            changed = change(entry, part) if name == tensor else (entry, part)
            if changed is not None:
                made[name] = changed[0] | {"data_offsets": [end, end + len(changed[1])]}
                parts.append(changed[1])
                end += len(changed[1])
        text = json.dumps(made).encode()
        text += b" " * (-len(text) % 8)
        path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(p.tobytes() for p in parts))
        grown = end - len(raw)

        def sized(index: dict[str, Any]) -> None:
            index["metadata"]["total_size"] += grown

        self.json("model.safetensors.index.json", sized)


@pytest.fixture
def files(folder: Path) -> Files:
    """The damaged copy's files."""
    return Files(folder)


@pytest.fixture
def no_thread_left() -> Iterator[None]:
    """Nothing that this test started may run on after it."""
    before = set(threading.enumerate())
    yield
    left = [t.name for t in threading.enumerate() if t not in before and t.is_alive()]
    assert not left, f"threads still running: {left}"


def greedy(session: Any, ids: list[int], count: int) -> list[int]:
    """The next `count` greedy ids of a session."""
    return [t for step in session.generate(ids, count, ignore_eos=True) for t in step.tokens]


@pytest.fixture(scope="session")
def continued() -> Callable[[Any, list[int], int], list[int]]:
    """`continued(session, ids, count)`: the next greedy ids."""
    return greedy
