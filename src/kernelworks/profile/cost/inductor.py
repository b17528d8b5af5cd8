"""The work of a kernel that inductor wrote, counted from its own code: how often each of its lines runs, what it
computes there, and which elements of its arguments it touches.

A kernel in C++ is nests of loops with one simple statement a line; one for Triton computes whole blocks, and says over
how many elements in its ``numel``s. An element is counted as read or written once however often that is done, and no
more of an argument than it has.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernelworks.profile.cost import Work
from kernelworks.profile.cost.operands import Arguments, Operand, distinct_elements
from kernelworks.profile.inductor.expressions import CAST, value_of
from kernelworks.profile.inductor_code import Kernel

__all__ = ["generated_work"]

# Elementary functions by the name of their kind that measured peaks know; the code calls them ``std::exp``,
# ``.exp_u20()``, ``tl_math.exp``, ``libdevice.exp``.
FUNCTIONS = re.compile(
    r"(?:\.|::|\b)(?:Sleef_)?(exp_u20|fexp_u20|expm1|exp2|exp|log1p|log2|log10|log|tanh|erfinv|erfc|erf|sinh|cosh|sin|"
    r"cos|tan|asin|acos|atan2|atan|pow|lgamma|digamma|sigmoid)[df]?\d*\("
)
KINDS = {"tanh": "tanh", "erf": "erf", "erfc": "erf", "log": "log", "log1p": "log", "log2": "log", "log10": "log"}
FOR = re.compile(r"for\s*\(\s*(?:int64_t|long|int|auto)\s+(\w+)\s*=\s*(.*?);\s*\w+\s*<\s*(.*?);")
POINTER = re.compile(r"\b(?:in_out_ptr|in_ptr|out_ptr)\d+\b")
PARAMETERS = re.compile(r'extern "C"\s.*?\w+\((.*?)\)\s*\{', re.DOTALL)
TRITON = re.compile(r"def \w+\((.*?)\):", re.DOTALL)
NUMEL = re.compile(r"^\s*([xyzr]\d*_?)numel\s*=\s*(\d+)", re.MULTILINE)
CONSTANT = r"\b(?:constexpr|const)\s+int64_t\s+{0}\s*=\s*(.+?);|^\s*{0}\s*(?::\s*tl\.constexpr\s*)?=\s*(\d+)\s*$"
OPERATION = re.compile(r"[-+*/]|min|max|where|blendv|sqrt|fma|abs|relu|reduce")


@dataclass(frozen=True)
class _Line:
    """A statement, and the loops around it: variable, begin, end."""

    text: str
    loops: tuple[tuple[str, str, str], ...]


def generated_work(kernel: Kernel, a: Arguments) -> Work | None:
    """What the kernel does with these arguments; None if neither its code nor its arguments tell."""
    if not a.operands:
        return None
    names = _parameters(kernel)
    given = dict(zip(names, a.items, strict=False))
    counted = _templated(kernel, a) or (_triton(kernel, given) if kernel.on_gpu else _cpp(kernel, given))
    return counted if counted is not None else _by_arguments(kernel, a)


def _by_arguments(kernel: Kernel, a: Arguments) -> Work:
    """Every argument once, one flop an element of the largest: of code that cannot be read."""
    n = max(o.numel for o in a.operands)
    return Work(float(n), 0.0, float(sum(o.bytes for o in a.operands)), 0.0)


def _parameters(kernel: Kernel) -> list[str]:
    """The names of the kernel's parameters in order: the last word of each, ahead of what Python says of its type."""
    found = (TRITON if kernel.on_gpu else PARAMETERS).search(kernel.source)
    parts = found.group(1).split(",") if found else []
    words = [re.findall(r"\w+", part.partition(":")[0] if kernel.on_gpu else part) for part in parts]
    return [each[-1] for each in words if each]


# ---------------------------------------------------------------- C++


@functools.lru_cache(maxsize=1024)
def _lines(source: str) -> tuple[_Line, ...]:
    """The statements of a kernel with the loops around them; those for what is left over after whole vectors are left
    out, as the loop counts them already."""
    found: list[_Line] = []
    open_: list[tuple[str, str, str] | None] = []
    skipped: list[int] = []
    header: tuple[str, str, str] | None = None
    skip = False
    for raw in source.splitlines():
        text = raw.strip()
        loop = FOR.search(text)
        if loop:
            name, begin, end = loop.groups()
            inner = name.endswith(("_inner", "_tail")) or "_tail" in name  # within a vector or a tile
            header = None if inner else (name, begin, end)
        elif text.startswith(("if(C10_UNLIKELY", "if (C10_UNLIKELY")):
            skip = True
        elif text == "{":
            open_.append(header)
            if skip:
                skipped.append(len(open_))
            header, skip = None, False
        elif text.startswith("}") and open_:
            if skipped and skipped[-1] == len(open_):
                skipped.pop()
            open_.pop()
        elif text and open_ and not skipped:
            found.append(_Line(text, tuple(o for o in open_ if o is not None)))
    return tuple(found)


