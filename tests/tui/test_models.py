"""The models that can be chosen, as far as folders tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qwen_chat_mlx.tui import models


def test_the_demo_model_can_be_chosen_only_where_its_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "DEMO_FOLDER", tmp_path)
    *_, demo = models.find_models("demo", environ={})
    assert (demo.path, bool(demo.problem)) == ("demo", True)
    (tmp_path / "config.json").write_text("{}")
    *_, demo = models.find_models("demo", environ={})
    assert (demo.path, demo.problem) == ("demo", "")


async def test_without_its_files_the_model_screen_says_so_and_does_not_choose_it(
    stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "DEMO_FOLDER", tmp_path)
    async with stage() as s:
        await s.press("f6")
        assert "not part of this installation" in s.screen_text
        assert "hf download" in s.screen_text
        await s.press("enter")
        assert s.app.screen is not s.chat


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/nosuch", "the folder is not there"),
        ("./nosuch", "the folder is not there"),
        ("~nobody-of-this-name/x", "the folder is not there"),
        ("org/nosuch", "neither a folder nor in the Hugging Face cache"),
        ("~", "there is no config.json in it"),
    ],
)
async def test_a_model_that_is_not_there_is_refused_and_the_open_one_stays(stage: Any, path: str, problem: str) -> None:
    async with stage() as s:
        await s.ask("go", 1.0)
        await s.ask(f"/model {path}", 0)
        assert [n.message for n in s.app._notifications] == [f"{path} cannot be opened: {problem}."]
        assert s.app.engine is s.engine
        assert s.app.state.phase == "ready"
        await s.finish()
        assert s.app.state.turns[-1].status == "done"


def test_a_model_in_the_cache_can_be_opened_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--org--name" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    assert models.problem_of("org/name") == ""
