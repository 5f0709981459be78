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
