"""A descent on the terminal: each operator with its layers, one line each, and the hot loop's instructions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kernelworks.records.descent import Descent, FunctionTime, HotLoop, OperatorTime
from kernelworks.report import quantity
from kernelworks.report.terminal import style_of

__all__ = ["descent"]

MOST_LINES = 14  # of a loop, unless everything is shown
LABEL = 12
MOST_NAME = 72  # characters of a C++ name


def descent(record: Descent, *, verbose: bool = False) -> RenderableType:
    """What ``kernelworks descend`` prints. ``verbose``: every instruction of each hot loop, every name whole."""
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


def _operator(one: OperatorTime, *, verbose: bool) -> Iterator[RenderableType]:
    calls = f"{one.calls} call{'s' if one.calls > 1 else ''}"
    yield Text.assemble(
        (one.operator, "bold"), f"  {quantity.seconds(one.seconds)}, {quantity.percent(one.share)} of a run, {calls}"
    )
    if one.module or one.source:
        where = " > ".join(one.module.split(".")) if one.module else "outside any module"
        yield _row("module", f"{where}  {one.source}".rstrip() + (f"  {one.code}" if one.code else ""))
    if one.shapes:
        yield _row("operator", f"{one.operator} {one.shapes}")
    if one.kernel:
        yield _row("dispatcher", Text.assemble("kernelworks takes ", (one.kernel, "bold green"), f": {one.because}"))
        for name, reason in one.declined:
            yield _row("", Text.assemble((name, "bold"), f" declined: {reason}"))
    else:
        yield _row("dispatcher", _of_torch(one))
    if one.kernel_source:
        yield _row("source", one.kernel_source)
    yield _row("roofline", _roofline(one))
    if not one.functions:
        yield _row("functions", f"unknown: {one.samples} samples, too few")
    for function in one.functions:
        yield from _function(function, verbose=verbose)


def _of_torch(one: OperatorTime) -> str:
    if one.operator.startswith("inductor: "):
        said = "torch.compile: inductor wrote the kernel, for this machine and these shapes"
        return f"{said}; kernelworks has an op of its own: `kernelworks explain {one.op}`" if one.op else said
    said = f"torch's own, for {one.capability}" if one.capability else "torch's own"
    return f"{said}; kernelworks has an op of its own: `kernelworks explain {one.op}`" if one.op else said


def _row(label: str, text: str | Text) -> RenderableType:
    """A layer: its name, and what is known of it; what does not fit in a line goes on below its own begin."""
    row = Table.grid(padding=0)
    row.add_column(width=LABEL, no_wrap=True, style="dim")
    row.add_column(overflow="fold")
    row.add_row(label, text)
    return Padding(row, (0, 0, 0, 2), expand=False)


def _roofline(one: OperatorTime) -> Text:
    if one.flop is None or one.bytes is None:
        return Text("unknown: no formula says how much work this is")
    per_s = 1e9 * one.seconds
    rates = f"{quantity.gflops(one.flop / per_s)}, {quantity.gbs(one.bytes / per_s)}"
    intensity = f"{quantity.figures(one.flop / one.bytes)} flop a byte" if one.bytes else "no bytes"
    if one.bound_s is None:
        return Text(f"{rates}; {intensity}; the peaks of this machine: `kernelworks machine`")
    share = quantity.percent(min(1.0, one.bound_s / one.seconds))
    limit = Text(quantity.bottleneck(one.bottleneck), style=style_of(one.bottleneck))
    return Text.assemble(f"{rates}; {intensity}; {share} of the roofline ({one.peak}), ", limit)


def _function(function: FunctionTime, *, verbose: bool) -> Iterator[RenderableType]:
    name = function.name or ("code made while the program ran" if not function.file else "no symbol")
    name = name if verbose or len(name) <= MOST_NAME else f"{name[: MOST_NAME - 3]}..."
    where = f" in {function.file}" if function.file else ""
    waits = ": threads that wait for each other" if function.waits else ""
    yield _row("function", Text.assemble(f"{quantity.percent(function.share)} ", (name, "bold"), f"{where}{waits}"))
    if function.loop is not None:
        yield from _loop(function.loop, verbose=verbose)


def _loop(loop: HotLoop, *, verbose: bool) -> Iterator[RenderableType]:
    yield _row("hot loop", f"{quantity.percent(loop.share)} of the function's samples; {loop.explained[0]}")
    for line in loop.explained[1:]:
        yield _row("", line)
    most = max((count for _, count in loop.lines), default=0)
    for text, count in _shown(loop.lines, verbose=verbose):
        mark = ("#" * max(1, round(8 * count / most)) if count else "").ljust(8) if count >= 0 else " " * 8
        yield _row("", Text.assemble((f"{mark} ", "red"), (text, "dim" if count <= 0 else "")))


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
