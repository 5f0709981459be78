"""What the machine gives: never more than it has, than a control group allows, or than Metal recommends."""

from __future__ import annotations

from pathlib import Path

import pytest

from qwen_chat_mlx.engine import machine as module
from qwen_chat_mlx.engine.machine import control_group_left, machine


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of /proc and /sys, with no group in it."""
    monkeypatch.setattr(module, "_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(module, "_VERSION_2", tmp_path / "two")
    monkeypatch.setattr(module, "_VERSION_1", tmp_path / "one")
    return tmp_path


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_this_machine_gives_something_and_not_more_than_it_has() -> None:
    here = machine()
    assert 0 < here.limit_bytes <= here.total_bytes
    assert machine(recommended_bytes=123).limit_bytes == 123


def test_without_control_groups_nothing_is_limited(groups: Path) -> None:
    assert control_group_left() is None
    write(groups / "cgroup", "0::/\n")
    assert control_group_left() is None


def test_the_least_limit_of_a_group_and_those_above_it_counts(groups: Path) -> None:
    write(groups / "cgroup", "1:cpu:/\n0::/user/app\n")
    write(groups / "two/user/app/memory.max", "max\n")
    assert control_group_left() is None
    write(groups / "two/user/memory.max", "7000\n")
    assert control_group_left() == 7000
    write(groups / "two/user/app/memory.max", "5000\n")
    assert control_group_left() == 5000


def test_groups_of_the_first_version_are_read_too(groups: Path) -> None:
    write(groups / "cgroup", "4:cpu,memory:/app\n0::/\n")
    write(groups / "one/memory.limit_in_bytes", str(1 << 62))
    write(groups / "one/app/memory.limit_in_bytes", "6000\n")
    assert control_group_left() == 6000
    assert machine().limit_bytes == int(6000 * 0.95)


def test_in_a_container_the_mounted_root_is_the_group_itself(groups: Path) -> None:
    write(groups / "cgroup", "4:memory:/docker/0123\n")
    write(groups / "one/memory.limit_in_bytes", "4000\n")
    assert control_group_left() == 4000
