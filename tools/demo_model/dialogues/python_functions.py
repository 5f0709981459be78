"""Small Python functions. A template's names vary, so an answer is right when it is any variant of the asked function."""

from __future__ import annotations

import itertools
import re
from random import Random

from .turns import Turn, typed

CHOICES = {"X": ("x", "n", "value"), "L": ("items", "values", "numbers"), "S": ("text", "s"), "A": ("a", "x")}
SECOND = {"a": "b", "x": "y"}

# description: code, where X L S A (and B, which follows A) are names to be chosen
FUNCTIONS = {
    "adds two numbers": "def add(A, B):\n    return A + B",
    "subtracts two numbers": "def subtract(A, B):\n    return A - B",
    "multiplies two numbers": "def multiply(A, B):\n    return A * B",
    "divides two numbers": 'def divide(A, B):\n    if B == 0:\n        raise ValueError("division by zero")\n'
    "    return A / B",
    "squares a number": "def square(X):\n    return X * X",
    "doubles a number": "def double(X):\n    return X * 2",
    "checks if a number is even": "def is_even(X):\n    return X % 2 == 0",
    "checks if a number is odd": "def is_odd(X):\n    return X % 2 == 1",
    "checks if a number is positive": "def is_positive(X):\n    return X > 0",
    "returns the larger of two numbers": "def larger(A, B):\n    if A > B:\n        return A\n    return B",
    "returns the absolute value of a number": "def absolute(X):\n    if X < 0:\n        return -X\n    return X",
    "computes the factorial of a number": "def factorial(X):\n    result = 1\n    for i in range(2, X + 1):\n"
    "        result *= i\n    return result",
    "computes Fibonacci numbers": "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n"
    "    return a",
    "checks if a number is prime": "def is_prime(X):\n    if X < 2:\n        return False\n"
    "    for i in range(2, int(X ** 0.5) + 1):\n        if X % i == 0:\n            return False\n    return True",
    "reverses a string": "def reverse(S):\n    return S[::-1]",
    "checks if a string is a palindrome": "def is_palindrome(S):\n    S = S.lower()\n    return S == S[::-1]",
    "counts the vowels in a string": 'def count_vowels(S):\n    return sum(1 for c in S.lower() if c in "aeiou")',
    "counts the words in a text": "def count_words(S):\n    return len(S.split())",
    "makes a string upper case": "def shout(S):\n    return S.upper()",
    "sums a list": "def total(L):\n    result = 0\n    for item in L:\n        result += item\n    return result",
    "finds the largest number in a list": "def largest(L):\n    best = L[0]\n    for item in L:\n        if item > best:\n"
    "            best = item\n    return best",
    "finds the smallest number in a list": "def smallest(L):\n    best = L[0]\n    for item in L:\n"
    "        if item < best:\n            best = item\n    return best",
    "computes the average of a list": "def average(L):\n    return sum(L) / len(L)",
    "counts the items of a list": "def count(L):\n    return len(L)",
    "removes duplicates from a list": "def unique(L):\n    result = []\n    for item in L:\n"
    "        if item not in result:\n            result.append(item)\n    return result",
    "reverses a list": "def reverse_list(L):\n    return L[::-1]",
    "sorts a list": "def sort_list(L):\n    return sorted(L)",
    "keeps only the even numbers of a list": "def evens(L):\n    return [item for item in L if item % 2 == 0]",
    "flattens a list of lists": "def flatten(L):\n    return [item for part in L for item in part]",
    "counts how often each word occurs": "def word_counts(S):\n    counts = {}\n    for word in S.split():\n"
    "        counts[word] = counts.get(word, 0) + 1\n    return counts",
    "reads a file": "def read_file(path):\n    with open(path) as f:\n        return f.read()",
    "writes text to a file": 'def write_file(path, text):\n    with open(path, "w") as f:\n        f.write(text)',
    "says hello": 'def hello(name):\n    print("Hello, " + name + "!")',
    "prints the numbers from 1 to n": "def count_up(n):\n    for i in range(1, n + 1):\n        print(i)",
    "plays FizzBuzz": 'def fizzbuzz(n):\n    for i in range(1, n + 1):\n        if i % 15 == 0:\n'
    '            print("FizzBuzz")\n        elif i % 3 == 0:\n            print("Fizz")\n        elif i % 5 == 0:\n'
    '            print("Buzz")\n        else:\n            print(i)',
    "does a binary search": "def binary_search(L, target):\n    low, high = 0, len(L) - 1\n    while low <= high:\n"
    "        mid = (low + high) // 2\n        if L[mid] == target:\n            return mid\n"
    "        if L[mid] < target:\n            low = mid + 1\n        else:\n            high = mid - 1\n    return -1",
    "converts Celsius to Fahrenheit": "def to_fahrenheit(celsius):\n    return celsius * 9 / 5 + 32",
    "computes the greatest common divisor": "def gcd(A, B):\n    while B:\n        A, B = B, A % B\n    return A",
}  # fmt: skip

WRAPPERS = ("Here is a function that {what}:\n\n```python\n{code}\n```", "```python\n{code}\n```")


def variants(template: str) -> list[str]:
    used = [letter for letter in CHOICES if re.search(rf"\b{letter}\b", template)]
    found = []
    for names in itertools.product(*(CHOICES[letter] for letter in used)):
        code = template
        for letter, name in zip(used, names, strict=True):
            code = re.sub(rf"\b{letter}\b", name, code)
            if letter == "A":
                code = re.sub(r"\bB\b", SECOND[name], code)
        found.append(code)
    return found


def python_function(r: Random) -> list[Turn]:
    what, template = r.choice(list(FUNCTIONS.items()))
    accepted = variants(template)
    name = re.match(r"def (\w+)", template).group(1)

    def check(said: str) -> bool:
        block = re.search(r"```python\n(.*?)\n```", said, re.S)
        return bool(block) and block.group(1) in accepted

    ask = r.choice((
        f"Write a Python function that {what}.", f"Can you write a function that {what}?",
        f"Show me Python code that {what}.", f"I need a Python function that {what}.",
        f"Give me a function that {what}.", f"How do I write a function that {what} in Python?",
        f"Write a function that {what}.",
    ))  # fmt: skip
    answer = r.choice(WRAPPERS).format(what=what, code=r.choice(accepted))
    return [Turn(typed(r, ask), (answer,), f"A function {name} that {what}.", check=check)]
