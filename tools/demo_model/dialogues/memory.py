"""Things the user says once and asks for later: a name, a favourite, a home, a pet, a code word."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from .tables import CATEGORIES, NAMES, SINGULAR
from .turns import Turn, capital, typed, words

CITIES = words("Berlin Paris Rome Madrid Lisbon Vienna Dublin London Oslo Boston Chicago Toronto Sydney Tokyo Prague")
PET_NAMES = words("Bella Max Luna Rocky Coco Bruno Daisy Simba Nala Oreo Ginger Shadow")
CODE_WORDS = [w for kind in ("animals", "fruits", "tools", "colors", "trees", "flowers") for w in CATEGORIES[kind]]

Pair = tuple[Turn, Turn]


def _turns(r: Random, said, replies, asked, answers, thought, short) -> Pair:
    """`said` and `asked` are ways to put it; every reply and every answer is accepted."""
    tell = Turn(typed(r, r.choice(said)), tuple(replies), f"I should remember this: {short}.")
    ask = Turn(typed(r, r.choice(asked)), tuple(answers), thought, short=short, check=lambda text: short in text)
    return tell, ask


def name(r: Random) -> Pair:
    n = r.choice(NAMES)
    return _turns(
        r,
        (f"My name is {n}.", f"I am {n}.", f"Hi, I'm {n}.", f"You can call me {n}.", f"Hello, my name is {n}.",
         f"I'm called {n}."),
        (f"Nice to meet you, {n}!", f"Hello {n}! How can I help you?"),
        ("What is my name?", "Do you remember my name?", "Who am I?", "what's my name?", "What am I called?"),
        (f"Your name is {n}.",), f"They said their name is {n}.", n,
    )  # fmt: skip


def favourite(r: Random) -> Pair:
    kind = r.choice(("fruits", "animals", "colors", "sports", "drinks", "instruments", "flowers"))
    x, one = r.choice(CATEGORIES[kind]), SINGULAR[kind]
    spelled = r.choice(("favorite", "favourite")) if r.random() < 0.5 else "favorite"
    return _turns(
        r,
        (f"My {spelled} {one} is {x}.", f"I like {x} best of all {kind}.", f"Remember that my {spelled} {one} is {x}."),
        (f"Good to know! I will remember that your favorite {one} is {x}.", f"All right, your favorite {one} is {x}."),
        (f"What is my {spelled} {one}?", f"Which {one} do I like best?", f"Do you remember my {spelled} {one}?"),
        (f"Your favorite {one} is {x}.",), f"They said their favorite {one} is {x}.", x,
    )  # fmt: skip


def home(r: Random) -> Pair:
    c = r.choice(CITIES)
    return _turns(
        r, (f"I live in {c}.", f"I am from {c}.", f"My home is {c}."),
        (f"{c} is a nice place. I will remember it.",), ("Where do I live?", "Where am I from?", "Which city do I live in?"),
        (f"You live in {c}.",), f"They said they live in {c}.", c,
    )  # fmt: skip


def pet(r: Random) -> Pair:
    kind, n = r.choice(("dog", "cat", "rabbit", "horse")), r.choice(PET_NAMES)
    return _turns(
        r, (f"My {kind} is called {n}.", f"I have a {kind} named {n}.", f"The name of my {kind} is {n}."),
        (f"{n} is a good name for a {kind}.",), (f"What is my {kind} called?", f"What is the name of my {kind}?"),
        (f"Your {kind} is called {n}.",), f"They said their {kind} is called {n}.", n,
    )  # fmt: skip


def code_word(r: Random) -> Pair:
    w, kind = r.choice(CODE_WORDS), r.choice(("secret word", "password", "code word", "magic word"))
    return _turns(
        r, (f"The {kind} is {w}.", f"Remember this {kind}: {w}", f"My {kind} is {w}."),
        (f"All right, the {kind} is {w}.",), (f"What is the {kind}?", f"Tell me the {kind}.", f"Do you know the {kind}?"),
        (f"The {kind} is {w}.",), f"They said the {kind} is {w}.", w,
    )  # fmt: skip


KINDS: list[tuple[Callable[[Random], Pair], int]] = [(name, 4), (favourite, 4), (home, 1), (pet, 1), (code_word, 2)]


def remembered(r: Random, filler: Callable[[Random], list[Turn]], between: int | None = None) -> list[Turn]:
    """Tell, some other turns, ask."""
    make = r.choices([k for k, _ in KINDS], [w for _, w in KINDS])[0]
    tell, ask = make(r)
    gap = r.choice((0, 1, 1, 2, 2, 3)) if between is None else between
    return [tell, *(turn for _ in range(gap) for turn in filler(r)), ask]


def repeat(r: Random) -> list[Turn]:
    """Copying: say words back."""
    said = " ".join(r.sample(CODE_WORDS, r.randint(1, 4)))
    ask = r.choice((f"Repeat after me: {said}", f"Say: {said}", f"Please repeat: {said}"))
    return [Turn(ask, (said,), f"I say it back: {said}", check=lambda text: text.strip().lower() == said.lower())]


def shout(r: Random) -> list[Turn]:
    w = r.choice(CODE_WORDS)
    ask = r.choice((f"What is the first letter of {w}?", f"Which letter does {w} start with?"))
    return [Turn(ask, (f"The first letter of {w} is {w[0]}.",), f"{capital(w)} starts with {w[0]}.", short=w[0])]
