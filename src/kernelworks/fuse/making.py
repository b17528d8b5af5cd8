"""A function's kernel for one signature: traced, compiled, held against float64 once on a machine, and called."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.cpp import flags_of, toolchain
from kernelworks.build.sources import hash_of, with_includes
from kernelworks.fuse import cpu_kernel
from kernelworks.fuse.cpp_text import cpp_text
from kernelworks.fuse.launch import written_launch
from kernelworks.fuse.lowering import LoweredGraph, lower_graph
from kernelworks.fuse.rules import StaticNumberError
from kernelworks.fuse.trace import FuseError, Trace
from kernelworks.fuse.verification import Case, CheckResult, differing_sizes, hold_against, smaller_sizes
from kernelworks.machine import environment, kind_of
from kernelworks.records.json_text import read_json

__all__ = ["FusedKernel", "make_kernel", "trace_settled"]

Tracer = Callable[[Sequence[Any], frozenset[int]], Trace]
Definition = Callable[[Sequence[Any]], Sequence[Tensor | None] | None]
FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class FusedKernel:
    """``launch(*leaves)`` returns the results. ``checked`` says how it was held against float64."""

    launch: Callable[..., tuple[Any, ...]]
    lowered: LoweredGraph
    target: str
    checked: CheckResult
    text: str


def trace_settled(
    tracer: Tracer, leaves: Sequence[Any], static: frozenset[int]
) -> tuple[Trace, LoweredGraph, frozenset[int]]:
    """The trace and its expression with as many numbers left open as can be; and the places of those that are not."""
    numbers = frozenset(i for i, leaf in enumerate(leaves) if type(leaf) in (int, float))
    while True:
        trace = tracer(leaves, static)
        wanted = static | trace.specialized
        if wanted == static:
            try:
                return trace, lower_graph(trace.graph), static
            except StaticNumberError as error:
                if static == numbers:
                    raise FuseError(f"fuse: {error}") from None
                wanted = numbers
        static = wanted


def make_kernel(tracer: Tracer, definition: Definition, leaves: Sequence[Any], static: frozenset[int]) -> FusedKernel:
    """Raises FuseError where the function cannot be fused, BuildError where it cannot be compiled."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    trace, lowered, _ = trace_settled(tracer, leaves, static)
    device = str(tensors[0].device)
    function, target, text = _compiled(lowered, device)
    launch = _launch(lowered, len(leaves), function, device)

    def run(other: LoweredGraph, given: Sequence[Any]) -> Sequence[Any]:
        return _launch(other, len(given), function, device)(*given)

    note = _note(text, target, device)
    checked = _noted(note)
    if checked is None:
        checked = CheckResult(0.0, 0)
        for case in _cases(tracer, trace, lowered, leaves, static):
            found = hold_against(definition, case, run, device=device)
            checked = CheckResult(max(checked.worst, found.worst), checked.cases + found.cases, found.fault)
            if found.fault:
                break
        _write(note, checked)
    return FusedKernel(launch, lowered, target, checked, text)


def _compiled(lowered: LoweredGraph, device: str) -> tuple[Any, str, str]:
    """The kernel's function, the target that it was compiled for, and its text."""
    if not lowered.expression.outputs:
        return None, "torch", ""
    if device == "cpu":
        target = cpu_kernel.target_here()
        return cpu_kernel.cpu_function(lowered.expression, target), target, cpp_text(lowered.expression)
    raise FuseError(f"fuse: tensors on {device}; accepted are those of a CPU")


def _launch(lowered: LoweredGraph, count: int, function: Any, device: str) -> Callable[..., tuple[Any, ...]]:
    return written_launch(lowered, count, function, cpu_kernel.nanoseconds(lowered.expression), device)


def _cases(
    tracer: Tracer, trace: Trace, lowered: LoweredGraph, leaves: Sequence[Any], static: frozenset[int]
) -> list[Case]:
    """The same kernel at small sizes, ragged ones; at the call's own where it has no kernel in common with those."""
    found = list[Case]()
    text = cpp_text(lowered.expression)
    for name, last, others in differing_sizes():
        small = smaller_sizes(leaves, last, others)
        try:
            traced, other, _ = trace_settled(tracer, small, static)
        except (FuseError, RuntimeError):
            continue
        if cpp_text(other.expression) == text:
            found.append(Case(name, tuple(small), traced.graph, other))
    return found or [Case("the sizes of the call", tuple(leaves), trace.graph, lowered)]


# ---------------------------------------------------------------- what was checked, on record


@functools.cache
def _checker() -> str:
    """What checks: another one asks anew."""
    files = [*sorted(FOLDER.glob("*.py")), FOLDER.parent / "templates/running_error.py"]
    return hash_of("", files)


def _note(text: str, target: str, device: str) -> Path:
    header = cpu_kernel.SIMD / cpu_kernel.HEADER
    parts = [text, target, _checker(), toolchain(), kind_of(device), torch.__version__]
    parts += (
        [str(flags_of(header, target)), hash_of("", with_includes(header, cpu_kernel.SIMD))] if device == "cpu" else []
    )
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    return environment.cache_dir("build") / "fuse" / f"{digest}.checked.json"


def _noted(path: Path) -> CheckResult | None:
    try:
        held = read_json(path)
        return CheckResult(float(held["worst"]), int(held["cases"]), str(held["fault"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, checked: CheckResult) -> None:
    said = {"worst": checked.worst, "cases": checked.cases, "fault": checked.fault}
    try:
        environment.write_whole(path, json.dumps(said), ".checked-")
    except OSError:
        return  # a folder that cannot be written: the next process checks again
