"""Contrast as it reaches the screen: every cell with text, in every shipped theme, over a whole chat."""

import pytest

from qwen_chat_mlx.engine.fake import FakeDisk, FakeReply, FakeScript
from qwen_chat_mlx.tui.config import Live, UiConfig, load
from qwen_chat_mlx.tui.places import Places
from qwen_chat_mlx.tui.themes import SHIPPED, contrast, list_themes

REPLY = "Some *text* with `code` and a [link](x):\n\n```py\ndef f(x: int) -> str:\n    return 'a'  # note\n```\n\n- one\n\n> two\n\n# three\n\n| a | b |\n|-|-|\n| 1 | 2 |\n"
GRAPHICS = set("─│┌┐└┘├┤┬┴┼━┃▏▎▍▌▋▊▉█▁▂▃▄▅▆▇▐░▒▓▕▔┊·╱╲▮▯▸▾▴●◐○◑◒◓▲■❯|#. ")


def weakest(app):
    """(contrast, text) of the weakest text on the screen, and how many cells were judged."""
    found = []
    for strip in app.screen._compositor.render_strips():
        for segment in strip:
            words = "".join(c for c in segment.text if c not in GRAPHICS)
            style = segment.style
            if not words or style is None or style.color is None or style.bgcolor is None:
                continue
            front, back = style.color.get_truecolor().hex, style.bgcolor.get_truecolor().hex
            if style.reverse:
                front, back = back, front
            found.append((contrast(front, back), segment.text))
    return sorted(found), sum(len(text) for _, text in found)


@pytest.mark.parametrize("name", [t.name for t in list_themes()[0] if not t.ansi])
async def test_everything_that_is_written_can_be_read(name, stage):
    script = FakeScript(replies=(FakeReply(REPLY, "some thought"),), disk=FakeDisk(warm_steps=5))
    async with stage(script, ui_config=UiConfig(theme=name)) as s:
        await s.ask("a *prompt*")
        found, cells = weakest(s.app)
        assert cells > 400
        assert [f for f in found if f[0] < 3.0] == []
        body = [f for f in found if "Some" in f[1] or "prompt" in f[1]]
        assert body
        assert min(body)[0] >= 4.5


async def test_an_edited_theme_is_worn_at_the_next_look(stage, home):
    places = Places.of()
    places.themes.mkdir(parents=True)
    own = places.themes / "mine.toml"
    good = (SHIPPED / "ink.toml").read_text("utf-8")
    own.write_text(good)
    places.config_file.write_text('[ui]\ntheme = "mine"\n')
    loaded = load()
    async with stage(ui_config=loaded.ui, places=places, live=Live(loaded, load)) as s:
        assert s.app.theme == "mine"
        own.write_text(good.replace("#11151d", "#221122"))
        s.app.poll_config()
        await s.pilot.pause()
        assert s.app.screen.styles.background.hex.lower() == "#221122"
        own.write_text("broken")
        s.app.poll_config()
        await s.pilot.pause()
        assert s.app.theme == "ink"
        assert any("mine.toml:1:" in line for line in s.app.log_lines)
        own.write_text(good)
        s.app.poll_config()
        await s.pilot.pause()
        assert s.app.theme == "mine"
        places.config_file.write_text('[ui]\ntheme = "mine"\nmouse = 7\n')
        s.app.poll_config()
        await s.pilot.pause()
        assert any("config.toml:3:" in line for line in s.app.log_lines)
