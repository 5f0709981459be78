"""A wheel holds the tracked files of the packages and nothing else; a source distribution holds everything."""

from __future__ import annotations

import fnmatch
import os
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import qwen_chat_mlx

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DISTRIBUTION = "qwen-chat-mlx"
PACKAGE = "qwen_chat_mlx"
ROOT_FILES = {"__init__.py", "__main__.py", "py.typed", "config.example.toml"}
ONLY_IN_A_CLONE = {".gitignore", ".ci/run"}


def packaged(tracked: frozenset[str]) -> set[str]:
    """What a wheel must hold, relative to the package."""
    return {f for f in tracked if f in ROOT_FILES or f.split("/")[0] in ("engine", "tui", "themes")}


def listed(project: dict[str, Any], tracked: frozenset[str]) -> set[str]:
    """What pyproject.toml puts into a wheel."""
    setuptools = project["tool"]["setuptools"]
    found = set()
    for package in setuptools["packages"]:
        folder = "/".join(package.split(".")[1:])
        patterns = ["*.py", *setuptools["package-data"].get(package, [])]
        for path in tracked:
            inside = path[len(folder) :].lstrip("/") if path.startswith(f"{folder}/") or not folder else None
            if inside and any(fnmatch.fnmatch(inside, p) and inside.count("/") == p.count("/") for p in patterns):
                found.add(path)
    return found


@pytest.fixture(scope="module")
def project(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


def test_pyproject_lists_every_package_and_every_data_file(project: dict[str, Any], tracked: frozenset[str]) -> None:
    missing = packaged(tracked) - listed(project, tracked)
    assert not missing, f"a wheel would lack {sorted(missing)}: add the package or the pattern in pyproject.toml"
    assert listed(project, tracked) == packaged(tracked)


def test_every_listed_package_is_a_folder(project: dict[str, Any], root: Path) -> None:
    for package in project["tool"]["setuptools"]["packages"]:
        assert (root.joinpath(*package.split(".")[1:]) / "__init__.py").is_file(), package


def test_the_code_under_test_is_the_installed_package_and_not_the_clone(root: Path) -> None:
    place = Path(qwen_chat_mlx.__file__).parent
    assert place.parent.name == "site-packages" or _is_for_work(), f"tests ran over {place}"
    assert str(root) not in sys.path
    assert not {"engine", "tui", "themes"} & sys.modules.keys()


def test_what_is_installed_is_exactly_the_tracked_files(tracked: frozenset[str]) -> None:
    if _is_for_work():
        pytest.skip("an editable install has no files of its own; CI installs a wheel")
    files = metadata.distribution(DISTRIBUTION).files or []
    inside = {f.as_posix()[len(PACKAGE) + 1 :] for f in files if f.parts[0] == PACKAGE and "__pycache__" not in f.parts}
    assert inside == packaged(tracked)
    tops = {f.parts[0] for f in files} - {"..", PACKAGE}
    assert all(t.endswith(".dist-info") for t in tops), "a wheel adds one name to an environment"


def test_the_installed_metadata_name_the_command_and_the_licences() -> None:
    if _is_for_work():
        pytest.skip("an editable install; CI installs a wheel")
    found = metadata.distribution(DISTRIBUTION)
    assert found.version == qwen_chat_mlx.__version__
    commands = {(e.name, e.value) for e in found.entry_points if e.group == "console_scripts"}
    assert commands == {("qwen-chat", "qwen_chat_mlx.tui.cli:main")}
    licences = {f.as_posix().split("/licenses/")[1] for f in found.files or [] if "/licenses/" in f.as_posix()}
    assert licences == {"LICENSE", "engine/demo/NOTICE", "engine/bench/corpora/NOTICE"}


def _is_for_work() -> bool:
    """Whether this is somebody's working install, linked to the clone. Never in CI."""
    if os.environ.get("CI"):
        return False
    if Path(qwen_chat_mlx.__file__).parent.is_symlink():
        return True
    try:
        origin = metadata.distribution(DISTRIBUTION).read_text("direct_url.json") or ""
    except metadata.PackageNotFoundError:
        return True
    return '"editable": true' in origin


def test_the_version_is_written_once_and_released_in_the_changelog_format(project: dict[str, Any], root: Path) -> None:
    assert project["project"]["version"] == qwen_chat_mlx.__version__
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "\n## [Unreleased]\n" in changes


@pytest.mark.slow
def test_a_source_distribution_holds_every_tracked_file_and_builds_the_whole_wheel(
    root: Path, tracked: frozenset[str], tmp_path: Path
) -> None:
    clone = tmp_path / "clone"
    for path in tracked:
        (clone / path).parent.mkdir(parents=True, exist_ok=True)
        os.link(root / path, clone / path) if _same_disk(root, tmp_path) else (clone / path).write_bytes(
            (root / path).read_bytes()
        )
    sdist = tmp_path / _build("sdist", clone, tmp_path)
    with tarfile.open(sdist) as archive:
        names = {m.name.split("/", 1)[1] for m in archive.getmembers() if m.isfile()}
        archive.extractall(tmp_path / "unpacked")
    made = {n for n in names if n in ("PKG-INFO", "setup.cfg") or ".egg-info/" in n}
    assert names - made == tracked - ONLY_IN_A_CLONE

    (unpacked,) = (tmp_path / "unpacked").iterdir()
    with zipfile.ZipFile(tmp_path / _build("wheel", unpacked, tmp_path)) as wheel:
        inside = {n[len(PACKAGE) + 1 :] for n in wheel.namelist() if n.startswith(f"{PACKAGE}/")}
    assert inside == packaged(tracked)


def _same_disk(a: Path, b: Path) -> bool:
    return a.stat().st_dev == b.stat().st_dev


def _build(kind: str, source: Path, out: Path) -> str:
    """Build without network in `source`; the name of the file made in `out`."""
    code = f"import sys, setuptools.build_meta as b; print(b.build_{kind}(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(out)], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip().splitlines()[-1]
