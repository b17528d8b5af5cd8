"""The kernel of an expression for a CPU: its C++ is compiled for the best instruction set that this CPU has."""

from __future__ import annotations

import math
from typing import Any

from kernelworks.build.cpp import SIMD, TARGETS, library
from kernelworks.build.sharing import watch_forks
from kernelworks.build.written_source import WrittenSource
from kernelworks.fuse.cpp_text import cpp_text
from kernelworks.fuse.expression import Expression
from kernelworks.fuse.functions import ELEMENT_FUNCTIONS
from kernelworks.machine import machine
from kernelworks.templates.activation_table import TARGETS as BEST_FIRST

__all__ = ["HEADER", "SIMD", "cpu_function", "cpu_source", "nanoseconds", "target_here"]

HEADER = "fused.hpp"


def target_here() -> str:
    """The best of the instruction sets that this CPU has."""
    return next(name for name in BEST_FIRST if TARGETS[name].needs <= machine().features)


def cpu_source(expression: Expression) -> WrittenSource:
    return WrittenSource("fuse", HEADER, lambda: [cpp_text(expression)])


def cpu_function(expression: Expression, target: str) -> Any:
    """The kernel, which takes outputs, inputs, numbers, the streams of random bits (seed, offset and threshold each)
    and the number of threads. Raises BuildError. Cost: a compile, 0.5 to 3 s, the first time on a machine."""
    watch_forks()
    return library(cpu_source(expression).path(), target).fused


def nanoseconds(expression: Expression) -> float:
    """About what one thread needs."""
    rows = expression.row_values()
    functions = (ELEMENT_FUNCTIONS.get(node.op) for node, row in zip(expression.nodes, rows, strict=True) if not row)
    operations = sum(function.operations if function is not None else 1 for function in functions)
    return math.prod(expression.shape) * max(0.25, operations / 64.0)
