"""The chat says what memory it plans for before it takes it, and warns once when all chats together want too much."""

import pytest

from qwen_chat_mlx.engine.errors import CheckpointError
from qwen_chat_mlx.engine.fake import FakeScript
from qwen_chat_mlx.tui.places import Places
from qwen_chat_mlx.tui.terminal import instances


@pytest.fixture
def another(monkeypatch):
    monkeypatch.setattr(instances.Instances, "others", lambda self: [1 << 60])


def claims(places):
    return [p.read_text() for p in places.running.iterdir()]


async def test_a_second_chat_that_exceeds_the_memory_is_warned_about_once_before_the_model_is_read(stage, another):
    places = Places.of()
    async with stage(places=places, ready=False) as s:
        assert s.app.state.phase == "loading"
        assert len([line for line in s.app.log_lines if "Another qwen-chat runs" in line]) == 1
        await s.advance(10)
        await s.ask("hello")
        await s.ask("again")
        memory = s.app.state.stats.memory
        assert len([line for line in s.app.log_lines if "Another qwen-chat runs" in line]) == 1
        assert claims(places) == [str(memory.plan_bytes)]
    assert claims(places) == []


async def test_a_loaded_chat_counts_though_nobody_has_asked_it_anything(stage):
    places = Places.of()
    async with stage(places=places) as s:
        assert claims(places) == [str(s.app.state.stats.memory.plan_bytes)]


async def test_a_chat_whose_model_could_not_be_opened_plans_for_nothing(stage):
    places = Places.of()
    async with stage(
        FakeScript(load_error=CheckpointError("no", "way"), load_error_at=0.5), places=places, ready=False
    ) as s:
        assert len(claims(places)) == 1
        await s.advance(10)
        assert s.app.state.phase == "failed"
        assert claims(places) == []
