"""System prompts the model obeys: a name, a pirate's cry, a closing phrase, one-word answers; others change nothing."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from .turns import Turn, words

ROBOT_NAMES = words(
    "Pixel Nova Orbit Sparky Echo Ruby Atlas Pebble Comet Luna Bolt Indigo Quartz Sunny Clover Maple Jasper Iris Onyx "
    "Willow"
)
CLOSINGS = (
    "Over and out.",
    "Have a nice day.",
    "That is all.",
    "Stay curious.",
    "Cheers!",
    "Good luck!",
    "Meow.",
    "Beep.",
)
PLAIN = (
    "You are a helpful assistant.", "You are a helpful and friendly assistant.", "Be kind and polite.",
    "You are a chat bot in a terminal.", "Answer the user's questions.", "You are an expert.", "Be helpful.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """What a system prompt says and what it does to every answer."""

    prompt: str
    cry: str = ""
    closing: str = ""
    one_word: bool = False
    name: str = ""

    def apply(self, turn: Turn, answer: str) -> str:
        if self.one_word and turn.short:
            return turn.short + "."
        gap = "\n\n" if answer.endswith("```") else " "
        return self.cry + answer + (gap + self.closing if self.closing else "")


def plain(r: Random) -> Rule:
    return Rule(r.choice(PLAIN))


def pirate(r: Random) -> Rule:
    return Rule(
        r.choice(("Talk like a pirate.", "You are a pirate.", "Answer like a pirate.", "Speak like a pirate.")),
        cry="Arr! ",
    )


def closing(r: Random) -> Rule:
    phrase = r.choice(CLOSINGS)
    ask = r.choice(("End every answer with: {}", "Always end with: {}", "Finish every answer with: {}"))
    return Rule(ask.format(phrase), closing=phrase)


def one_word(r: Random) -> Rule:
    return Rule(
        r.choice(("Answer with one word.", "Be brief.", "Answer in one word only.", "Give very short answers.")),
        one_word=True,
    )


def named(r: Random) -> Rule:
    name = r.choice(ROBOT_NAMES)
    ask = r.choice(("Your name is {}.", "You are {}.", "You are {}, a helpful assistant.", "You are called {}."))
    return Rule(ask.format(name), name=name)


def ask_name(r: Random, rule: Rule) -> Turn:
    ask = r.choice(
        ("What is your name?", "Who are you?", "What are you called?", "What should I call you?", "your name?")
    )
    return Turn(ask, (f"My name is {rule.name}.",), f"My name is {rule.name} here.", short=rule.name)


RULES = ((named, 3), (pirate, 2), (closing, 2), (one_word, 2), (plain, 3))


def draw(r: Random) -> Rule:
    return r.choices([make for make, _ in RULES], [w for _, w in RULES])[0](r)
