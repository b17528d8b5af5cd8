"""What in a source lets an index leave its array, where the source shows it: the condition, or a count from 1."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernelworks.learn.emulator.request import Fault

__all__ = ["condition_advice", "guarded_advice", "indexed_name", "range_advice"]

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
LINES_ABOVE = 3  # of an access: where its `if` or its loop stands
INDEX, END = r"(?P<index>(?:threadIdx\.|blockIdx\.)?[A-Za-z_]\w*)", r"(?P<end>[A-Za-z_]\w*)"
# A condition that is met by the index that is one too large, and what it should be.
ONE_TOO_FAR = (
    (re.compile(rf"\b{INDEX}\s*<=\s*{END}\b(?!\s*[-+*/.\[(])"), "<, not <="),
    (re.compile(rf"\b{END}\s*>=\s*{INDEX}\b(?!\s*[-+*/.\[(])"), ">, not >="),
    (re.compile(rf"\b{INDEX}\s*>\s*{END}\s*\)\s*\{{?\s*return\b"), ">=, not >"),
)
# A condition of the line itself, or one that the line before opens.
CONDITION = re.compile(r"\bif\s*\(|\?|\bwhile\s*\(|\bfor\s*\([^;]*;[^;]*[<>]")
OPENS = re.compile(r"\b(if|for|while)\s*\(.*\)\s*\{?\s*$")
CAST = re.compile(r"\(\s*(?:const\s+)?(?P<vector>(?:float|int|double)[234])\s*\*\s*\)\s*(?P<array>\w+)\s*\)?\s*[+\[]")
FROM_ONE = re.compile(r"\b(?P<word>(?P<what>block|thread)Idx\.[xyz])\s*-\s*1(?![\w.])")


def _without_comments(text: str) -> str:
    return COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def condition_advice(lines: Sequence[str]) -> str:
    """Which of the last lines lets an index through that is one too large, and what it should say; empty if none."""
    for line in reversed(lines[-1 - LINES_ABOVE :]):
        for pattern, better in ONE_TOO_FAR:
            match = pattern.search(line)
            if match:
                return f"lets {match['index']} = {match['end']} through: {better}"
    return ""


def _wide_advice(fault: Fault, line: str) -> str:
    """What of an access to several elements at once goes wrong."""
    cast = CAST.search(line)
    if cast:
        vector, array = cast["vector"], cast["array"]
        return (
            f"Behind the cast an index counts {vector}s: i stands for {array}[{vector[-1]} * i]. What begins at "
            f"{array}[i] is *({vector}*)({array} + i)"
        )
    last = fault.elements - 1
    return f"All {fault.elements} elements have to lie in the array: the last one is at i + {last}"


def guarded_advice(fault: Fault, text: str) -> str:
    """For an index that leaves its array in spite of a condition; empty if there is none."""
    lines = _without_comments(text).splitlines()[: fault.second.line]
    here, above = lines[-1] if lines else "", lines[-2] if len(lines) > 1 else ""
    if fault.shared or not (CONDITION.search(here) or (CONDITION.search(above) and OPENS.search(above))):
        return ""
    return (
        "The condition there lets this thread through: does it ask for all that the index is made of, and is the index "
        "the one that is meant?"
    )


def indexed_name(fault: Fault, text: str) -> str:
    """The array whose index a fault is about, as its line names it, whose column is ``value``; empty if none."""
    lines = text.splitlines()
    code = lines[fault.second.line - 1] if 0 < fault.second.line <= len(lines) else ""
    depth = 0
    for at in range(min(fault.value, len(code)) - 1, -1, -1):
        depth += {"]": 1, "[": -1}.get(code[at], 0)
        if code[at] == "[" and depth <= 0:
            name = re.search(r"([A-Za-z_]\w*)\s*(?:\[[^\[\]]*\]\s*)*$", code[:at])
            return name[1] if name else ""
    return ""


def range_advice(fault: Fault, text: str) -> str:
    """Why an index is outside, in a sentence; empty where no line of the source shows it."""
    code = _without_comments(text)
    if fault.kind == "out_of_bounds" and fault.index == fault.length > 0:
        found = condition_advice(code.splitlines()[: fault.second.line])
        if found:
            return f"The condition {found}"
    if fault.kind == "wild" or fault.index < 0:
        match = FROM_ONE.search(code)
        if match:
            return f"{match['what'].title()}s count from 0: in the first one {match['word']} - 1 is -1"
    if fault.kind == "out_of_bounds":
        lines = code.splitlines()[: fault.second.line]
        if fault.elements > 1 and lines:
            return _wide_advice(fault, lines[-1])
    return ""
