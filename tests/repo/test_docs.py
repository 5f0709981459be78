"""The documents speak of what is there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCUMENTS = ("README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/dependencies.md", "docs/glossary.md")


@pytest.fixture(scope="module")
def project(root: Path) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


def test_files_that_documents_name_are_there(root: Path) -> None:
    path = re.compile(r"`((?:engine|tui|themes|tests|docs|tools|benchmarks)/[\w./-]*)`")
    for document in DOCUMENTS:
        for named in path.findall((root / document).read_text(encoding="utf-8")):
            assert (root / named).exists(), f"{document} names {named}"


def test_the_floors_in_the_document_are_those_of_the_contracts(root: Path, project: dict[str, Any]) -> None:
    text = (root / "docs/architecture.md").read_text(encoding="utf-8")
    contracts = {c["containers"][0]: c["layers"] for c in project["tool"]["importlinter"]["contracts"] if "layers" in c}
    for house in ("qwen_chat_mlx.engine", "qwen_chat_mlx.tui"):
        table = text.split(f"<!-- floors: {house} -->")[1].split("\n\n")[0]
        written = [re.findall(r"`(\w+)`", row.split("|")[1]) for row in table.splitlines() if row.startswith("| `")]
        assert written == [re.findall(r"\w+", layer) for layer in contracts[house]]


def test_every_dependency_has_its_reason(root: Path, project: dict[str, Any]) -> None:
    text = (root / "docs/dependencies.md").read_text(encoding="utf-8")
    extras = project["project"]["optional-dependencies"]
    for wanted in [*project["project"]["dependencies"], *extras["dev"], *extras["oracle"]]:
        name = re.match(r"[\w-]+", wanted)
        assert name is not None
        assert re.search(rf"(?<![\w-]){re.escape(name.group())}(?![\w-])", text), f"docs/dependencies.md lacks {wanted}"
