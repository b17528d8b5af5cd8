"""A descent on the terminal: each operator with its layers, one line each, and the hot loop's instructions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from kernelworks.records.descent import Descent, FunctionTime, HotLoop, OperatorTime
from kernelworks.report import quantity
from kernelworks.report.descent.device_terminal import device_operator
from kernelworks.report.descent.layers import declined_kernels, dispatch_choice, layer, roofline_place, upper_layers

__all__ = ["descent"]

MOST_LINES = 14  # of a loop, unless everything is shown
MOST_NAME = 72  # characters of a C++ name


def descent(record: Descent, *, verbose: bool = False) -> RenderableType:
    """What ``kernelworks descend`` prints. ``verbose``: every instruction of each hot loop, every name whole."""
    if not record.samples and not record.period_ms:
        return _of_trace(record, verbose=verbose)
    per = f"{record.samples} samples, one for {quantity.figures(record.period_ms, 2)} ms of CPU time"
    runs = f"{record.runs} run{'s' if record.runs > 1 else ''} of {quantity.seconds(record.wall_s)} under the profiler"
    parts: list[RenderableType] = [
        Text(f"{record.program} on {record.machine}", style="bold"),
        Text(f"{runs}, {per}; {len(record.operators)} of {record.whole} operators", style="dim"),
    ]
    for one in record.operators:
        parts += [Text(), *_operator(one, verbose=verbose)]
    parts += [Text(note, style="dim") for note in record.notes]
    return Group(*parts)


def _of_trace(record: Descent, *, verbose: bool) -> RenderableType:
    steps = f"{record.runs} step{'s' if record.runs > 1 else ''}, {quantity.seconds(record.wall_s)}"
    parts: list[RenderableType] = [
        Text(f"{record.program} on {record.machine}", style="bold"),
        Text(f"a recorded trace, {steps}; {len(record.operators)} of {record.whole} operators", style="dim"),
    ]
    for one in record.operators:
        parts += [Text(), *device_operator(one, verbose=verbose)]
    parts += [Text(), *(Text(note, style="dim") for note in record.notes)] if record.notes else []
    return Group(*parts)


def _operator(one: OperatorTime, *, verbose: bool) -> Iterator[RenderableType]:
    calls = f"{one.calls} call{'s' if one.calls > 1 else ''}"
    yield Text.assemble(
        (one.operator, "bold"), f"  {quantity.seconds(one.seconds)}, {quantity.percent(one.share)} of a run, {calls}"
    )
    yield from upper_layers(one)
    yield layer("dispatcher", _of_torch(one)) if not one.kernel else layer("dispatcher", dispatch_choice(one))
    yield from declined_kernels(one)
    if one.kernel_source:
        yield layer("source", one.kernel_source)
    yield layer("roofline", roofline_place(one))
    if not one.functions:
        yield layer("functions", f"unknown: {one.samples} samples, too few")
    for function in one.functions:
        yield from _function(function, verbose=verbose)


def _of_torch(one: OperatorTime) -> str:
    if one.operator.startswith("inductor: "):
        said = "torch.compile: inductor wrote the kernel, for this machine and these shapes"
        return f"{said}; kernelworks has an op of its own: `kernelworks explain {one.op}`" if one.op else said
    said = f"torch's own, for {one.capability}" if one.capability else "torch's own"
    return f"{said}; kernelworks has an op of its own: `kernelworks explain {one.op}`" if one.op else said


def _function(function: FunctionTime, *, verbose: bool) -> Iterator[RenderableType]:
    name = function.name or ("code made while the program ran" if not function.file else "no symbol")
    name = name if verbose or len(name) <= MOST_NAME else f"{name[: MOST_NAME - 3]}..."
    where = f" in {function.file}" if function.file else ""
    waits = ": threads that wait for each other" if function.waits else ""
    yield layer("function", Text.assemble(f"{quantity.percent(function.share)} ", (name, "bold"), f"{where}{waits}"))
    if function.loop is not None:
        yield from _loop(function.loop, verbose=verbose)


def _loop(loop: HotLoop, *, verbose: bool) -> Iterator[RenderableType]:
    yield layer("hot loop", f"{quantity.percent(loop.share)} of the function's samples; {loop.explained[0]}")
    for line in loop.explained[1:]:
        yield layer("", line)
    most = max((count for _, count in loop.lines), default=0)
    for text, count in _shown(loop.lines, verbose=verbose):
        mark = ("#" * max(1, round(8 * count / most)) if count else "").ljust(8) if count >= 0 else " " * 8
        yield layer("", Text.assemble((f"{mark} ", "red"), (text, "dim" if count <= 0 else "")))


def _shown(lines: Sequence[tuple[str, int]], *, verbose: bool) -> Iterator[tuple[str, int]]:
    """All, or of a long loop the stretch with the most samples."""
    if verbose or len(lines) <= MOST_LINES:
        yield from lines
        return
    best = max(range(len(lines) - MOST_LINES + 1), key=lambda at: sum(n for _, n in lines[at : at + MOST_LINES]))
    if best:
        yield f"... {best} instructions", -1
    yield from lines[best : best + MOST_LINES]
    left = len(lines) - best - MOST_LINES
    if left:
        yield f"... {left} instructions", -1
