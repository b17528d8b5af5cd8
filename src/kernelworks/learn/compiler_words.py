"""What g++ says, in the words of somebody who knows Python: a table of its commonest errors and warnings."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable

__all__ = ["in_plain_words", "integer_quotients"]

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
    "ceil",
    "floor",
    "fmod",
    "round",
    "fmax",
    "fmin",
)
OF_ITS_OWN = "a function says its types and stands above the one that calls it: static float f(float v) { return v; }"
NAMES = {
    **{name: f"{name} needs #include <cmath> at the top" for name in MATHEMATICS},
    "print": 'printing is printf("%ld %g\\n", i, y[i]); with #include <cstdio> at the top',
    "printf": "printf needs #include <cstdio> at the top",
    "max": "the larger of two is a > b ? a : b; of an array it is kept in a loop: if (x[i] > largest) largest = x[i];",
    "min": "the smaller of two is a < b ? a : b; of an array it is kept in a loop: if (x[i] < least) least = x[i];",
    "inf": "it is INFINITY, with #include <cmath> at the top",
    "nan": "it is NAN, with #include <cmath> at the top",
    "INFINITY": "INFINITY needs #include <cmath> at the top",
    "NAN": "NAN needs #include <cmath> at the top",
    "sum": "a sum is a variable that grows in a loop: double sum = 0; before it, sum += x[i]; in it",
    "len": "an array does not know its length: a parameter such as n says it",
    "range": "for i in range(n) is for (long i = 0; i < n; ++i) { ... }",
    "enumerate": "a loop has its counter alone: for (long i = 0; i < n; ++i) { ... x[i] ... }",
    "zip": "a loop has its counter alone: for (long i = 0; i < n; ++i) { ... x[i], y[i] ... }",
    "isnan": "x != x is true of NaN alone; std::isnan needs #include <cmath> at the top",
    "elif": "elif is else if (condition) { ... }",
    "def": OF_ITS_OWN,
    "lambda": OF_ITS_OWN,
    "import": "what Python imports is here #include <cmath> (mathematics) or #include <cstdio> (printf) at the top",
    "from": "what Python imports is here #include <cmath> (mathematics) or #include <cstdio> (printf) at the top",
    **{
        name: f"there is no {name} here: arrays are computed one number after the other, in a loop; functions such as "
        "std::exp need #include <cmath> at the top" for name in ("np", "numpy", "math", "torch")
    },
    "True": "it is true, with a small letter",
    "False": "it is false, with a small letter",
    "None": "C++ has no None",
    "pass": "an empty body is { }",
}  # fmt: skip


def _whole_array(code: str, text: str) -> str:
    """The pointer that a line uses without an index, of those that the file declares."""
    pointers = set(re.findall(r"\b(?:float|double|int|long|\w+_t)\s*\*\s*(?:__restrict(?:__)?\s+)?(\w+)", text))
    bare = [m[1] for m in re.finditer(r"(?<![\w*])(\w+)\b(?!\s*[\[(])", code) if m[1] in pointers]
    return bare[0] if bare else "x"


def _operands(match: re.Match[str], code: str, text: str) -> str:
    name = _whole_array(code, text)
    made = re.match(r"(const )?(float|double|int|long)\s+(\w+)\s*=\s*(.*)", code)
    if made and re.search(rf"\b{name}\s*[-+]", made[4]):
        return f"{name} + ... is a place in memory, and takes a *: {made[1] or ''}{made[2]}* {made[3]} = {made[4]}"
    if re.match(rf"{name}\s*[-+*/]=", code):
        return f"{name} is a place in memory: the number that lies there is *{name}, number i from there {name}[i]"
    return f"{name} is a whole array: take one number of it, {name}[i], in a loop"


def _place(match: re.Match[str], code: str, text: str) -> str:
    name = re.match(r"(\w+)\s*[-+*/]?=", code)
    if name is None:
        return "a pointer is a place in memory: *name = ... writes the number that lies there"
    return f"{name[1]} is a place in memory: *{name[1]} = ... writes the first number, {name[1]}[i] = ... number i"


def _outputs(text: str) -> str:
    """The first array that the file's function may write."""
    function = re.search(r'extern\s*"C"[^(]*\(([^)]*)\)', text)
    written = re.findall(r"(?:^|,)(?!\s*const\b)[\w ]+\*\s*(\w+)", function[1]) if function else []
    return written[0] if written else "y"