def _cpp(kernel: Kernel, given: Mapping[str, Any]) -> Work | None:
    sizes = {name: value for name, value in given.items() if isinstance(value, int)}
    tally = _Tally(given)
    for line in _lines(kernel.source):
        alias = re.match(r"auto (\w+) = (in_out_ptr\d+);", line.text)
        if alias:
            tally.alias[alias.group(1)] = alias.group(2)
            continue
        trips = {name: _trips(begin, end, sizes) for name, begin, end in line.loops}
        if any(n is None for n in trips.values()):
            return None
        whole = math.prod(n or 0 for n in trips.values())
        tally.compute(line.text, whole)
        for pointer in set(POINTER.findall(line.text)):
            index = line.text[line.text.index(pointer) :]
            used = {name for name in trips if re.search(rf"\b{name}\b", index)}
            n = (
                whole
                if re.search(r"\btmp\d", index.partition(")")[0])
                else math.prod(trips[name] or 0 for name in used)
            )
            tally.touch(pointer, index, n, writes=_writes(line.text, pointer))
    return tally.work()


def _writes(text: str, pointer: str) -> bool:
    stored = re.search(rf"(?:store\w*\(|atomic_add\w*(?:<[^>]*>)?\(&?){pointer}\b", text)
    return (
        bool(stored) or bool(re.match(rf"{pointer}\[", text)) or (pointer.startswith("out_ptr") and "loadu" not in text)
    )


def _trips(begin: str, end: str, sizes: Mapping[str, int]) -> int | None:
    first, last = value_of(begin, sizes), value_of(end, sizes)
    return None if first is None or last is None else max(0, last - first)


# ---------------------------------------------------------------- Triton


def _triton(kernel: Kernel, given: Mapping[str, Any]) -> Work | None:
    numels = {name.rstrip("_"): int(size) for name, size in NUMEL.findall(kernel.source)}
    for name, value in given.items():
        if name.endswith("numel") and isinstance(value, int):
            numels.setdefault(name.removesuffix("numel").rstrip("_"), value)
    if not numels:
        return None
    tally = _Tally(given)
    body = kernel.source[kernel.source.rindex("def triton") :] if "def triton" in kernel.source else kernel.source
    whole = math.prod(numels.values())
    for text in (line.strip() for line in body.splitlines()):
        if re.match(r"\w+ = ", text):
            tally.compute(text, whole)
        for pointer in (
            set(POINTER.findall(text)) if "tl.load" in text or "tl.store" in text or "atomic" in text else ()
        ):
            index = text[text.index(pointer) :]
            axes = {axis for axis in numels if re.search(rf"\b{axis[0]}\d*_?(?:\d+|index|offset)\b", index)}
            n = whole if "tmp" in index.partition(",")[0] else math.prod(numels[axis] for axis in axes)
            tally.touch(pointer, index, n, writes="tl.load" not in text)
    return tally.work()


# ---------------------------------------------------------------- counting


class _Tally:
    """What the lines read so far do."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given
        self.alias: dict[str, str] = {}
        self.flop = 0.0
        self.functions: dict[str, float] = {}
        self.read: dict[str, dict[str, float]] = {}
        self.written: dict[str, dict[str, float]] = {}

    def compute(self, text: str, n: float) -> None:
        for name in FUNCTIONS.findall(text):
            kind = KINDS.get(name, "exp")
            self.functions[kind] = self.functions.get(kind, 0.0) + n * (2 if name == "pow" else 1)
        made = re.match(r"(?:auto |const auto )?tmp\w* = (.*)", text)
        if made and not POINTER.search(text) and OPERATION.search(CAST.sub("", made.group(1))):
            self.flop += n

    def touch(self, pointer: str, index: str, n: float, *, writes: bool) -> None:
        pointer = self.alias.get(pointer, pointer)
        if not writes and pointer in self.written:
            return  # what it has written itself
        (self.written if writes else self.read).setdefault(pointer, {})[index] = n

    def _bytes(self, touched: Mapping[str, Mapping[str, float]]) -> float:
        total = 0.0
        for pointer, places in touched.items():
            operand = self.given.get(pointer)
            if isinstance(operand, Operand):
                most = distinct_elements(operand.shape, operand.stride)
                total += min(float(most), sum(places.values())) * operand.dtype.itemsize
        return total

    def work(self) -> Work | None:
        if not self.read and not self.written:
            return None
        most = max(self.functions, key=lambda kind: self.functions[kind], default="exp")
        calls = sum(self.functions.values())
        return Work(self.flop, calls, self._bytes(self.read), self._bytes(self.written), "float32", most)


# ---------------------------------------------------------------- products


def _templated(kernel: Kernel, a: Arguments) -> Work | None:
    """A product that inductor wrote from a template: 2 M N K by the sizes in its code, every argument moved once."""
    if "micro_gemm" not in kernel.source and "triton_tem" not in kernel.name and "triton_mm" not in kernel.name:
        return None
    k = _constant("K", kernel.source)
    out = next((o for o in reversed(a.operands)), None)
    if out is None or k is None:
        return None
    read = sum(o.bytes for o in a.operands) - out.bytes
    return Work(2.0 * out.numel * k, 0.0, float(read), float(out.bytes), str(out.dtype).removeprefix("torch."))


def _constant(name: str, source: str) -> int | None:
    found = re.search(CONSTANT.format(name), source, re.MULTILINE)
    return value_of(found.group(1) or found.group(2), {}) if found else None
