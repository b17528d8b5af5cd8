"""The line of a learner's file that begins the function: is it the one that the check calls?"""

from __future__ import annotations

import re

from kernelworks.learn.exercise import Exercise

__all__ = ["changed_signature", "missing_function"]

WORDS = re.compile(r"\b(const|(?:float|double|int|long|char|bool|\w+_t)(?=\b))|[*\[]")
SAME = {"int64_t": "long", "int32_t": "int"}


def _types(parameters: str) -> list[tuple[str, ...]]:
    """The types of parameters, each as its words in order, without names."""
    found = []
    for parameter in parameters.split(","):
        words = [SAME.get(m[0], m[0]) for m in WORDS.finditer(re.sub(r"\blong int\b", "long", parameter))]
        pointer = "*" if {"*", "["} & set(words) else ""
        plain = sorted(word for word in words if word not in ("*", "["))
        found.append((*(w for w in plain if pointer or w != "const"), pointer))
    return found


def _line_of(text: str, symbol: str) -> tuple[int, str] | None:
    """The line in which the function of that name begins, and its parameters; None if there is none."""
    plain = re.sub(r"//.*", lambda comment: " " * len(comment[0]), text)
    match = re.search(rf"\b\w+\s+{re.escape(symbol)}\s*\(([^)]*)\)\s*\{{", plain)
    return (text[: match.start()].count("\n") + 1, match[1]) if match else None


def changed_signature(exercise: Exercise, text: str) -> tuple[int, str] | None:
    """The line whose parameters are not those that the check hands over, and what it should be; None if they are."""
    begun = _line_of(text, exercise.symbol)
    due = exercise.function.partition("(")[2].rpartition(")")[0]
    if begun is None or _types(begun[1]) == _types(due):
        return None
    return begun[0], f'the check calls it as the starting file has it: extern "C" {exercise.function}'


def missing_function(exercise: Exercise, text: str) -> tuple[int, str]:
    """The line that should begin the function, 0 if there is none, and what is wrong with it."""
    begun = _line_of(text, exercise.symbol)
    if begun:
        return begun[0], f'extern "C" is missing before {exercise.function.partition("(")[0]}'
    others = re.findall(r'extern\s*"C"\s*\w+\s+(\w+)\s*\(', text)
    there = f"; the file has {others[0]}" if others else ""
    return 0, (
        f"there is no function {exercise.symbol}, which the check calls{there}: keep the starting file's line "
        f'extern "C" {exercise.function} {{'
    )
