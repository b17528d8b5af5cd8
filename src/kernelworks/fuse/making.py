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

from kernelworks.build.sources import hash_of
from kernelworks.fuse.back_ends import BackEnd, back_end_of
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
    """``launch(*leaves)`` returns the results. ``checked`` says how it was held against float64; ``toolchain``, what
    it was made with. ``text`` is "" where the results are views of arguments."""

    launch: Callable[..., tuple[Any, ...]]
    lowered: LoweredGraph
    target: str
    checked: CheckResult
    text: str
    toolchain: tuple[str, ...] = ()


def trace_settled(
    tracer: Tracer, leaves: Sequence[Any], static: frozenset[int], *, sums: bool = True
) -> tuple[Trace, LoweredGraph, frozenset[int]]:
    """The trace and its expression with as many numbers left open as can be; and the places of those that are not.
    ``sums``: whether the kernel adds up what is summed over rows."""
    numbers = frozenset(i for i, leaf in enumerate(leaves) if type(leaf) in (int, float))
    while True:
        trace = tracer(leaves, static)
        wanted = static | trace.specialized
        if wanted == static:
            try:
                return trace, lower_graph(trace.graph, sums=sums), static
            except StaticNumberError as error:
                if static == numbers:
                    raise FuseError(f"fuse: {error}") from None
                wanted = numbers
        static = wanted


def make_kernel(tracer: Tracer, definition: Definition, leaves: Sequence[Any], static: frozenset[int]) -> FusedKernel:
    """Raises FuseError where the function cannot be fused, BuildError where it cannot be compiled."""
    device = str(next(leaf for leaf in leaves if isinstance(leaf, Tensor)).device)
    end = back_end_of(device)
    trace, lowered, _ = trace_settled(tracer, leaves, static, sums=end.sums)
    text = end.text(lowered.expression) if lowered.expression.outputs else ""
    function = end.function(lowered.expression) if text else None

    def launch_of(other: LoweredGraph, count: int) -> Callable[..., tuple[Any, ...]]:
        return written_launch(other, count, function, end.nanoseconds(other.expression), device)

    def run(other: LoweredGraph, given: Sequence[Any]) -> Sequence[Any]:
        return launch_of(other, len(given))(*given)

    note = _note(text, end, device)
    checked = _noted(note)
    if checked is None:
        checked = CheckResult(0.0, 0)
        for case in _cases(tracer, trace, lowered, leaves, static, end):
            found = hold_against(definition, case, run, device=device)
            checked = CheckResult(max(checked.worst, found.worst), checked.cases + found.cases, found.fault)
            if found.fault:
                break
        _write(note, checked)
    launch, target = launch_of(lowered, len(leaves)), end.target if text else "torch"
    return FusedKernel(launch, lowered, target, checked, text, tuple(end.toolchain()) if text else ())


def _cases(
    tracer: Tracer, trace: Trace, lowered: LoweredGraph, leaves: Sequence[Any], static: frozenset[int], end: BackEnd
) -> list[Case]:
    """The same kernel at small sizes, ragged ones; at the call's own where it has no kernel in common with those."""
    found = list[Case]()
    text = end.common_text(lowered.expression)
    for name, last, others in differing_sizes():
        small = smaller_sizes(leaves, last, others)
        try:
            traced, other, _ = trace_settled(tracer, small, static, sums=end.sums)
        except (FuseError, RuntimeError):
            continue
        if end.common_text(other.expression) == text:
            found.append(Case(name, tuple(small), traced.graph, other))
    return found or [Case("the sizes of the call", tuple(leaves), trace.graph, lowered)]


# ---------------------------------------------------------------- what was checked, on record


@functools.cache
def _checker() -> str:
    """What checks: another one asks anew."""
    files = [*sorted(FOLDER.glob("*.py")), FOLDER.parent / "templates/running_error.py"]
    return hash_of("", files)


def _note(text: str, end: BackEnd, device: str) -> Path:
    parts = [text, end.target, _checker(), kind_of(device), torch.__version__]
    parts += end.toolchain() if text else ()
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
