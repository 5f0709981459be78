"""Lines are broken at words on a terminal, and nowhere else."""

import io

from qwen_chat_mlx.tui.text import folding


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_long_lines_are_broken_at_words_on_a_terminal_alone(monkeypatch):
    monkeypatch.setenv("COLUMNS", "24")
    text = "  a short line\n\n" + "context, dtype and layer-major buffers for prompts of /a/very/long/path/to/somewhere"
    assert folding.folded(text, io.StringIO()) == text
    rows = folding.folded(text, Screen()).split("\n")
    assert rows[:2] == ["  a short line", ""]
    assert " ".join(rows[2:]) == text.split("\n")[2]
    assert all(len(row) <= 24 or " " not in row for row in rows)
