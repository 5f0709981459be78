"""The README's commands work as they are written, and what it points to is there."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from qwen_chat_mlx.tui import cli
from qwen_chat_mlx.tui.cli._flags import Parser, load_settings

HERE = Path(__file__)


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("readme", HERE.with_name("readme.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


readme = _load()


def ours() -> list[list[str]]:
    """Argument lists of every qwen-chat command in the README."""
    found = []
    for block in readme.blocks():
        for step in readme.steps(block):
            for part in step.split("|"):
                words = shlex.split(part)
                at = [i for i, w in enumerate(words) if w == "qwen-chat" or w.endswith("/qwen-chat")]
                if at:
                    found.append(words[at[0] + 1 :])
    return found


def test_the_readme_has_one_command_to_start_and_one_to_test() -> None:
    with_uv, with_pip = readme.blocks("Start")
    assert readme.steps(with_uv) == ["uv run qwen-chat"]
    assert [s.split()[0] for s in readme.steps(with_pip)] == ["python3", ".venv/bin/pip", ".venv/bin/qwen-chat"]
    (test,) = readme.blocks("Run the tests")
    assert [s.split()[0] for s in readme.steps(test)] == ["python3", ".venv/bin/pip", ".venv/bin/pytest"]


def test_every_command_of_the_readme_is_understood() -> None:
    assert len(ours()) >= 7
    for words in ours():
        verb, rest = (words[0], words[1:]) if words and words[0] in cli.verbs() else ("chat", words)
        module = import_module(f"qwen_chat_mlx.tui.cli.{verb}")
        parser = Parser(f"qwen-chat {verb}")
        module.add_arguments(parser)
        args = parser.parse_args(rest)
        load_settings(args)


def test_every_file_the_documents_link_to_is_there(root: Path, tracked: frozenset[str]) -> None:
    for path in sorted(p for p in tracked if p.endswith(".md")):
        text = re.sub(r"```.*?```", "", (root / path).read_text(encoding="utf-8"), flags=re.S)
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if "://" not in target:
                assert ((root / path).parent / target).exists(), f"{path} links to {target}"


def test_verbs_that_documents_mention_exist(root: Path) -> None:
    for path in ("README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/glossary.md"):
        text = (root / path).read_text(encoding="utf-8")
        for word in re.findall(r"`qwen-chat ([a-z]+)\b", text):
            assert word in cli.verbs(), f"{path} speaks of qwen-chat {word}"


def test_keys_that_the_readme_promises_are_bound(root: Path) -> None:
    from qwen_chat_mlx.tui.keys import ACTIONS

    bound = {key.strip() for a in ACTIONS for key in a.keys.split(",")}
    table = re.search(r"^## Keys\n(.*?)^## ", (root / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    assert table is not None
    names = {"esc": "escape", "/": None}
    for row in re.findall(r"^\| ([^|]+) \|", table.group(1), re.M)[1:]:
        for key in row.lower().split(", "):
            name = names.get(key, key)
            assert name is None or name in bound, f"README promises {key}"


@pytest.mark.slow
def test_the_start_command_paints_the_chat_and_quits(tmp_path: Path, root: Path) -> None:
    """The last step of the README's start command, over the package that is installed here, in a terminal."""
    pexpect = pytest.importorskip("pexpect")
    step = readme.steps(readme.blocks("Start")[1])[-1]
    command = shlex.split(step)
    assert command[0] == ".venv/bin/qwen-chat"
    script = Path(sys.executable).with_name("qwen-chat")
    program = [str(script)] if script.exists() else [sys.executable, "-m", "qwen_chat_mlx"]
    environ = {
        "PATH": "/usr/bin:/bin", "TERM": "xterm-256color", "LANG": "C.UTF-8", "HOME": str(tmp_path),
        "QWEN_CHAT_HOME": str(tmp_path),
    }  # fmt: skip
    child = pexpect.spawn(
        program[0], [*program[1:], *command[1:]], env=environ, cwd=str(tmp_path), dimensions=(30, 100), timeout=60
    )
    try:
        child.expect(["Ask something", "could not be loaded"])
        child.send("\x11")
        child.expect(pexpect.EOF)
        child.wait()
        assert (child.exitstatus, child.signalstatus) == (0, None)
    finally:
        child.close(force=True)