def _returned(match: re.Match[str], code: str, text: str) -> str:
    name = _outputs(text)
    place = (
        f"*{name} = ...;" if re.search(rf"\*{name}\s*=", text) else f"{name}[i] = ...; or, if it is one, *{name} = ...;"
    )
    return f"void says that nothing is returned: the result is written, {place}"


def _read_only(match: re.Match[str], code: str, text: str) -> str:
    name = re.search(r"(\w+)", match["what"])
    said = f"{name[1] if name else 'it'} is const, it is only read"
    if re.match(r"(if|while)\b", code):
        return f"{said}: == compares, = assigns"
    return f"{said}: the result goes into {_outputs(text)}"


def _made_elsewhere(name: str, text: str, line: int) -> str:
    """Where a name is made that is gone in a later line, and what to do; empty if it is made nowhere before."""
    lines = text.splitlines()[: max(line - 1, 0)]
    made = re.compile(rf"\b(?P<type>float|double|int|long|bool|auto|\w+_t)\b(?P<star>\s*\*?)[^;()]*?\b{name}\b")
    found = [(at, m) for at, code in enumerate(lines, 1) if (m := made.search(code.split("//")[0]))]
    if not found:
        return ""
    at, first = found[-1]
    code = lines[at - 1].split("//")[0].strip()
    above = next((c.strip() for c in reversed(lines[: at - 1]) if c.strip()), "")
    bare = re.compile(r"(for|while|if)\s*\(.*\)")
    if re.match(rf"for\s*\([^;]*\b{name}\b", code):
        if code.endswith(";") and bare.fullmatch(code[:-1].strip()):
            return f"the ; behind the ) of line {at} is the loop's whole body: take it out"
        if "{" not in code:
            return f"without {{ }} the loop of line {at} repeats one statement alone, and {name} is gone behind it"
        return (
            f"{name} is made by the loop of line {at} and gone after its }}: to use it later make it before, "
            f"long {name} = 0; for (; {name} < ..."
        )
    if bare.fullmatch(above):
        return f"without {{ }} the loop above line {at} repeats one statement alone, and {name} is gone behind it"
    return (
        f"{name} is made in line {at}, inside {{ }}, and gone after the }}: make it before the {{, "
        f"{first['type']}{first['star'].strip()} {name} = ...;"
    )


def _undeclared(match: re.Match[str], code: str, text: str, line: int) -> str:
    name = match["name"]
    is_called = re.search(rf"\b{name}\s*\(", code)
    if re.match(rf"for\s*\(\s*{name}\s*=", code):
        return f"a loop makes its counter: for (long {name} = 0; ..."
    elsewhere = "" if is_called else _made_elsewhere(name, text, line)
    if elsewhere or name in NAMES:
        return elsewhere or NAMES[name]
    known = {word for word in re.findall(r"[A-Za-z_]\w*", re.sub(r"//.*", "", text)) if word != name}
    near = [word for word in known if word.lower() == name.lower()]
    near += [word for word in difflib.get_close_matches(name, known, 1, 0.8) if len(name) > 3]
    if near and not re.match(rf"{name}\s*=[^=]", code):
        return f"there is no {name} here: is {near[0]} meant?"
    if is_called:
        return f"there is no function {name} here: is it spelled as where it is made, and does it stand above?"
    return f"there is no {name} here: is it spelled as above? A new variable needs a type, double {name} = 0;"


def _stride(array: str, text: str) -> str:
    """What the file calls the elements from one row of an array to the next."""
    return f"ld{array}" if re.search(rf"\bld{array}\b", text) else "columns"


