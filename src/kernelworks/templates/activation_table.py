"""Ops that are entries of a table: one op package for all of them, whose C++ is formed of the entries when it is built.

An entry (``activation.py``) says what only it knows. The table makes the op of it, its C++ text, and torch's way to
write it. What type checkers and editors are to see, and Triton's functions, lie in two files beside the table, written
by ``tools/activations.py``.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any

import torch

from kernelworks.build.kernels import table_triton_kernel
from kernelworks.build.written_source import written_kernels
from kernelworks.contract import Kernel
from kernelworks.dispatch.aten import aten
from kernelworks.dispatch.generated_code import run_generated_code
from kernelworks.dispatch.op import Op
from kernelworks.dispatch.passthrough import Passthrough
from kernelworks.dispatch.signature import TorchSignature
from kernelworks.templates.activation import Activation, OfEntry, mutants_of, template_of
from kernelworks.templates.launches import backward_of, forward_of
from kernelworks.templates.op_package import WrittenTable

__all__ = ["Table", "cpp_text", "names_read", "rename_calls"]

# bfloat16's rounding instruction makes bfloat16 forwards 1.2 (mish, silu) to 1.9 (hardtanh) times as quick as avx512.
TARGETS = ("avx512_bf16", "avx512", "avx2", "scalar")
HEADER = "activation.hpp"
CPP = {
    "exp": "exponential", "expm1": "exponential_less_one", "log1p": "log_one_more", "sigmoid": "logistic",
    "tanh": "hyperbolic_tangent",
}  # fmt: skip


class Table(WrittenTable[Activation]):
    """The ops of an op package, by their entries."""

    HEADER = HEADER

    def text_of(self, entry: Activation) -> str:
        return cpp_text(entry)

    def op(self, name: str) -> Op:
        """The op of an entry, with torch's way to write it where torch has a function of this name."""
        entry = self.entries[name]
        template = template_of(entry, self.op_package, functools.partial(self.kernels, entry))
        said = functools.partial(aten, entry.operator) if entry.operator else None
        op = template.op(
            template.contract, entry.composite, mutants=mutants_of(entry), aten=said, passthrough=_passthrough(entry)
        )
        if entry.is_torchs:
            TorchSignature(op, entry.torch, _torchs(entry), {"input": "x"}, operator=entry.operator)
        return op

    def kernels(self, entry: Activation, template: OfEntry) -> list[Kernel]:
        given = entry.name, template.arguments
        launches = {"forward": forward_of(*given), "backward": backward_of(*given)}
        ours = written_kernels(self.source, cpp_text(entry), TARGETS, launches, Path(self.op_package))
        return [table_triton_kernel(self.folder, entry.name), *ours]


# ---------------------------------------------------------------- C++


def rename_calls(text: str, names: Mapping[str, str]) -> str:
    """An expression with other names of the functions that it calls."""
    return re.sub(r"\b(\w+)\(", lambda m: f"{names.get(m[1], m[1])}(", text)


def names_read(entry: Activation, text: str) -> list[str]:
    """The names of ``let`` that an expression reads, with those that they read, in the order of ``let``."""
    read = {node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)}
    found: set[str] = set()
    for name in read & entry.let.keys():
        found |= {name, *names_read(entry, entry.let[name])}
    return [name for name in entry.let if name in found]


def _cpp(text: str) -> str:
    """In C++, where a number is one of float32."""
    return re.sub(r"(?<![\w.])(\d+\.\d+(?:e-?\d+)?)", r"\1f", rename_calls(text, CPP))


def cpp_text(entry: Activation) -> str:
    """An entry's forward and backward as functions of elements."""
    lines = [f"// {entry.name}: {entry.formula}", "namespace kw {", "namespace {"]
    passes = (("value", "", entry.value, ["x"]), ("gradient", "_BACKWARD", entry.gradient, ["grad", "x"]))
    for part, _, text, given in passes:
        parameters = ", ".join(f"[[maybe_unused]] V {name}" for name in (*given, *entry.numbers))
        lines.append(f"inline V {entry.name}_{part}({parameters}) {{")
        lines += [f"    const V {name} = {_cpp(entry.let[name])};" for name in names_read(entry, text)]
        lines += [f"    return {_cpp(text)};", "}"]
    lines += ["}", "}"]
    for part, kind, _, given in passes:
        read = [f"a[{i}]" for i in range(len(given))] + [f"number[{i}]" for i in range(len(entry.numbers))]
        call = f"{entry.name}_{part}({', '.join(read)})"
        lines.append(f"KW_POINTWISE_ENTRY{kind}({entry.name}, {len(entry.numbers)}, {call})")
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- torch's way to write it


def _torchs(entry: Activation) -> Any:
    """A function with the signature of torch's that returns the op's arguments."""
    parameters = ["input", *(n if r.preset is None else f"{n}={r.preset!r}" for n, r in entry.numbers.items())]
    ours = f"({', '.join(('input', *entry.numbers))},)"
    if entry.in_place:
        parameters.append("inplace=False")
        ours = f'"in place, torch\'s own function writes" if inplace else {ours}'
    scope: dict[str, Any] = {"__name__": __name__}
    run_generated_code(f"def torchs({', '.join(parameters)}):\n    return {ours}\n", scope, "torch's signature")
    return scope["torchs"]


def _passthrough(entry: Activation) -> Passthrough:
    """torch's function at once, where the numbers are ones that the contract accepts."""
    when = tuple(condition for name, real in entry.numbers.items() for condition in real.conditions(name))
    homes = (torch._C._nn, torch) if entry.is_torchs else ()  # where the function in C++ is that F's ends in
    found = (getattr(home, entry.name, None) for home in homes)
    called = next((f for f in found if isinstance(f, BuiltinFunctionType)), entry.torch)
    return Passthrough(f"function({', '.join(('x', *entry.numbers))})", (), when, names={"function": called})
