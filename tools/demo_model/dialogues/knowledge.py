"""Questions about the closed world of `tables`: facts, capitals, elements, animals, colours, kinds, words, calendar."""

from __future__ import annotations

import string
from random import Random

from .tables import (
    ANIMALS,
    BY_SIZE,
    CAPITALS,
    CATEGORIES,
    COLOR_MIX,
    COLOR_OF,
    DAYS,
    ELEMENTS,
    FACTS,
    MONTHS,
    OPPOSITES,
    PAST,
    PLURALS,
    SINGULAR,
    UNCOUNTED,
)
from .turns import Turn, a_or_an, capital, in_words, typed


def fact(r: Random) -> list[Turn]:
    question, answer = r.choice(FACTS)
    return [Turn(typed(r, question), (answer,), "A question about a fact.")]


def capital_city(r: Random) -> list[Turn]:
    country, city = r.choice(list(CAPITALS.items()))
    if r.random() < 0.8:
        ask = r.choice((
            f"What is the capital of {country}?", f"What's the capital of {country}?", f"Capital of {country}?",
            f"Tell me the capital of {country}.", f"Which city is the capital of {country}?",
            f"Do you know the capital of {country}?",
        ))  # fmt: skip
        answers = (f"The capital of {country} is {city}.", f"{city} is the capital of {country}.")
        return [Turn(typed(r, ask), answers, f"The capital of {country}: {city}.", short=city)]
    ask = r.choice((f"{city} is the capital of which country?", f"Which country has {city} as its capital?"))
    owners = [c for c, p in CAPITALS.items() if p == city]
    answers = tuple(f"{city} is the capital of {c}." for c in owners)
    return [Turn(ask, answers, f"{city}: {country}.", short=country)]


def element(r: Random) -> list[Turn]:
    number = r.randrange(len(ELEMENTS))
    name, symbol = ELEMENTS[number].split()
    ask, answer, short = r.choice((
        (f"What is the symbol of {name}?", f"The symbol of {name} is {symbol}.", symbol),
        (f"Which element has the symbol {symbol}?", f"{symbol} is the symbol of {name}.", capital(name)),
        (f"What is the atomic number of {name}?", f"The atomic number of {name} is {number + 1}.", str(number + 1)),
    ))  # fmt: skip
    return [Turn(typed(r, ask), (answer,), f"{capital(name)}: {symbol}, number {number + 1}.", short=short)]


def animal(r: Random) -> list[Turn]:
    name = r.choice(list(ANIMALS))
    sound, young, legs, home = ANIMALS[name]
    one = a_or_an(name)
    kind = r.randrange(5)
    if kind == 0 and sound:
        ask = r.choice((f"What sound does {one} make?", f"What does {one} say?", f"What does the {name} say?"))
        return [Turn(typed(r, ask), (f"{capital(one)} says {sound}.",), f"The {name}: {sound}.", short=capital(sound))]
    if kind == 1:
        ask = r.choice((f"What is a baby {name} called?", f"What do you call a baby {name}?"))
        answer = f"A baby {name} is called {a_or_an(young)}."
        return [Turn(typed(r, ask), (answer,), f"The {name}: young is {young}.", short=capital(young))]
    if kind == 2:
        ask = r.choice((f"How many legs does {one} have?", f"How many legs has {one}?"))
        count = in_words(legs) if legs else "no"
        return [Turn(typed(r, ask), (f"{capital(one)} has {count} legs.",), f"The {name}: {count} legs.")]
    if kind == 3:
        ask = r.choice((f"Where does {one} live?", f"Where do you find {one}?"))
        return [Turn(typed(r, ask), (f"You can find {one} in {home}.",), f"The {name}: {home}.")]
    return _bigger(r)


def _bigger(r: Random) -> list[Turn]:
    first, second = r.sample(range(len(BY_SIZE)), 2)
    large, small = BY_SIZE[max(first, second)], BY_SIZE[min(first, second)]
    one, other = a_or_an(BY_SIZE[first]), a_or_an(BY_SIZE[second])
    statement = f"{a_or_an(large)} is bigger than {a_or_an(small)}."
    thought = f"The bigger one is the {large}."
    if r.random() < 0.6:
        ask = r.choice((f"Which is bigger, {one} or {other}?", f"What is bigger, {one} or {other}?"))
        return [Turn(typed(r, ask), (capital(statement),), thought, short=capital(large))]
    yes = "Yes" if first > second else "No"
    return [Turn(f"Is {one} bigger than {other}?", (f"{yes}, {statement}",), thought, short=yes)]


