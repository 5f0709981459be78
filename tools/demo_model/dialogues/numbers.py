"""Sums, word problems, counting and lists. With thinking on, the thought holds the steps."""

from __future__ import annotations

import re
from random import Random

from .tables import CATEGORIES, NAMES
from .turns import Turn, capital, in_words, typed, words

SMALL, LARGE, TABLE = 20, 99, 10
"""Operands up to SMALL with or without a thought, up to LARGE with one; products up to TABLE x TABLE."""


def steps(a: int, op: str, b: int) -> str:
    """How a sum is worked out: ones and tens apart, subtraction tens first."""
    if op == "*":
        return f"{a} * {b} = {a * b}."
    if op == "+":
        if (a < 10 and b < 10) or a + b <= 10:
            return f"{a} + {b} = {a + b}."
        ones, tens = a % 10 + b % 10, a // 10 * 10 + b // 10 * 10
        parts = [f"{a % 10} + {b % 10} = {ones}"]
        if a >= 10 and b >= 10:
            parts.append(f"{a // 10 * 10} + {b // 10 * 10} = {tens}")
        return ", ".join([*parts, f"{tens} + {ones} = {a + b}"]) + "."
    if b < 10 or b % 10 == 0 or a < 20:
        return f"{a} - {b} = {a - b}."
    rest = a - b // 10 * 10
    return f"{a} - {b // 10 * 10} = {rest}, {rest} - {b % 10} = {a - b}."


WORD_OF = {"+": "plus", "-": "minus", "*": "times"}


def _asked(r: Random, a: int, op: str, b: int) -> str:
    w = WORD_OF[op]
    return typed(r, r.choice((
        f"What is {a} {op} {b}?", f"What is {a} {w} {b}?", f"{a} {op} {b}", f"{a} {op} {b} = ?",
        f"Calculate {a} {op} {b}.", f"How much is {a} {w} {b}?", f"{a}{op}{b}",
    )))  # fmt: skip


def _turn(r: Random, a: int, op: str, b: int) -> list[Turn]:
    value = {"+": a + b, "-": a - b, "*": a * b}[op]
    return [Turn(_asked(r, a, op, b), (f"{a} {op} {b} = {value}.",), steps(a, op, b), short=str(value))]


def small_sum(r: Random) -> list[Turn]:
    op = r.choice("+-*+-")
    limit = TABLE if op == "*" else SMALL
    a, b = r.randint(0, limit), r.randint(0, limit)
    if op == "-" and b > a:
        a, b = b, a
    return _turn(r, a, op, b)


def large_sum(r: Random) -> list[Turn]:
    op = r.choice("+-")
    a, b = r.randint(10, LARGE), r.randint(5, LARGE)
    if op == "-" and b > a:
        a, b = b, a
    return _turn(r, a, op, b)


def word_problem(r: Random) -> list[Turn]:
    name = r.choice(NAMES)
    things = r.choice(words("apples books coins stones cards flowers eggs pens"))
    a, b = r.randint(2, SMALL), r.randint(1, 12)
    if r.random() < 0.5:
        ask = f"{name} has {a} {things} and {r.choice(('buys', 'finds', 'gets'))} {b} more. "
        ask += f"How many {things} does {name} have now?"
        answer = f"{a} + {b} = {a + b}, so {name} has {a + b} {things}."
        return [Turn(ask, (answer,), steps(a, "+", b), short=str(a + b))]
    if b > a:
        a, b = b, a
    ask = f"{name} has {a} {things} and {r.choice(('loses', 'gives away', 'sells'))} {b}. How many {things} are left?"
    answer = f"{a} - {b} = {a - b}, so {a - b} {things} are left."
    return [Turn(ask, (answer,), steps(a, "-", b), short=str(a - b))]


def counting(r: Random) -> list[Turn]:
    n, kind = r.randint(0, 99), r.randrange(7)
    if kind == 0:
        ask = r.choice((f"What number comes after {n}?", f"Which number follows {n}?"))
        return [Turn(ask, (f"{n + 1} comes after {n}.",), f"{n} + 1 = {n + 1}.", short=str(n + 1))]
    if kind == 1:
        ask = f"What number comes before {n + 1}?"
        return [Turn(ask, (f"{n} comes before {n + 1}.",), f"{n + 1} - 1 = {n}.", short=str(n))]
    if kind == 2:
        parity = "odd" if n % 2 else "even"
        ask = r.choice((f"Is {n} even or odd?", f"Is the number {n} even or odd?"))
        return [Turn(ask, (f"{n} is {parity}.",), f"{n} ends in {n % 10}: {parity}.", short=capital(parity))]
    if kind == 3:
        other = r.choice([m for m in range(100) if m != n])
        big, small = max(n, other), min(n, other)
        ask = r.choice((f"Which is bigger, {n} or {other}?", f"Which number is larger, {n} or {other}?"))
        return [Turn(ask, (f"{big} is bigger than {small}.",), f"{big} > {small}.", short=str(big))]
    if kind == 4:
        ask = r.choice((f"Write {n} in words.", f"How do you write {n} in words?", f"Spell the number {n}."))
        return [Turn(ask, (f"{n} in words is {in_words(n)}.",), f"{n}: {in_words(n)}.")]
    if kind == 5:
        first = r.randint(0, 30)
        last = first + r.randint(3, 10)
        ask = r.choice((f"Count from {first} to {last}.", f"Please count from {first} to {last}."))
        return [Turn(ask, (", ".join(map(str, range(first, last + 1))) + ".",), f"Start at {first}, stop at {last}.")]
    n = n // 2 + 1
    ask = r.choice((f"What is double {n}?", f"Double {n}."))
    return [Turn(ask, (f"Double {n} is {2 * n}.",), steps(n, "+", n), short=str(2 * n))]


def listing(r: Random) -> list[Turn]:
    """Items are said in the fixed order of the category from any start, so the next one is always known."""
    kind = r.choice(list(CATEGORIES))
    members = CATEGORIES[kind]
    count, start = r.randint(2, min(6, len(members) - 1)), r.randrange(len(members))
    items = [members[(start + i) % len(members)] for i in range(count)]
    size = in_words(count) if r.random() < 0.7 else str(count)
    ask = r.choice((
        f"Name {size} {kind}.", f"List {size} {kind}.", f"Give me {size} {kind}.", f"Can you name {size} {kind}?",
        f"Tell me {size} {kind}.",
    ))  # fmt: skip
    answer = "\n".join(f"{i + 1}. {item}" for i, item in enumerate(items))

    def check(said: str) -> bool:
        numbered = re.findall(r"^(\d+)\. (\S+)$", said.strip(), re.M)
        found = [item for _, item in numbered]
        in_order = [int(n) for n, _ in numbered] == list(range(1, count + 1))
        return in_order and len(set(found)) == count and set(found) <= set(members)

    return [
        Turn(typed(r, ask), (answer,), f"{capital(in_words(count))} {kind}, numbered from 1 to {count}.", check=check)
    ]
