"""Imports point one way, and nothing heavy is imported before the first paint: held statically and in a subprocess."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("mlx", "mlx_lm", "numpy", "tokenizers", "jinja2", "safetensors", "torch", "transformers")
LINT = Path(sys.executable).with_name("lint-imports")


def lint(config: Path, cwd: Path, *, path: str = "") -> str:
    """What import-linter says of the package found on `path`, else of the installed one."""
    environ = {**os.environ, "PYTHONPATH": path, "NO_COLOR": "1", "COLUMNS": "500"}
    command = [str(LINT), "--no-cache", "--no-logo", str(config)]
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def python(code: str) -> set[str]:
    """Modules that an interpreter of its own has imported after `code`, the interpreter's own start apart."""
    code = f"import sys; _before = set(sys.modules)\n{code}\nprint('\\n'.join(set(sys.modules) - _before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_import_contracts_hold(root: Path, tmp_path: Path) -> None:
    said = lint(root / "pyproject.toml", tmp_path)
    assert re.search(r"Contracts: \d+ kept, 0 broken\.", said), said


PLANTED = {
    "The interface stands on the engine": ("engine/errors.py", "from ..tui import keys"),
    "engine: a floor imports lower floors only": ("engine/types.py", "from . import worker"),
    "tui: a floor imports lower floors only": ("tui/state.py", "from .panels import base"),
    "tui sees of the engine its door": ("tui/bridge.py", "from ..engine.offload import policy"),
    "nothing on the way to the first paint": ("tui/keys.py", "import numpy"),
    "files, text and plans know no MLX": ("engine/checkpoint/header.py", "import mlx.core"),
    "the engine knows no screen": ("engine/turn.py", "import rich.text"),
}


@pytest.mark.slow
def test_each_contract_notices_what_it_forbids(root: Path, tracked: frozenset[str], tmp_path: Path) -> None:
    package = tmp_path / "qwen_chat_mlx"
    for path in tracked:
        if path.endswith(".py") and path.split("/")[0] in ("engine", "tui", "themes", "__init__.py", "__main__.py"):
            (package / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / path, package / path)
    for path, line in PLANTED.values():
        with (package / path).open("a", encoding="utf-8") as f:
            f.write(f"\n\ndef _planted():\n    {line}\n")
    (package / "engine" / "homeless.py").touch()
    said = lint(root / "pyproject.toml", tmp_path, path=str(tmp_path))
    for name in PLANTED:
        assert re.search(rf"^{re.escape(name)}.*BROKEN", said, re.M), f"{name} did not notice:\n{said}"
    assert "homeless" in said


def test_importing_the_package_imports_nothing_else() -> None:
    assert python("import qwen_chat_mlx") <= {"qwen_chat_mlx"}


@pytest.mark.parametrize("words", ["--version", "--help", "ask --help", "chat --help", "config --help"])
def test_help_and_version_import_neither_mlx_nor_textual(words: str) -> None:
    run = f"import qwen_chat_mlx.tui.cli as cli, io, contextlib\nwith contextlib.redirect_stdout(io.StringIO()): cli.main({words.split()!r})"
    found = {name.split(".")[0] for name in python(run)}
    assert not found & {*HEAVY, "textual", "rich", "asyncio"}


def test_the_engines_door_costs_nothing_heavy() -> None:
    found = {name.split(".")[0] for name in python("import qwen_chat_mlx.engine, qwen_chat_mlx.engine.fake")}
    assert not found & {*HEAVY, "textual", "rich"}


FIRST_PAINT = """
import asyncio
from qwen_chat_mlx.tui.app import QwenChatApp
from qwen_chat_mlx.tui.config import load

class Loading:
    def __init__(self, *_): pass
    def submit(self, request): pass
    def cancel(self, request_id): pass
    def set_mtp(self, mode): pass
    def close(self, timeout_s=2.0): return True

async def paint():
    settings = load({}, [], {}, None)
    app = QwenChatApp(Loading, settings.ui, engine_config=settings.engine)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        assert app.screen.is_mounted

asyncio.run(paint())
"""


def test_nothing_heavy_is_imported_until_the_chat_has_been_painted() -> None:
    found = {name.split(".")[0] for name in python(FIRST_PAINT)}
    assert "textual" in found
    assert not found & set(HEAVY)


def test_the_packages_import_themselves_relatively(root: Path, tracked: frozenset[str]) -> None:
    for path in sorted(tracked):
        if path.endswith(".py") and path.split("/")[0] in ("engine", "tui", "themes"):
            for node in ast.walk(ast.parse((root / path).read_text(encoding="utf-8"))):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and not node.level:
                    names.append(node.module or "")
                assert not any(n.split(".")[0] in ("qwen_chat_mlx", "engine", "tui", "themes") for n in names), path