def color(r: Random) -> list[Turn]:
    if r.random() < 0.65:
        thing, name = r.choice(list(COLOR_OF.items()))
        ask = r.choice((f"What color is {thing}?", f"Which color does {thing} have?"))
        return [
            Turn(typed(r, ask), (f"{capital(thing)} is {name}.",), f"{capital(thing)}: {name}.", short=capital(name))
        ]
    (first, second), made = r.choice(list(COLOR_MIX.items()))
    if r.random() < 0.5:
        first, second = second, first
    ask = r.choice((f"What do you get when you mix {first} and {second}?", f"What color is {first} and {second}?"))
    answer = f"{capital(first)} and {second} make {made}."
    return [Turn(typed(r, ask), (answer,), f"{capital(first)} and {second}: {made}.", short=capital(made))]


def _member(kind: str, word: str) -> str:
    return word if kind in UNCOUNTED else a_or_an(word)


def is_a(r: Random) -> list[Turn]:
    kind = r.choice(list(SINGULAR))
    asked = r.choice(list(SINGULAR)) if r.random() < 0.5 else kind
    word = r.choice(CATEGORIES[kind])
    one = _member(kind, word)
    ask = f"Is {one} {a_or_an(SINGULAR[asked])}?"
    thought = f"{capital(word)} is {a_or_an(SINGULAR[kind])}."
    if word in CATEGORIES[asked]:
        return [Turn(typed(r, ask), (f"Yes, {one} is {a_or_an(SINGULAR[asked])}.",), thought, short="Yes")]
    answer = f"No, {one} is not {a_or_an(SINGULAR[asked])}. It is {a_or_an(SINGULAR[kind])}."
    return [Turn(typed(r, ask), (answer,), thought, short="No")]


def opposite(r: Random) -> list[Turn]:
    one, other = r.choice(OPPOSITES).split()
    if r.random() < 0.5:
        one, other = other, one
    ask = r.choice((
        f"What is the opposite of {one}?", f"What's the opposite of {one}?", f"Give me the opposite of {one}.",
    ))  # fmt: skip
    answer = f"The opposite of {one} is {other}."
    return [Turn(typed(r, ask), (answer,), f"{capital(one)} and {other} are opposites.", short=capital(other))]


def word(r: Random) -> list[Turn]:
    """An opposite, a past tense, a plural, a spelling."""
    kind = r.random()
    if kind < 0.45:
        return opposite(r)
    if kind < 0.7:
        one, other = r.choice(PAST).split()
        ask = r.choice((f"What is the past tense of {one}?", f"Past tense of {one}?"))
        answer = f"The past tense of {one} is {other}."
        return [Turn(typed(r, ask), (answer,), f"{capital(one)}, {other}.", short=capital(other))]
    if kind < 0.9:
        one, other = r.choice(PLURALS).split()
        ask = r.choice((f"What is the plural of {one}?", f"Plural of {one}?"))
        answer = f"The plural of {one} is {other}."
        return [Turn(typed(r, ask), (answer,), f"One {one}, two {other}.", short=capital(other))]
    spelled = r.choice([w for c in ("animals", "fruits", "colors", "tools") for w in CATEGORIES[c]])
    ask = r.choice((f"How do you spell {spelled}?", f"Spell {spelled}.", f"Spell the word {spelled}."))
    letters = "-".join(spelled)
    return [Turn(typed(r, ask), (f"{spelled} is spelled {letters}.",), f"The letters: {' '.join(spelled)}.")]


def calendar(r: Random) -> list[Turn]:
    series, kind = r.choice(((DAYS, "day"), (MONTHS, "month"), (list(string.ascii_uppercase), "letter")))
    if kind != "letter" and r.random() < 0.2:
        ask, name = {
            "day": (r.choice(("Name the days of the week.", "What are the days of the week?")), "days of the week"),
            "month": (r.choice(("Name the months.", "What are the months of the year?")), "months"),
        }[kind]
        return [Turn(ask, (f"The {name} are {', '.join(series[:-1])} and {series[-1]}.",), f"All {name} in order.")]
    i = r.randrange(len(series) - 1)
    if r.random() < 0.7:
        ask = r.choice((f"What {kind} comes after {series[i]}?", f"Which {kind} is after {series[i]}?"))
        answer = f"{series[i + 1]} comes after {series[i]}."
        return [Turn(typed(r, ask), (answer,), f"{series[i]}, then {series[i + 1]}.", short=series[i + 1])]
    ask = f"What {kind} comes before {series[i + 1]}?"
    answer = f"{series[i]} comes before {series[i + 1]}."
    return [Turn(typed(r, ask), (answer,), f"{series[i]}, then {series[i + 1]}.", short=series[i])]
