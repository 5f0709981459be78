"""The chat warns once when it and another one want more memory than there is."""

from qwen_chat_mlx.tui.places import Places
from qwen_chat_mlx.tui.terminal import instances


async def test_a_second_chat_that_exceeds_the_memory_is_warned_about_once(stage, monkeypatch):
    places = Places.of()
    monkeypatch.setattr(instances.Instances, "others", lambda self: [1 << 60])
    async with stage(places=places) as s:
        await s.ask("hello")
        await s.ask("again")
        memory = s.app.state.stats.memory
        assert memory.plan_bytes
        assert memory.limit_bytes
        assert len([line for line in s.app.log_lines if "Another qwen-chat runs" in line]) == 1
        assert [p.read_text() for p in places.running.iterdir()] == [str(memory.plan_bytes)]
    assert list(places.running.iterdir()) == []
