"""Accuracy per task on fresh prompts, by each task's own exact rule; recall, system prompts and refusals too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from dialogues import Conversations, Turn, knowledge, memory, numbers, prompt, system_prompts, written
from dialogues.conversation import plain_text
from dialogues.unknown import REFUSAL_MARKS
from generate import answer_all

SEED = 4242
OFF_DOMAIN = Path(__file__).parents[1] / "dialogues" / "off_domain.txt"


@dataclass(frozen=True, slots=True)
class Question:
    task: str
    text: str
    """The rendered prompt, earlier turns included."""
    is_right: Callable[[str], bool]
    wanted: str


def _last(turns: list[Turn], r: Random, thinking: bool, before: str = "") -> str:
    """The prompt of the last turn after the right answers to those before it."""
    for turn in turns[:-1]:
        before += plain_text(written(turn, r.choice(turn.answers), thinking))
    return before + prompt(turns[-1].user, thinking)


def task_questions(source: Conversations, each: int, thinking: bool) -> list[Question]:
    r, found = Random(SEED), []
    for name, (task, _) in source.tasks.items():
        for _ in range(each):
            turns = task(r)
            found.append(Question(name, _last(turns, r, thinking), turns[-1].is_right, turns[-1].answers[0]))
    apart = {"opposite": knowledge.opposite} | ({"large sum": numbers.large_sum} if thinking else {})
    for name, task in apart.items():
        for _ in range(each):
            (turn,) = task(r)
            found.append(Question(name, prompt(turn.user, thinking), turn.is_right, turn.answers[0]))
    return found


def recall_questions(source: Conversations, each: int, thinking: bool) -> list[Question]:
    """A name or a favourite, asked for two turns later, and after ten."""
    r, found = Random(SEED + 1), []
    for kind in (memory.name, memory.favourite):
        for gap in (2, 10):
            for _ in range(each):
                tell, ask = kind(r)
                between = [t for _ in range(gap) for t in source.quick(r)[:1]]
                text = _last([tell, *between, ask], r, thinking)
                found.append(Question(f"{kind.__name__} after {gap} turns", text, ask.is_right, ask.short or ""))
    return found


def system_questions(source: Conversations, each: int, thinking: bool) -> list[Question]:
    r, found = Random(SEED + 2), []
    for make in (system_prompts.named, system_prompts.pirate, system_prompts.closing, system_prompts.one_word):
        for _ in range(each):
            rule = make(r)
            turn = system_prompts.ask_name(r, rule) if rule.name else source.short(r)
            wanted = {rule.apply(turn, answer) for answer in turn.answers}
            head = f"<|im_start|>system\n{rule.prompt}<|im_end|>\n"
            obeyed = lambda said, wanted=wanted: said.strip() in wanted  # noqa: E731
            found.append(
                Question(f"system: {make.__name__}", head + prompt(turn.user, thinking), obeyed, sorted(wanted)[0])
            )
    return found


def refusal_questions(thinking: bool) -> list[Question]:
    refused = lambda said: any(mark in said for mark in REFUSAL_MARKS)  # noqa: E731
    lines = OFF_DOMAIN.read_text(encoding="utf-8").splitlines()
    return [Question("off-domain refusals", prompt(line, thinking), refused, "a refusal") for line in lines]


def accuracy(model, tokenizer, source: Conversations, each: int, thinking: bool) -> tuple[dict[str, str], list[dict]]:
    """-> "right/asked" of each task, and what was missed."""
    questions = [
        *task_questions(source, each, thinking),
        *recall_questions(source, each, thinking),
        *system_questions(source, each, thinking),
        *refusal_questions(thinking),
    ]
    replies = answer_all(model, tokenizer, [q.text for q in questions], 220)
    counts: dict[str, list[int]] = {}
    misses = []
    for question, reply in zip(questions, replies, strict=True):
        said = reply.split("</think>\n\n", 1)[-1] if thinking else reply
        right = question.is_right(said)
        count = counts.setdefault(question.task, [0, 0])
        count[0] += right
        count[1] += 1
        if not right:
            misses.append(
                {"task": question.task, "prompt": question.text[-160:], "wanted": question.wanted, "said": reply}
            )
    return {task: f"{right}/{asked}" for task, (right, asked) in counts.items()}, misses