def _index(match: re.Match[str], code: str, text: str) -> str:
    two = re.search(r"(\w+)\s*\[([^\]]*)\]\s*\[([^\]]*)\]", code)
    if two is None:
        return "only an array takes an index, and this is one number"
    stride = _stride(two[1], text)
    where = "" if stride != "columns" else ", with the number of elements from row to row for columns"
    return f"a pointer has one index: element ({two[2]}, {two[3]}) is {two[1]}[{two[2]} * {stride} + {two[3]}]{where}"


def _hidden(match: re.Match[str], code: str, text: str) -> str:
    name = match["name"].split()[-1]
    return f"a second {name} hides the first: to change the first leave the type out"


def _comma(match: re.Match[str], code: str, text: str) -> str:
    both = re.search(r"(\w+)\s*\[\s*([^\],]+),\s*([^\]]+)\]", code)
    if both is None:
        return "a comma throws away what stands before it"
    return f"{both[0]} is {both[1]}[{both[3]}]: write {both[1]}[{both[2]} * {_stride(both[1], text)} + {both[3]}]"


def _semicolon(match: re.Match[str], code: str, text: str) -> str:
    if re.search(r"=.*\bif\b.*\belse\b", code):
        return "Python's this if condition else that is condition ? this : that"
    if re.match(r"for\b", code) and code.count(";") < 2 + code.endswith(";"):
        return "the three parts of a loop's ( ) are parted by ;: for (long i = 0; i < n; ++i)"
    two_factors = re.search(r"=.*(\b\d[\d.f]*|[\])])\s+[A-Za-z_]\w*\s*[\[(]", code)
    if two_factors and not re.match(r"(for|if|while|else)\b", code):
        return "a product needs its *: 0.5f * x[i]"
    return "a ; is missing, here or at the end of the line before"


def _parenthesis(match: re.Match[str], code: str, text: str) -> str:
    word = re.match(r"(?:\}\s*)?(?:else\s+)?(if|while)\b", code)
    if word:
        return f"{word[1]} needs ( ) and {{ }}: {word[1]} (condition) {{ ... }}"
    return "for and if need ( ) and { }: for (long i = 0; i < n; ++i) { ... }"


def _array_of(match: re.Match[str], code: str, text: str) -> str:
    made = re.search(r"(\w+)\s+(\w+)\s*(?:\[(\w*)\])?\s*=\s*\[?([^\];]*)", code)
    if made is None:
        return "an array is made with its length and its numbers in braces: double sums[4] = {0, 0, 0, 0};"
    numbers = made[4].strip() if "," in made[4] else ""
    length = made[3] or str(numbers.count(",") + 1 if numbers else 4)
    return (
        f"an array is made with its length, and with braces: {made[1]} {made[2]}[{length}] = {{{numbers}}};"
        " (empty braces: all 0)"
    )


def _expected(match: re.Match[str], code: str, text: str) -> str:
    """What else does not belong where it stands, by the line."""
    cast = re.search(r"\b(float|double|long|int)\s+(\w+(?:\[[^\]]*\])?)", code)
    if cast and re.search(rf"before {Q}(float|double|long|int){Q}", match[0]):
        return f"a conversion takes ( ): {cast[1]}({cast[2]})"
    if re.search(r"=\s*\[", code):
        return _array_of(match, code, text)
    if ":=" in code:
        return "a variable is made with its type and =: float v = x[i];"
    if re.search(r":\s*(//.*)?$|\belse\s*:", code):
        return "no : begins a body: it stands in { }"
    if re.search(rf"before {Q}}}{Q}", match[0]):
        return "something is missing before this }: a { or the end of a statement"
    return ""


def _called(match: re.Match[str], code: str, text: str) -> str:
    name = match["name"]
    return f"( ) calls a function: an index is {name}[i], a product {name} * ( ... )"


def _no_effect(match: re.Match[str], code: str, text: str) -> str:
    if re.match(r"[^=(]*==", code):
        return "== compares and keeps nothing: = assigns"
    return "this computes something and keeps it nowhere"


def _star(match: re.Match[str], code: str, text: str) -> str:
    if "**" in code:
        return "there is no **: x * x, or std::pow(x, y) with #include <cmath> at the top"
    return "* before a name is the number at a place in memory, and this is a number already: leave the * out"


