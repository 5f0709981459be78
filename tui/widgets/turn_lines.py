"""The lines of one turn at one width, brought up to date as its reply grows. No widget: text in, lines out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from textual.content import Content

from ..state import Turn
from ..text import numbers
from ..text.blocks import BlockSplitter
from ..text.layout import BLANK, CODE_FILL, Line, Tail, code_head, lay_out, plain_lines
from ..text.sanitise import one_line

if TYPE_CHECKING:
    from ..text.markdown import Block

__all__ = ["Look", "TurnLines"]

MUTED = "$text-muted"
FOLD_OVER, FOLD_TO = 40, 12
"""Rows of a prompt from which on it is folded, and the rows that stay."""
NOTES = {
    "stopped": ("■ stopped", MUTED),
    "length": ("■ ended at the token limit of this reply · /continue goes on", "$text-warning"),
    "context": ("■ the context is full · /new starts a new chat, e edits an earlier prompt", "$text-warning"),
}


@dataclass(frozen=True, slots=True)
class Look:
    """What the lines depend on besides the turn."""

    width: int
    narrow: bool = False
    """No times and no figures beside the names."""
    focused: bool = False
    times: bool = True
    name: str = "qwen"
    fold: str = ""
    """How all thoughts are opened and folded, for people."""


class TurnLines:
    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.thought_open = False
        self.lines: list[Line] = []
        self.codes: list[str] = []
        self._seen: tuple[object, ...] = ()
        self._width = 0
        self._reset()

    def _reset(self) -> None:
        self._fed = ""
        self._splitter = BlockSplitter()
        self._blocks: list[Block] = []
        self._body: list[Line] = []
        self._tail: Tail | None = None
        self._head: list[Line] = []
        self._final = False

    def update(self, look: Look) -> bool:
        """Bring `lines` up to date; True if they changed."""
        seen = (self.turn.version, self.thought_open, look)
        if seen == self._seen:
            return False
        if look.width != self._width:
            self._width = look.width
            self._body, self._tail = lay_out(self._blocks, self._width), None
        self._seen = seen
        self.lines = self._user(look) if self.turn.role == "user" else self._reply(look)
        return True

    def _user(self, look: Look) -> list[Line]:
        bar = "▌ " if look.focused else "▏ "
        head = _ends(Content.styled("you", "bold $text-primary"), self._at(look), look.width)
        lines = plain_lines(self.turn.text, look.width, prefix=bar)
        if len(lines) > FOLD_OVER and not self.thought_open:
            more = Content.styled(f"{bar}▸ {len(lines) - FOLD_TO:,} more lines", MUTED)
            lines = [*lines[:FOLD_TO], Line(more, skip=len(more.plain), action=("thought", 0))]
        return [head, *lines, BLANK]

    def _reply(self, look: Look) -> list[Line]:
        turn = self.turn
        name = Content.styled(look.name, "bold reverse $text-secondary" if look.focused else "bold $text-secondary")
        out = [_ends(name + self._figures(look), self._at(look), look.width)]
        if turn.thinking or turn.status == "thinking":
            out += self._thought(look)
        self._advance()
        body = self._body + (self._head + self._tail.lines if self._tail else [])
        out += body
        if turn.running and turn.status in ("waiting", "prefill") and not body:
            out.append(Line(Content.styled("…", MUTED)))
        if (turn.failure is not None or turn.status in NOTES) and (body or turn.thinking):
            out.append(BLANK)
        if turn.failure is not None:
            mark = "! "
            out += plain_lines(turn.failure.message, look.width, "$text-error", mark)
            if turn.failure.hint:
                out += plain_lines(turn.failure.hint, look.width, MUTED, "  ")
        elif turn.status in NOTES:
            text, style = NOTES[turn.status]
            out += plain_lines(text, look.width, style)
        return [*out, BLANK]

    def _at(self, look: Look) -> str:
        return self.turn.at if look.times and not look.narrow else ""

    def _figures(self, look: Look) -> Content:
        turn = self.turn
        if look.narrow or not turn.tokens:
            return Content("")
        figures = [f"{turn.tokens:,} tok"]
        if turn.tok_per_s is not None:
            figures.append(f"{numbers.rate(turn.tok_per_s)} tok/s")
        if turn.ttft_s is not None:
            figures.append(f"ttft {numbers.duration(turn.ttft_s)}")
        return Content.styled("".join(f" · {f}" for f in figures), MUTED)

    def _thought(self, look: Look) -> list[Line]:
        turn = self.turn
        mark = "▾" if self.thought_open else "▸"
        if turn.status == "thinking":
            said = f"{mark} Thinking · {turn.thinking_tokens:,} tok"
        else:
            took = f" for {numbers.duration(turn.thought_s)}" if turn.thought_s is not None else ""
            tokens = f" ({turn.thinking_tokens:,} tok)" if turn.thinking_tokens else ""
            said = f"{mark} Thought{took}{tokens}"
        hint = "" if look.narrow or not look.fold else f"{look.fold} {'fold' if self.thought_open else 'open'}"
        line = _ends(Content.styled(said, MUTED), hint, look.width)
        out = [Line(line.content, line.join, len(line.content.plain), "", ("thought", 0))]
        if self.thought_open:
            out += plain_lines(turn.thinking.strip("\n"), look.width, f"italic {MUTED}", "┊ ")
        if turn.text:
            out.append(BLANK)
        return out

    def _advance(self) -> None:
        turn = self.turn
        if self._final and turn.text == self._fed:
            return
        if self._final or not turn.text.startswith(self._fed):
            self._reset()
        new, self._fed = turn.text[len(self._fed) :], turn.text
        if not turn.running:
            from ..text.markdown import Code, blocks_of

            self._final = True
            self._blocks = blocks_of(turn.text)
            self._body, self._tail = lay_out(self._blocks, self._width), None
            self.codes = [b.text for b in self._blocks if isinstance(b, Code)]
            return
        fenced = self._splitter.in_fence
        closed = self._splitter.feed(new)
        for text in closed:
            self._close(text)
        if closed or self._tail is None or self._splitter.in_fence != fenced:
            self._begin_tail()
        else:
            self._tail.feed(new)

    def _begin_tail(self) -> None:
        """The open end as it is now; an open fence of its own is shown as code from its first line on."""
        text = self._splitter.tail
        self._head = [BLANK] if self._body and text.strip() else []
        first, newline, rest = text.partition("\n")
        if self._splitter.in_fence and newline and first.lstrip().startswith(("```", "~~~")):
            head = code_head(one_line(first.strip("`~ ").split(" ")[0], 30), self._width, "")
            self._head.append(Line(head, "", len(head.plain), CODE_FILL))
            self._tail = Tail(self._width, prefix=" ", fill=CODE_FILL)
            self._tail.feed(rest)
        else:
            self._tail = Tail(self._width)
            self._tail.feed(text if text.strip() else "")

    def _close(self, text: str) -> None:
        """Add a closed block: parsed and laid out once."""
        from ..text.markdown import Code, blocks_of

        blocks = blocks_of(text)
        if blocks and self._blocks:
            blocks[0] = replace(blocks[0], gap="")
        first = sum(isinstance(b, Code) for b in self._blocks)
        self._blocks += blocks
        self._body += lay_out(blocks, self._width, first)
        self.codes += [b.text for b in blocks if isinstance(b, Code)]


def _ends(left: Content, right: str, width: int) -> Line:
    """One line with something at both ends; the right end gives way."""
    room = width - left.cell_length - len(right)
    if room < 1:
        return Line(left.truncate(width, ellipsis=True))
    shown = left + Content.assemble(" " * room, (right, MUTED)) if right else left
    return Line(shown)
