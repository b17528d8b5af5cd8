"""What g++ says of a CUDA source, in the words of somebody who learns: CUDA's own before those of C++."""

from __future__ import annotations

import re
from collections.abc import Callable

from kernelworks.learn.compiler_words import in_plain_words

__all__ = ["cuda_in_plain_words"]

Q = "[\"'‘’`]"
SHUFFLE = "0xffffffffu names all 32 lanes: {name}_sync(0xffffffffu, ...)"
NAMES = {
    "syncthreads": "it is __syncthreads(), with two _ before it",
    "__syncthreads": "a barrier is called, with ( ): __syncthreads();",
    "inf": "it is INFINITY",
    "nan": "it is NAN",
    "exp": "the exponential of a float is expf(x)",
    "max": "the larger of two floats is fmaxf(a, b), of two integers max(a, b)",
    "min": "the smaller of two floats is fminf(a, b), of two integers min(a, b)",
    "float4": "float4 is a type: make_float4(a, b, c, d) makes one",
    **{name: f"a shuffle or vote says who takes part; {SHUFFLE.format(name=name)}" for name in (
        "__shfl", "__shfl_up", "__shfl_down", "__shfl_xor", "__ballot", "__any", "__all")},
}  # fmt: skip
OF_STD = {
    "exp": "expf",
    "fmax": "fmaxf",
    "fmin": "fminf",
    "max": "fmaxf",
    "min": "fminf",
    "sqrt": "sqrtf",
    "log": "logf",
}


def _parts(match: re.Match[str], code: str) -> str:
    sign, vector = match["sign"], match["vector"]
    names = "xyzw"[: int(vector[-1])]
    parts = ", ".join(f"v.{name} {sign} ..." for name in names)
    return f"a {vector} has no {sign}: its numbers are computed one by one, make_{vector}({parts})"


def _one_for_four(match: re.Match[str], code: str) -> str:
    vector = match["vector"]
    return f"one number is no {vector}: *(const {vector}*)(x + i) reads {vector[-1]} neighbours at once"


def _place_for_four(match: re.Match[str], code: str) -> str:
    vector = match["vector"]
    return f"that is the place of {vector[-1]} numbers; a * before it reads them: *(const {vector}*)(x + i)"


def _address(match: re.Match[str], code: str) -> str:
    return f"{match['name']} takes the place of the number that it changes, with a &: {match['name']}(&counts[v], 1)"


def _two_indices(match: re.Match[str], code: str) -> str:
    found = re.search(r"(\w+)\s*\[\s*([^\],\[]+),\s*([^\]]+)\]", code)
    if found is None:
        return ""
    return f"{found[0]} is {found[1]}[{found[3]}], a whole row: two indices are {found[1]}[{found[2]}][{found[3]}]"


TABLE: tuple[tuple[str, Callable[[re.Match[str], str], str]], ...] = (
    (rf"no match for {Q}operator(?P<sign>[-+*/])=?{Q}.*?(?P<vector>(?:float|int|double)[234])\b", _parts),
    (rf"conversion from {Q}(const )?(float|int|double){Q} to non-scalar type {Q}(?P<vector>\w+[234])", _one_for_four),
    (rf"conversion from {Q}(const )?\w+\s*\*{Q} to non-scalar type {Q}(?P<vector>\w+[234])", _place_for_four),
    (rf"invalid cast from type {Q}(const )?\w+{Q} to type {Q}(const )?(?P<vector>\w+[234])\s*\*", lambda match, code: (
        f"what is cast is a place, ({match['vector']}*)(x + i), and not the number x[i]")),
    (r"no matching function for call to .(?P<name>atomic\w+)\(\w+&", _address),
    (r"invalid operands of types .*\[\d+\]", _two_indices),
    (r"invalid types .*\[\d+\]\}?\[(?:float|double)\]", lambda match, code: "an index is an integer: make it int"),
    (r"no matching function for call to .(?P<name>max|min)\(", lambda match, code: (
        f"{match['name']} takes two numbers of one type, and no array: in a loop, of floats f{match['name']}f(a, b)")),
    (r"variably modified type|shared_array<", lambda match, code: (
        "the length of a __shared__ array is a number that is known when the file is compiled, such as 256 or a "
        "constexpr int")),
    (rf"{Q}(?P<name>\w+){Q} is not a member of {Q}std{Q}", lambda match, code: (
        f"{OF_STD[match['name']]}(...) is known here without an include" if match["name"] in OF_STD else "")),
)  # fmt: skip


def cuda_in_plain_words(said: str, code: str, text: str, line: int) -> str:
    """What a message of g++ about the line ``code`` of the CUDA source ``text``, which is number ``line``, means to a
    learner; empty if it is in no table."""
    undeclared = re.search(rf"{Q}(?P<name>\w+){Q} was not declared in this scope", said)
    if undeclared and undeclared["name"] in NAMES:
        return NAMES[undeclared["name"]]
    for pattern, words in TABLE:
        match = re.search(pattern, said)
        if match and (plain := words(match, code)):
            return plain
    return in_plain_words(said, code, text, line)
