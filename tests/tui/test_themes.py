"""Theme files: what ships is readable, what is broken says where."""

import subprocess
import sys

import pytest

from qwen_chat_mlx.engine.errors import ConfigError
from qwen_chat_mlx.tui import themes
from qwen_chat_mlx.tui.config import UiConfig
from qwen_chat_mlx.tui.themes import choose, contrast, list_themes, read_theme, textual_theme, weak_pairs

SHIPPED, PROBLEMS = list_themes()
GOOD = (themes.SHIPPED / "ink.toml").read_text("utf-8")


def test_at_least_six_themes_ship_dark_and_light_and_one_of_the_terminals_own_colours():
    assert PROBLEMS == []
    real = [t for t in SHIPPED if not t.ansi]
    assert len(real) >= 6
    assert sum(t.dark for t in real) >= 3
    assert sum(not t.dark for t in real) >= 3
    assert any(t.ansi for t in SHIPPED)
    assert UiConfig().theme == themes.FALLBACK
    assert themes.FALLBACK in {t.name for t in SHIPPED}
    assert len({tuple(t.colors.values()) for t in SHIPPED}) == len(SHIPPED)


def test_contrast_is_that_of_wcag():
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#fff") == pytest.approx(4.48, abs=0.005)
    assert contrast("#123456", "#123456") == 1


@pytest.mark.parametrize("palette", SHIPPED, ids=lambda p: p.name)
def test_body_text_has_contrast_4_5_and_muted_text_3_on_every_ground(palette):
    assert list(weak_pairs(palette)) == []


@pytest.mark.parametrize("palette", [p for p in SHIPPED if not p.ansi], ids=lambda p: p.name)
def test_textual_gets_exactly_the_measured_colours(palette):
    made = textual_theme(palette)
    variables = {**made.to_color_system().generate(), **made.variables}
    for name in ("background", "surface", "panel", "foreground", "primary", "success", "warning", "error"):
        assert contrast(variables[name], palette.colors[name]) < 1.01
    for word in ("primary", "secondary", "accent", "success", "warning", "error", "muted"):
        assert variables[f"text-{word}"] == palette.colors[word]
    for pair in ("block-cursor", "input-selection", "input-cursor", "screen-selection", "block-cursor-blurred"):
        assert contrast(variables[f"{pair}-foreground"], variables[f"{pair}-background"]) >= 4.5
    assert contrast(variables["footer-key-foreground"], variables["footer-background"]) >= 4.5


async def test_every_theme_can_be_worn_by_an_app():
    from textual.app import App
    from textual.widgets import Markdown, Static

    class Small(App):
        def compose(self):
            yield Static("hello", markup=False)
            yield Markdown("# a\n\n`b` [c](d)\n\n```py\nx = 1\n```")

    app = Small()
    async with app.run_test() as pilot:
        for palette in SHIPPED:
            app.register_theme(textual_theme(palette))
            app.theme = palette.name
            await pilot.pause()
            assert app.current_theme.dark == palette.dark
            if not palette.ansi:
                assert app.screen.styles.background.hex.lower() == palette.colors["background"]


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [
        (('primary = "#82aaff"', 'primary = "blue"'), 10, ["colors.primary", "'blue'", "#1a2b3c"]),
        (('primary = "#82aaff"', "primary = 5"), 10, ["colors.primary", "5"]),
        (('primary = "#82aaff"', 'primry = "#82aaff"'), 10, ["'primry'", "'primary'"]),
        (('primary = "#82aaff"\n', ""), 4, ["missing", "primary"]),
        (("dark = true", "dark = 1"), 2, ["dark", "true or false"]),
        (("dark = true", "drak = true"), 2, ["'drak'", "'dark'"]),
        (("[colors]", "[colours]"), 4, ["'colours'", "'colors'"]),
        (("[colors]", "[colors"), 4, ["TOML"]),
        (("dark = true", "dark = true\ncolors = 1"), None, ["TOML"]),
        (("[colors]", '[variables]\nx = "[@click=a]"\n[colors]'), 5, ["variables.x"]),
    ],
)
def test_a_bad_file_is_named_with_line_and_key_and_a_fallback_stands_in(change, line, words, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace(*change))
    with pytest.raises(ConfigError) as e:
        read_theme(path)
    assert str(e.value).startswith(f"{path}:{line}: " if line else f"{path}:")
    assert [w for w in words if w not in str(e.value)] == []
    palette, said = choose("mine", tmp_path)
    assert palette.name == themes.FALLBACK
    assert str(path) in said
    found, problems = list_themes(tmp_path)
    assert len(found) == len(SHIPPED)
    assert len(problems) == 1


def test_a_users_theme_wins_over_a_shipped_one_and_a_broken_one_gives_way_to_it(tmp_path):
    own = tmp_path / "paper.toml"
    own.write_text(GOOD.replace("Ink: cool dark blue", "Mine"))
    assert choose("paper", tmp_path)[0].title == "Mine"
    own.write_text("broken")
    palette, said = choose("paper", tmp_path)
    assert palette.title == read_theme(themes.SHIPPED / "paper.toml").title
    assert f"{own}:1:" in said


def test_an_unknown_theme_names_the_nearest():
    palette, said = choose("papre")
    assert palette.name == themes.FALLBACK
    assert "'paper'" in said
    assert "ember" in choose("zzzzzz")[1]


def test_weak_colours_of_a_users_theme_are_named(tmp_path):
    path = tmp_path / "dim.toml"
    path.write_text(GOOD.replace("#8e98ad", "#2a2f3a"))
    assert "muted on background" in next(weak_pairs(read_theme(path)))


def test_an_ansi_theme_needs_no_grounds_but_its_words(tmp_path):
    path = tmp_path / "term.toml"
    path.write_text('ansi = true\n[colors]\nprimary = "ansi_blue"\n')
    with pytest.raises(ConfigError, match="secondary"):
        read_theme(path)
    ansi = next(t for t in SHIPPED if t.ansi)
    made = textual_theme(ansi)
    assert made.ansi
    assert made.to_color_system().generate()["background"] == "ansi_default"


def test_reading_themes_imports_no_textual():
    code = "import sys; from qwen_chat_mlx.tui.themes import *; list_themes(); print('textual' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"
