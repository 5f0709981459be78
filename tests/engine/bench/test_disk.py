"""Measuring the disk: every arm reads what it says, and files that cannot be measured are one sentence."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from qwen_chat_mlx.engine.bench import io
from qwen_chat_mlx.engine.bench.disk import ARMS, DiskReport, measure_disk
from qwen_chat_mlx.engine.config import EngineConfig
from qwen_chat_mlx.engine.errors import UsageError

MODEL = Path(__file__).parents[1] / "fixtures" / "fp8-1"


def test_every_arm_has_two_passes_a_round(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(os.urandom(600_000))
    report = measure_disk(str(path), read_bytes=10_000, total_bytes=1 << 19, workers=2, rounds=2)
    assert set(report.rates) == set(ARMS)
    assert all(len(r) == 4 and min(r) > 0 for r in report.rates.values())
    assert report.ratio("raw") == 1
    assert report.read_bytes % 4096 == 0
    assert report.alone_s > 0


@pytest.mark.parametrize("direct_io", ["auto", "off"])
def test_direct_io_that_is_off_stays_off(direct_io: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    path.write_bytes(os.urandom(600_000))
    asked: list[bool] = []

    def measured(_: str, *, direct: bool, **how: Any) -> DiskReport:
        asked.append(direct)
        return measure_disk(str(path), read_bytes=10_000, total_bytes=1, workers=1, rounds=1, direct=direct)

    monkeypatch.setattr(io, "measure_disk", measured)
    monkeypatch.setattr(io, "DEPTHS", (1,))
    report = io.measure_io(EngineConfig(model=str(MODEL), memory_limit="4 GiB", direct_io=direct_io))
    assert asked == [direct_io == "auto"]
    assert direct_io == "auto" or not report.depths[0].direct


def test_small_and_missing_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(50_000))
    with pytest.raises(UsageError, match="too small"):
        measure_disk(str(path), read_bytes=10_000)
    with pytest.raises(UsageError, match="No such file"):
        measure_disk(str(tmp_path / "none"))
