"""What was running and on what: versions, commit, peak memory, page cache. Knows no engine."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ... import __version__
from ..checkpoint.pack_manifest import read_manifest
from ..errors import QwenChatError

__all__ = ["commit", "drop_page_cache", "peak_resident_bytes", "versions"]

_LIBRARIES = ("mlx", "mlx-lm", "numpy", "tokenizers")
_SETTLE_S = 0.2


def versions() -> dict[str, str]:
    """This program, Python, the system, and the libraries that compute."""
    found = {
        "qwen-chat-mlx": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    for name in _LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def commit() -> str:
    """The commit of the clone this runs from, with "+" where tracked files differ from it; empty outside a clone."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return ""
    try:
        head = _git(root, "rev-parse", "HEAD")
        return head[:12] + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *words],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout.strip()


def peak_resident_bytes() -> int:
    """Most memory this process has had resident since it began."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text("ascii").splitlines():
            # ru_maxrss is inherited from the parent on Linux; VmHWM is this program's own.
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def drop_page_cache(folder: Path) -> str:
    """Ask the system to forget what it holds of a model folder's files; one sentence about what was done. Never raises."""
    if not hasattr(os, "posix_fadvise"):
        return "not dropped: this system drops pages of a file for nobody but root"
    n_bytes = 0
    try:
        packed = read_manifest(folder)
        named = [folder / name for name in packed.files] if packed is not None else []
        paths = sorted({*(p for p in folder.iterdir() if p.is_file()), *named})
        # Pages that were only just read, ahead of need, are not given up at once.
        for again in (False, True):
            time.sleep(_SETTLE_S if again else 0)
            for path in paths:
                n_bytes += _drop(path)
    except (OSError, QwenChatError) as e:
        return f"dropped in part only: {(e.strerror if isinstance(e, OSError) else '') or e}"
    return f"dropped with posix_fadvise before the prompt ({len(paths)} files, {n_bytes // 2:,} bytes)"


def _drop(path: Path) -> int:
    """The file's bytes."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)  # pages that are still to be written are not dropped
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return os.fstat(fd).st_size
    finally:
        os.close(fd)
