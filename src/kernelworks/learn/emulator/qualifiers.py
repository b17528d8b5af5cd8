"""Which functions of a CUDA source are a kernel's, and what nvcc refuses of them.

g++ sees nothing of ``__global__`` and ``__device__``, so a source that lacks one runs in the emulator. nvcc refuses:

| source | sentence |
|---|---|
| a launch of a function without ``__global__`` | NAME is launched with <<< >>>, but lacks __global__ |
| a call of a kernel like a function | NAME is called without <<<blocks, threads>>> |
| a kernel's call of a function without ``__device__`` | NAME is called from the kernel K, but lacks __device__ |
| host code's call of a ``__device__`` function | NAME is called from host code (F), but is __device__ |

Only functions that the source itself declares are looked at, and no members of classes. nvcc refuses a ``constexpr``
function in a kernel too, unless it is ``__device__``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["refusals"]

ATTRIBUTE = re.compile(r"__launch_bounds__\s*\([^()]*\)|__attribute__\s*\(\([^()]*(?:\([^()]*\))?[^()]*\)\)")
OUTSIDE = re.compile(r"^\s*(?:inline\s+)?(?:namespace\b[^()]*|extern\s*)$")  # `extern "C"`: its string is blank here
NAME_BEFORE = re.compile(r"([A-Za-z_]\w*)\s*$")
NOT_COMPILED = re.compile(r"^[ \t]*#[ \t]*if[ \t]+0\b.*?^[ \t]*#[ \t]*(?:endif|else|elif)\b", re.S | re.M)
WORDS = {"__global__", "__device__", "__host__"}


@dataclass
class _Function:
    """One name: the qualifiers of all its declarations, and where its bodies are."""

    words: set[str] = field(default_factory=set)
    has_macro: bool = False  # which may stand for a qualifier: nothing is said of such a function
    bodies: list[tuple[int, int]] = field(default_factory=list)

    @property
    def is_of_gpu(self) -> bool:
        return bool(self.words & {"__global__", "__device__"})


def _closing(code: str, opening: int) -> int:
    """The index of the brace that closes the one at ``opening``; the end of the code if none does."""
    depth = 0
    for i in range(opening, len(code)):
        depth += {"{": 1, "}": -1}.get(code[i], 0)
        if depth == 0:
            return i
    return len(code)


def _statements(code: str) -> Iterator[tuple[str, int, int]]:
    """Heads of what stands at the scope of the file or of a namespace, and the body's begin and end (0 where none)."""
    at = begin = 0
    while at < len(code):
        if code[at] == "{":
            head = code[begin:at]
            if not OUTSIDE.match(head):
                end = _closing(code, at)
                yield head, at, end
                at = end
            begin = at + 1
        elif code[at] in ";}":
            yield code[begin:at], 0, 0
            begin = at + 1
        at += 1


def _declared(head: str) -> str:
    """The name of the function that a head declares; empty where it declares none."""
    head = re.sub(r"(\b(const|noexcept)\b|->[^()]*)\s*$", "", head.rstrip()).rstrip()
    if not head.endswith(")"):
        return ""
    depth = 0
    for i in range(len(head) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(head[i], 0)
        if depth == 0:
            found = NAME_BEFORE.search(head[:i])
            before = head[: found.start()].strip() if found else ""
            return found[1] if found and before and "=" not in re.sub(r"<[^<>]*>", "", before) else ""
    return ""


def _functions(code: str, macros: set[str]) -> dict[str, _Function]:
    functions: dict[str, _Function] = {}
    for head, begin, end in _statements(code):
        plain = ATTRIBUTE.sub(" ", head)
        name = _declared(plain)
        if not name or name in macros:
            continue
        known = functions.setdefault(name, _Function())
        words = set(re.findall(r"\w+", plain))
        known.words |= words & WORDS
        known.has_macro |= bool(words & macros)
        if begin:
            known.bodies.append((begin, end))
    return functions


def _calls(code: str, name: str, begin: int, end: int) -> Iterator[int]:
    """Where ``name(...)`` or ``name<...>(...)`` stands: no launch, no member, no declaration of a variable."""
    for match in re.compile(rf"(?<![\w.]){name}\b\s*(?:<(?!<)[^;{{}}()<>]*>\s*)?\(").finditer(code, begin, end):
        before = code[begin : match.start()].rstrip()
        word = NAME_BEFORE.search(before)
        if not before.endswith("->") and (word is None or word[1] in ("return", "else", "do")):
            yield match.start()


def refusals(code: str, text: str, host: str = "") -> list[tuple[int, str]]:
    """What nvcc refuses, as positions and sentences in the order of the source.

    ``code``: the text without comments, strings and ``#`` lines. ``host``: the name of the function that the CPU
    calls.
    """
    for skipped in NOT_COMPILED.finditer(text):
        begin, end = skipped.span()
        code = code[:begin] + re.sub(r"[^\n]", " ", code[begin:end]) + code[end:]
    macros = set(re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", text, re.M))
    functions = _functions(code, macros)
    found: list[tuple[int, str]] = []
    for match in re.finditer(r"([A-Za-z_]\w*)\s*(?:<(?!<)[^;{}()<>]*>\s*)?<<<", code):
        launched = functions.get(match[1])
        if launched and not launched.has_macro and "__global__" not in launched.words:
            found.append((match.start(), f"{match[1]} is launched with <<< >>>, but lacks __global__"))
    functions = {name: function for name, function in functions.items() if not function.has_macro}
    kernels = {name for name, function in functions.items() if "__global__" in function.words}
    if host in kernels:
        said = f"{host} is the function that the CPU calls, and is __global__: it launches a kernel of another name"
        found += [(begin, said) for begin, _ in functions[host].bodies]
    refused = {text.split(" ", 1)[0] for _, text in found}
    for caller, of_caller in functions.items():
        for begin, end in of_caller.bodies:
            for name, called in functions.items():
                said = _call_sentence(caller, of_caller, name, called, kernels)
                if said and name not in refused and caller not in refused:
                    found += [(at, said) for at in _calls(code, name, begin, end)]
    return sorted(found)


def _call_sentence(caller: str, of_caller: _Function, name: str, called: _Function, kernels: set[str]) -> str:
    """What nvcc has against a call of one function by another, or nothing."""
    if name in kernels:
        return f"{name} is called without <<<blocks, threads>>>"
    if of_caller.is_of_gpu and not called.is_of_gpu:
        kind = "kernel" if caller in kernels else "__device__ function"
        return f"{name} is called from the {kind} {caller}, but lacks __device__"
    if not of_caller.is_of_gpu and "__device__" in called.words and "__host__" not in called.words:
        return f"{name} is called from host code ({caller}), but is __device__: only threads of the GPU can call it"
    return ""
