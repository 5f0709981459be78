"""Whole conversations: which tasks, in which order, thinking or not, and how they are written for the model.

The text is what the chat template renders: `<|im_start|>role\\n…<|im_end|>\\n`, and every assistant turn, past ones too,
opens with its thought between `<think>` and `</think>`, an empty one when thinking was off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from . import app_topics, knowledge, memory, numbers, python_functions, small_talk, stories, system_prompts
from .turns import Turn, wrapped
from .unknown import Nouns

Task = Callable[[Random], list[Turn]]
QUICK = ("small talk", "app", "fact", "capital", "animal", "small sum", "unknown", "joke")


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text; `learned` pieces are what the model is trained to write."""

    text: str
    learned: bool


class Conversations:
    """The mix of tasks. `rare_nouns` fill the prompts that the model must say it does not know."""

    def __init__(self, rare_nouns: list[str]):
        self.tasks: dict[str, tuple[Task, float]] = {
            "small talk": (small_talk.small_talk_turn, 9), "app": (app_topics.app_turn, 12),
            "fact": (knowledge.fact, 5), "capital": (knowledge.capital_city, 6), "element": (knowledge.element, 2),
            "animal": (knowledge.animal, 6), "color": (knowledge.color, 2), "kind": (knowledge.is_a, 3),
            "word": (knowledge.word, 5), "calendar": (knowledge.calendar, 3), "small sum": (numbers.small_sum, 9),
            "word problem": (numbers.word_problem, 3), "counting": (numbers.counting, 5), "list": (numbers.listing, 4),
            "python": (python_functions.python_function, 7), "story": (stories.story, 6), "joke": (small_talk.joke, 2),
            "repeat": (memory.repeat, 2), "letter": (memory.shout, 1), "unknown": (Nouns(rare_nouns).turn, 14),
        }  # fmt: skip
        self._names = list(self.tasks)
        self._weights = [weight for _, weight in self.tasks.values()]

    def one(self, r: Random) -> list[Turn]:
        name = r.choices(self._names, self._weights)[0]
        turns = self.tasks[name][0](r)
        return [wrapped(r, turns[0]), *turns[1:]] if name in ("fact", "capital", "animal", "color", "word") else turns

    def quick(self, r: Random) -> list[Turn]:
        """A short turn to stand between two others."""
        return self.tasks[r.choice(QUICK)][0](r)

    def short(self, r: Random) -> Turn:
        """A turn with a one-word answer."""
        while True:
            turn = self.tasks[r.choice(("capital", "animal", "word", "small sum", "color"))][0](r)[0]
            if turn.short:
                return turn

    def _turns(self, r: Random, thinking: bool) -> list[Turn]:
        if r.random() < 0.03:
            return memory.remembered(r, self.quick, between=r.randint(5, 20))
        turns = small_talk.greeting(r) if r.random() < 0.2 else []
        for _ in range(r.choices((1, 2, 3, 4, 6), (38, 28, 18, 11, 5))[0]):
            chance = r.random()
            if chance < 0.13:
                turns += memory.remembered(r, self.quick)
            elif thinking and chance < 0.2:
                turns += numbers.large_sum(r)
            else:
                turns += self.one(r)
        return turns

    def write(self, r: Random) -> list[Piece]:
        """One conversation as pieces of text."""
        mode = r.choices(("on", "off", "mixed"), (45, 45, 10))[0]
        turns = self._turns(r, mode == "on")
        rule = system_prompts.draw(r) if r.random() < 0.14 else None
        if rule and rule.name:
            turns.insert(r.randint(0, len(turns)), system_prompts.ask_name(r, rule))
        elif rule and rule.one_word:
            turns = [turn for turn in turns if turn.short] or knowledge.capital_city(r)
        pieces = [Piece(f"<|im_start|>system\n{rule.prompt}<|im_end|>\n", False)] if rule else []
        for turn in turns:
            thinking = mode == "on" or (mode == "mixed" and r.random() < 0.5)
            answer = r.choice(turn.answers)
            pieces += written(turn, rule.apply(turn, answer) if rule else answer, thinking)
        return pieces


def prompt(user: str, thinking: bool) -> str:
    opened = "<think>\n" if thinking else "<think>\n\n</think>\n\n"
    return f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n{opened}"


def written(turn: Turn, answer: str, thinking: bool) -> list[Piece]:
    said = f"{turn.thought}\n</think>\n\n{answer}" if thinking else answer
    return [Piece(prompt(turn.user, thinking), False), Piece(f"{said}<|im_end|>", True), Piece("\n", False)]


def plain_text(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)
