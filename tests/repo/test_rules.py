"""Those of CONTRIBUTING's ten rules that a program can check."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

MOST_LINES = 450
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "tools", "core", "base_utils"}
UNITS = re.compile(r"_(ms|us|sec|secs|seconds|kb|mb|gb|kib|mib|gib)$")


@pytest.fixture(scope="module")
def sources(root: Path, tracked: frozenset[str]) -> dict[str, str]:
    """Text of every tracked Python file."""
    return {p: (root / p).read_text(encoding="utf-8") for p in sorted(tracked) if p.endswith(".py")}


def in_packages(sources: dict[str, str]) -> dict[str, str]:
    return {p: s for p, s in sources.items() if p.split("/")[0] in ("engine", "tui", "themes")}


def test_every_module_opens_with_what_it_is(sources: dict[str, str]) -> None:
    for path, text in sources.items():
        if not text.strip():
            continue
        said = ast.get_docstring(ast.parse(text), clean=False)
        assert said, f"{path} has no docstring"


def test_every_module_can_be_read_in_one_sitting(sources: dict[str, str]) -> None:
    long = {p: n for p, s in in_packages(sources).items() if (n := s.count("\n")) > MOST_LINES}
    assert not long, f"split by noun: {long}"


def test_no_module_has_a_vague_name(sources: dict[str, str]) -> None:
    vague = [p for p in in_packages(sources) if Path(p).stem in VAGUE or Path(p).parent.name in VAGUE]
    assert not vague


def test_the_code_is_python_3_10(sources: dict[str, str]) -> None:
    for path, text in sources.items():
        ast.parse(text, filename=path, feature_version=(3, 10))


def test_quantities_inside_the_engine_are_seconds_and_bytes(sources: dict[str, str]) -> None:
    for path, text in sources.items():
        if not path.startswith("engine/") or path.startswith("engine/fake"):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                assert not UNITS.search(node.target.id), f"{path}: {node.target.id} should end in _s or _bytes"


def test_no_error_is_swallowed_whole(sources: dict[str, str]) -> None:
    for path, text in in_packages(sources).items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ExceptHandler) and all(isinstance(s, ast.Pass) for s in node.body):
                caught = ast.unparse(node.type) if node.type else "everything"
                assert caught not in ("everything", "Exception", "BaseException"), f"{path}:{node.lineno}"


def test_nobody_is_sent_to_the_unrelated_package(root: Path, tracked: frozenset[str]) -> None:
    """`qwen-chat` on PyPI is somebody else's cloud client."""
    unrelated = re.compile(r"(pip|pipx|uv tool|uv pip) install (--?\S+ )*['\"]?qwen-chat(?!-mlx)")
    for path in sorted(tracked):
        if path.endswith((".md", ".py", ".toml", ".txt")) and not path.startswith("tests/repo/"):
            text = (root / path).read_text(encoding="utf-8", errors="replace")
            assert not unrelated.search(text), path
