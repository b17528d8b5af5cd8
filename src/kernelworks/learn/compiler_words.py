"""What g++ says, in the words of somebody who knows Python: a table of its commonest errors and warnings."""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["in_plain_words"]

Q = "[\"'‘’`]"  # around what g++ quotes: that depends on the language of the terminal
NUMBER = r"(float|double|int|long int)"
MATHEMATICS = (
    "exp",
    "sqrt",
    "tanh",
    "pow",
    "log",
    "sin",
    "cos",
    "erf",
    "fabs",
    "abs",
    "floor",
    "round",
    "fmax",
    "fmin",
)
NAMES = {
    **{name: f"{name} needs #include <cmath> at the top" for name in MATHEMATICS},
    "print": 'printing is printf("%ld %g\\n", i, y[i]); with #include <cstdio> at the top',
    "printf": "printf needs #include <cstdio> at the top",
    "max": "the larger of two is a > b ? a : b",
    "min": "the smaller of two is a < b ? a : b",
    "len": "an array does not know its length: a parameter such as n says it",
    "range": "for i in range(n) is for (long i = 0; i < n; ++i) { ... }",
    "True": "it is true, with a small letter",
    "False": "it is false, with a small letter",
    "None": "C++ has no None",
    "pass": "an empty body is { }",
}


def _whole_array(code: str, text: str) -> str:
    """The pointer that a line uses without an index, of those that the file declares."""
    pointers = set(re.findall(r"\*\s*(\w+)\s*[,)=;]", text))
    bare = [m[1] for m in re.finditer(r"(?<![\w*])(\w+)\b(?!\s*[\[(])", code) if m[1] in pointers]
    return bare[0] if bare else "x"


def _operands(match: re.Match[str], code: str, text: str) -> str:
    name = _whole_array(code, text)
    return f"{name} is a whole array: take one number of it, {name}[i], in a loop"


def _place(match: re.Match[str], code: str, text: str) -> str:
    name = re.match(r"(\w+)\s*[-+*/]?=", code)
    if name is None:
        return "a pointer is a place in memory: *name = ... writes the number that lies there"
    return f"{name[1]} is a place in memory: *{name[1]} = ... writes the first number, {name[1]}[i] = ... number i"


def _read_only(match: re.Match[str], code: str, text: str) -> str:
    name = re.search(r"(\w+)", match["what"])
    return f"{name[1] if name else 'it'} is const, it is only read. Within if: == compares, = assigns"


def _undeclared(match: re.Match[str], code: str, text: str) -> str:
    name = match["name"]
    if name in NAMES:
        return NAMES[name]
    if re.match(rf"for\s*\(\s*{name}\s*=", code):
        return f"a loop makes its counter: for (long {name} = 0; ..."
    if re.search(rf"\b{name}\s*\(", code):
        return f"there is no function {name} here: is it spelled as where it is made, and does it stand above?"
    return f"there is no {name} here: is it spelled as above? A new variable needs a type, double {name} = 0;"


def _index(match: re.Match[str], code: str, text: str) -> str:
    two = re.search(r"(\w+)\s*\[([^\]]*)\]\s*\[([^\]]*)\]", code)
    if two is None:
        return "only an array takes an index, and this is one number"
    return (
        f"a pointer has one index: element ({two[2]}, {two[3]}) is {two[1]}[{two[2]} * columns + {two[3]}], with the "
        "number of elements from row to row for columns"
    )


def _hidden(match: re.Match[str], code: str, text: str) -> str:
    name = match["name"].split()[-1]
    return f"a second {name} hides the first: to change the first leave the type out"


def _comma(match: re.Match[str], code: str, text: str) -> str:
    both = re.search(r"(\w+)\s*\[\s*([^\],]+),\s*([^\]]+)\]", code)
    if both is None:
        return "a comma throws away what stands before it"
    return f"{both[0]} is {both[1]}[{both[3]}]: write {both[1]}[{both[2]} * columns + {both[3]}]"


def _said(words: str) -> Callable[[re.Match[str], str, str], str]:
    return lambda match, code, text: words


TABLE: tuple[tuple[str, Callable[[re.Match[str], str, str], str]], ...] = (
    (r"invalid operands of types .*\*.* to binary", _operands),
    (rf"cannot convert {Q}{NUMBER}{Q} to {Q}{NUMBER}\*{Q} in (assignment|init)", _place),
    (rf"cannot convert {Q}(const )?{NUMBER}\*{Q} to {Q}{NUMBER}{Q}", _operands),
    (r"assignment of read-only (location|variable|parameter|reference) (?P<what>.*)", _read_only),
    (rf"{Q}int{Q} to {Q}const char\*{Q}", _said("text takes double quotes: \"%g\\n\"; single ones make one character")),
    (rf"{Q}(?P<name>\w+){Q} was not declared in this scope", _undeclared),
    (rf"{Q}const (?P<type>\w+)\*{Q} to {Q}\w+\*{Q}", _said("that array is only read: it needs const float*")),
    (rf"invalid types {Q}[\w ]+\[[\w ]+\]{Q} for array subscript", _index),
    (rf"declaration of {Q}(?P<name>[\w *]+?)( ?\[\w*\])?{Q} shadows", _hidden),
    (rf"redeclaration of {Q}(?P<name>[\w *]+?){Q}", _said("a name is made once: leave the type out the second time")),
    (rf"expected {Q}(,{Q} or {Q})?;{Q}", _said("a ; is missing, here or at the end of the line before")),
    (rf"expected {Q}}}{Q} at end of input", _said("a } is missing: every { needs its }")),
    (rf"expected {Q}\){Q}", _said("a ) is missing, or too many stand before it")),
    (rf"to {Q}(int|long|long int|short|char|unsigned int|int\w+_t){Q} may change value", _said(
        "an integer loses the fraction: make it float or double")),
    (rf"this {Q}(for|while|if){Q} clause does not guard|suggest braces around empty body", _said(
        "the ; behind the ) is its whole body: take it out, and put what is to be repeated in { }")),
    (r"comparisons like", _said("two comparisons are joined by &&: 0 <= i && i < n")),
    (r"comma (expression in array subscript|operator has no effect)|left operand of comma", _comma),
    (rf"{Q}(?P<name>\w+){Q} (may be|is) used uninitialized", lambda match, code, text: (
        f"{match['name']} is used before it was set: give it a value where it is made, = 0 (an array: = {{}})")),
    (rf"{Q}(?P<name>\w+){Q} is not a member of {Q}std{Q}", lambda match, code, text: (
        f"std::{match['name']} needs its #include at the top, such as <vector>, <cmath> or <algorithm>")),
    (rf"expected {Q}\({Q} before", _said("for and if need ( ) and { }: for (long i = 0; i < n; ++i) { ... }")),
    (rf"unused (parameter|variable) {Q}(?P<name>\w+){Q}", lambda match, code, text: f"{match['name']} is never used"),
    (r"suggest parentheses around assignment", _said("= assigns; == compares")),
    (r"statement has no effect", _said("this computes something and keeps it nowhere")),
)  # fmt: skip


def in_plain_words(said: str, code: str, text: str) -> str:
    """What a message of g++ about the line ``code`` of the file ``text`` means to a learner; empty if it is in no
    table."""
    for pattern, words in TABLE:
        match = re.search(pattern, said)
        if match:
            return words(match, code, text)
    return ""
