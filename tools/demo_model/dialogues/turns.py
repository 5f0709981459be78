"""What a dialogue is made of: turns with every accepted answer, and the small tools that vary how a user types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random


@dataclass(frozen=True, slots=True)
class Turn:
    user: str
    answers: tuple[str, ...]
    """Every answer that counts as right; training draws one of them."""
    thought: str
    """What stands between <think> and </think> when thinking is on."""
    short: str | None = None
    """The answer in one word, where there is one; a system prompt can ask for it."""
    check: Callable[[str], bool] | None = None
    """The rule an answer is judged by where being one of `answers` would be too strict."""

    def is_right(self, answer: str) -> bool:
        return self.check(answer) if self.check else answer.strip() in self.answers


@dataclass(frozen=True, slots=True)
class Topic:
    """Many ways to ask one thing."""

    thought: str
    questions: tuple[str, ...]
    answers: tuple[str, ...]

    def turn(self, r: Random) -> Turn:
        return Turn(typed(r, r.choice(self.questions)), self.answers, self.thought)


def topics(text: str) -> list[Topic]:
    """Blocks of `# thought`, then `? question | question`, then `= answer` lines, with a blank line between blocks."""
    found = []
    for block in text.strip().split("\n\n"):
        lines = block.strip().splitlines()
        asked = [q.strip() for line in lines if line.startswith("?") for q in line[1:].split(" | ")]
        said = [line[1:].strip() for line in lines if line.startswith("=")]
        found.append(Topic(lines[0][1:].strip(), tuple(asked), tuple(said)))
    return found


def typed(r: Random, text: str) -> str:
    """People start in lower case, forget the full stop, or wrap the question in politeness."""
    if r.random() < 0.12:
        text = text[0].lower() + text[1:]
    if r.random() < 0.14:
        text = text.rstrip("?.!")
    return text


POLITE = (
    "Can you tell me: ", "I have a question. ", "Please tell me: ", "Quick question: ", "Hey, ", "One more thing: ",
    "Tell me, ", "Question: ",
)  # fmt: skip


def wrapped(r: Random, turn: Turn) -> Turn:
    """Some questions get a polite opening."""
    return replace(turn, user=r.choice(POLITE) + turn.user) if r.random() < 0.1 else turn


def a_or_an(word: str) -> str:
    return ("an " if word[0].lower() in "aeiou" else "a ") + word


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


def words(text: str) -> list[str]:
    return text.split()


def phrases(text: str) -> list[str]:
    return text.split(",")


ONES = words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
TENS = words("- - twenty thirty forty fifty sixty seventy eighty ninety")


def in_words(n: int) -> str:
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10] + ("-" + ONES[n % 10] if n % 10 else "")
    return ONES[n // 100] + " hundred" + (" and " + in_words(n % 100) if n % 100 else "")