def _pointer_of(match: re.Match[str], code: str, text: str) -> str:
    name = re.match(r"(\w+)\s*=\s*&\s*(\w+)", code)
    if name:
        return f"*{name[1]} = {name[2]}; writes the number; {name[1]} = ... would only look at another place"
    return "these two are places of numbers of different types: write the numbers, *a = b, or a[i] = b[i]"


def _of_library(match: re.Match[str], code: str, text: str) -> str:
    name = match["name"]
    header = "<cmath>" if name in MATHEMATICS else "<vector>" if name == "vector" else "<algorithm>"
    return f"std::{name} needs #include {header} at the top"


def _outside(match: re.Match[str], code: str, text: str) -> str:
    first = re.match(r"\w+", code)
    if first and first[0] in NAMES:
        return NAMES[first[0]]
    if code.startswith("}"):
        return "a } too many: every } ends the body of one {"
    return "this stands outside of every function: is there a } too many above it?"


def _said(words: str) -> Callable[[re.Match[str], str, str], str]:
    return lambda match, code, text: words


TABLE: tuple[tuple[str, Callable[[re.Match[str], str, str], str]], ...] = (
    (rf"invalid operands of types .* to binary {Q}operator(%|\^){Q}", _said(
        "% and ^ are for integers; of floats the rest is std::fmod(x, y), the power std::pow(x, y), of <cmath>")),
    (r"invalid operands of types .*\*.* to binary", _operands),
    (rf"cannot convert {Q}{NUMBER}{Q} to {Q}{NUMBER}\*{Q} in (assignment|init)", _place),
    (rf"cannot convert {Q}(const )?{NUMBER}\*{Q} to {Q}{NUMBER}{Q}", _operands),
    (rf"cannot convert {Q}(const )?{NUMBER}\*{Q} to {Q}{NUMBER}\*{Q}", _pointer_of),
    (r"(assignment|increment|decrement) of read-only (location|variable|parameter|reference) (?P<what>.*)", _read_only),
    (r"lvalue required", _said("left of = stands a variable or an element, y[i]; == compares")),
    (r"return-statement with a value", _returned),
    (rf"{Q}int{Q} to {Q}const char\*{Q}", _said("text takes double quotes: \"%g\\n\"; single ones make one character")),
    (rf"{Q}const (?P<type>\w+)\*{Q} to {Q}\w+\*{Q}", _said("that array is only read: it needs const float*")),
    (rf"invalid types {Q}[\w ]+\[[\w ]+\]{Q} for array subscript", _index),
    (rf"declaration of {Q}(?P<name>[\w *]+?)( ?\[\w*\])?{Q} shadows", _hidden),
    (rf"(redeclaration of|conflicting declaration) {Q}(?P<name>[\w *]+?){Q}", _said(
        "a name is made once: leave the type out the second time")),
    (rf"expected {Q}(,{Q} or {Q})?;{Q}", _semicolon),
    (rf"expected {Q}}}{Q} at end of input", _said("a } is missing: every { needs its }")),
    (rf"expected {Q}\){Q}", _said("a ) is missing, or too many stand before it")),
    (rf"expected {Q}\({Q} before", _parenthesis),
    (r"brace-enclosed initializer", _array_of),
    (r"expected (primary-expression|identifier|initializer).*", lambda match, code, text: _expected(match, code, text)),
    (rf"expected {Q}\]{Q}", _said("a ] is missing")),
    (rf"expected (declaration|unqualified-id|constructor)|{Q}\w+{Q} does not name a type", _outside),
    (rf"{Q}(?P<name>\w+){Q} cannot be used as a function", _called),
    (r"function-definition is not allowed here", _said("a function stands outside of every other: move it above")),
    (rf"{Q}else{Q} without a previous {Q}if{Q}", _said(
        "else stands right behind the body of its if: if (condition) { ... } else { ... }")),
    (r"invalid preprocessing directive", _said("a comment begins with //; a # is for #include")),
    (r"invalid type argument of unary", _star),
    (r"unable to find numeric literal operator", _said("a product needs its *: 2 * x, 0.5f * y")),
    (r"missing terminating", _said('a text begins and ends with " in one line')),
    (r"stray |extended character|not valid in an identifier", _said(
        "a character that C++ does not know, perhaps pasted: type this line anew, with - and \" of the keyboard")),
    (r"No such file or directory", _said("there is no such header: <cmath> has mathematics, <cstdio> printf")),
    (r"too (few|many) arguments to function", _said("the function that is called takes another number of values")),
    (rf"to {Q}(int|long|long int|short|char|unsigned int|int\w+_t){Q} may change value", _said(
        "an integer loses the fraction: make it float or double")),
    (rf"this {Q}(for|while|if){Q} clause does not guard|suggest braces around empty body", _said(
        "the ; behind the ) is its whole body: take it out, and put what is to be repeated in { }")),
    (r"comparisons like", _said("two comparisons are joined by &&: 0 <= i && i < n")),
    (r"comma (expression in array subscript|operator has no effect)|left operand of comma", _comma),
    (rf"{Q}(?P<name>\w+){Q} (may be|is) used uninitialized", lambda match, code, text: (
        f"{match['name']} is used before it was set: give it a value where it is made, = 0 (an array: = {{}})")),
    (rf"{Q}(?P<name>\w+){Q} is not a member of {Q}std{Q}", _of_library),
    (rf"has no member named {Q}(append|extend|add){Q}", _said(
        "a std::vector is made with its length, std::vector<float> scores(n);, and written by scores[i] = ...;")),
    (rf"unused (parameter|variable) {Q}(?P<name>\w+){Q}|{Q}.*\b(?P<unused>\w+)\(.*{Q} defined but not used",
     lambda match, code, text: f"{match['name'] or match['unused']} is never used"),
    (rf"variable {Q}(?P<name>\w+){Q} set but not used", lambda match, code, text: (
        f"{match['name']} is computed, and never used")),
    (r"suggest parentheses around assignment", _said("= assigns; == compares")),
    (r"increment expression has no effect", _said("this changes no counter: ++i adds 1, i += 4 adds 4")),
    (r"statement has no effect|value computed is not used", _no_effect),
)  # fmt: skip
UNDECLARED_NAME = re.compile(rf"{Q}(?P<name>\w+){Q} was not declared in this scope")


