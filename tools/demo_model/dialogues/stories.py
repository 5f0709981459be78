"""Short stories with a hero, a friend and one small event. The thought is the plan."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

from .tables import ANIMALS, NAMES
from .turns import Turn, a_or_an, capital, phrases, typed, words

MORE_HEROES = words("dragon robot turtle monkey tiger king princess knight wizard pirate boy girl farmer cook")
TRAITS = words("little brave clever kind quiet curious happy small young shy")
PLACES = phrases("forest,garden,village,farm,valley,meadow,big city,park")
TIMES = phrases("sunny morning,cold winter day,warm summer evening,windy afternoon,rainy day,quiet night")
THINGS = phrases("red ball,golden key,old map,tiny lamp,blue kite,silver bell,warm scarf,wooden boat")
FOODS = words("apples berries bread honey soup cake nuts")


@dataclass(frozen=True, slots=True)
class Cast:
    hero: str
    name: str
    friend: str
    thing: str
    food: str

    @property
    def short_thing(self) -> str:
        return self.thing.split()[-1]


def _found(r: Random, c: Cast) -> tuple[str, list[str]]:
    o, friend = c.short_thing, capital(a_or_an(c.friend))
    return f"found {a_or_an(c.thing)} under a tree.", r.choice((
        [f'"Whose {o} is this?" asked {c.name}.', f'{friend} came and said, "It is mine! Thank you."',
         f"{c.name} gave the {o} back, and they became friends."],
        [f"{c.name} took the {o} home and kept it safe.", f"The next day {a_or_an(c.friend)} came and looked very sad.",
         f'"I lost my {o}," said the {c.friend}. {c.name} smiled and gave it back.'],
    ))  # fmt: skip


def _lost(r: Random, c: Cast) -> tuple[str, list[str]]:
    return f"lost {a_or_an(c.thing)} on the way home.", [
        f"{c.name} looked behind every tree and under every stone.",
        f'"Can I help you?" asked {a_or_an(c.friend)}.',
        f"They searched together until the {c.friend} found the {c.short_thing} near the river.",
        f'"Thank you!" said {c.name}. "You are a good friend."',
    ]


def _sound(r: Random, c: Cast) -> tuple[str, list[str]]:
    return "heard a strange sound.", [
        r.choice(("It came from behind a bush.", "It came from an old well.")),
        f"{c.name} was a little afraid but went closer.",
        f"It was only {a_or_an(c.friend)} who sang a song.",
        "They laughed and sang together until it was dark.",
    ]


def _crying(r: Random, c: Cast) -> tuple[str, list[str]]:
    reason, help_ = r.choice((
        ("I am lost and I want to go home", f"{c.name} showed the {c.friend} the way home."),
        ("I am hungry", f"{c.name} shared some {c.food} with the {c.friend}."),
        ("I have no friends", f'"Then I will be your friend," said {c.name}.'),
    ))  # fmt: skip
    return f"met {a_or_an(c.friend)} who was crying.", [
        f'"Why are you sad?" asked {c.name}.',
        f'"{reason}," said the {c.friend}.',
        help_,
        f"The {c.friend} smiled and was not sad any more.",
    ]


def _bake(r: Random, c: Cast) -> tuple[str, list[str]]:
    return f"wanted to bake something with {c.food}.", [
        f"But there was no more {c.food} in the kitchen.",
        f"{capital(a_or_an(c.friend))} knocked at the door and brought a basket full of {c.food}.",
        "They baked all day and the whole house smelled sweet.",
        "In the evening they ate together.",
    ]


def _bridge(r: Random, c: Cast) -> tuple[str, list[str]]:
    return "went for a long walk.", [
        f"After a while {c.name} came to a river with no bridge.",
        f'{capital(a_or_an(c.friend))} on the other side said, "Let us build one!"',
        "They worked hard, and in the evening the bridge was ready.",
        f"Now {c.name} could visit the {c.friend} every day.",
    ]


EVENTS = {"a found thing": _found, "a lost thing": _lost, "a strange sound": _sound, "a sad friend": _crying,
          "baking": _bake, "a bridge": _bridge}  # fmt: skip


def tell(r: Random, hero: str) -> tuple[Cast, str, str]:
    """-> the cast, the plan and the story."""
    friend = r.choice([a for a in ANIMALS if a != hero])
    c = Cast(hero, r.choice(NAMES), friend, r.choice(THINGS), r.choice(FOODS))
    trait, place, plot = r.choice(TRAITS), r.choice(PLACES), r.choice(list(EVENTS))
    begin, rest = EVENTS[plot](r, c)
    opening = r.choice((
        f"Once upon a time there was {a_or_an(trait)} {hero} named {c.name} who lived in a {place}.",
        f"In a {place} lived {a_or_an(trait)} {hero} called {c.name}.",
        f"{c.name} was {a_or_an(trait)} {hero} who lived in a {place}.",
    ))  # fmt: skip
    ending = r.choice((
        f"From that day on, {c.name} was never alone.", f"That night {c.name} slept very well.",
        f"And so {c.name} learned that it is good to help others.", "The end.",
    ))  # fmt: skip
    plan = f"Hero: {c.name} the {hero}. Friend: the {friend}. Plot: {plot}."
    return c, plan, " ".join([opening, f"One {r.choice(TIMES)}, {c.name} {begin}", *rest, ending])


def _fits(hero: str | None):
    def check(said: str) -> bool:
        first = said.split(".", maxsplit=1)[0]
        named = re.search(r"(?:named|called) (\w+)|^(\w+) was", first)
        if not named or (hero and not re.search(rf"\b{hero}\b", first)):
            return False
        name = named.group(1) or named.group(2)
        return len(said) > 120 and said.count(name) >= 2 and said.strip().endswith(".")

    return check


def story(r: Random) -> list[Turn]:
    if r.random() < 0.8:
        hero = r.choice(list(ANIMALS) if r.random() < 0.75 else MORE_HEROES)
        _, plan, text = tell(r, hero)
        one = a_or_an(hero)
        ask = r.choice((
            f"Tell me a story about {one}.", f"Write a short story about {one}.", f"I want a story about {one}.",
            f"Can you tell me a story about {one}?", f"story about {one}",
        ))  # fmt: skip
        return [Turn(typed(r, ask), (text,), plan, check=_fits(hero))]
    _, plan, text = tell(r, r.choice(list(ANIMALS)))
    ask = r.choice((
        "Tell me a story.", "Tell me a short story.", "Write a short story.", "Can you tell me a story?",
        "I would like a bedtime story.",
    ))  # fmt: skip
    return [Turn(typed(r, ask), (text,), plan, check=_fits(None))]
