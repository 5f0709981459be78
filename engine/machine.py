"""What this machine gives a program: memory that is free now, below its control groups and Metal's recommended working set."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Machine", "control_group_left", "machine", "resident_set_bytes"]

_SHARE_OF_FREE, _SHARE_OF_GROUP = 0.9, 0.95
_GROUPS = Path("/proc/self/cgroup")
_VERSION_2, _VERSION_1 = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")


@dataclass(frozen=True, slots=True)
class Machine:
    """What a memory plan knows of the machine."""

    limit_bytes: int
    """What this program may use without swapping."""
    total_bytes: int
    gpu: bool = False


def machine(*, gpu: bool = False, recommended_bytes: int | None = None) -> Machine:
    """This machine now: a share of what is free, and no more than a control group or Metal allows."""
    total, free = _memory()
    limit = int(free * _SHARE_OF_FREE)
    group = control_group_left()
    if group is not None:
        limit = min(limit, int(group * _SHARE_OF_GROUP))
    if recommended_bytes is not None:
        limit = min(limit, recommended_bytes)
    return Machine(limit, total, gpu)


def resident_set_bytes() -> int:
    """Resident set of this process now."""
    try:
        with open("/proc/self/statm", encoding="ascii") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def control_group_left() -> int | None:
    """The least limit of memory among this process's control groups and those above them; None without one.

    Bytes that this process uses already are part of it. What others in a group use is not taken off: pages of files are
    counted there too, and give way.
    """
    limits = [limit for file in _limit_files() if (limit := _number(file)) is not None]
    return min(limits, default=None)


def _limit_files() -> Iterator[Path]:
    """Of both versions of control groups, from this process's group up to the root that it sees."""
    try:
        lines = _GROUPS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, name = _VERSION_2, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = _VERSION_1, "memory.limit_in_bytes"
        else:
            continue
        own = root / path.lstrip("/")
        # Inside a container the path may be the host's; the root of what is mounted is the container's own group then.
        yield from (folder / name for folder in (own, *own.parents) if folder.is_relative_to(root))


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _memory() -> tuple[int, int]:
    """(total, available now) in bytes; what this process holds already counts as available."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if sys.platform == "darwin":
        return total, int(total * 0.75)
    with open("/proc/meminfo", encoding="ascii") as f:
        fields = dict(line.split(":", 1) for line in f)
    return total, int(fields["MemAvailable"].split()[0]) * 1024 + resident_set_bytes()