def in_plain_words(said: str, code: str, text: str, line: int = 0) -> str:
    """What a message of g++ about the line ``code`` of the file ``text``, which is number ``line``, means to a learner;
    empty if it is in no table."""
    undeclared = UNDECLARED_NAME.search(said)
    if undeclared:
        return _undeclared(undeclared, code, text, line)
    before = code.partition("//")[0]
    if said.startswith("expected") and "//" in code and before.count("(") > before.count(")"):
        return "// begins a comment; the quotient of two integers is rounded down already: n / 4"
    for pattern, words in TABLE:
        match = re.search(pattern, said)
        if match:
            return words(match, code, text)
    return ""


def integer_quotients(text: str) -> list[tuple[int, str]]:
    """The lines that divide one whole number by another with a rest, which g++ says nothing of, and what comes out."""
    found = []
    for number, code in enumerate(text.splitlines(), 1):
        for match in re.finditer(r"(?<![\w.])(\d+)\s*/\s*(\d+)(?![\w.])", code.partition("//")[0]):
            above, below = int(match[1]), int(match[2])
            if below and above % below:
                found.append((number, f"{match[0]} of two integers is {above // below}: write {above}.0f / {below}"))
        for match in re.finditer(r"(?<![\w.])1\s*/\s*([A-Za-z_]\w*)\b(?!\s*[\w\[(.])", code.partition("//")[0]):
            if re.search(rf"\b(long|int)\s+(\w+\s*(=[^,;]*)?,\s*)*{match[1]}\b", text):
                said = f"{match[0]} of two integers is 0 above {match[1]} = 1: write 1.0f / {match[1]}"
                found.append((number, said))
    return found
