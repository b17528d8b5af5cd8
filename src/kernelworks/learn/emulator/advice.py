"""What in a source lets an index leave its array, where the source shows it: the condition, or a count from 1."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernelworks.learn.emulator.request import Fault

__all__ = ["condition_advice", "range_advice"]

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
LINES_ABOVE = 3  # of an access: where its `if` or its loop stands
INDEX, END = r"(?P<index>[A-Za-z_]\w*)", r"(?P<end>[A-Za-z_]\w*)"
# A condition that is met by the index that is one too large, and what it should be.
ONE_TOO_FAR = (
    (re.compile(rf"\b{INDEX}\s*<=\s*{END}\b(?!\s*[-+*/.\[(])"), "<, not <="),
    (re.compile(rf"\b{END}\s*>=\s*{INDEX}\b(?!\s*[-+*/.\[(])"), ">, not >="),
    (re.compile(rf"\b{INDEX}\s*>\s*{END}\s*\)\s*\{{?\s*return\b"), ">=, not >"),
)
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
    return ""
