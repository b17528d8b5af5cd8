"""From a program down to the machine code that it spends its time in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from kernelworks.cli.console import USAGE, fail, faults, guard_program, measuring, print_json, show
from kernelworks.cli.names import check_program, readable_file
from kernelworks.cli.options import Json, Verbose

__all__ = ["VERBS"]


def descend(
    program: Annotated[
        str | None, typer.Argument(help="A Python script, or FILE.py:FUNCTION to call without arguments.")
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(help="The script's own arguments, after `--`.", metavar="[-- ARGUMENTS]")
    ] = None,
    op: Annotated[
        str, typer.Option("--op", help="Only operators with this in their name: softmax, addmm.", metavar="NAME")
    ] = "",
    most: Annotated[int, typer.Option("--most", help="So many operators, those with the most time.", min=1)] = 5,
    seconds: Annotated[float, typer.Option("--seconds", help="How long to sample, at the most.", min=0.1)] = 8.0,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", help="Instead of a program: torch.profiler's trace of one on a GPU.", metavar="FILE"),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option("--cache", help="With --trace: Triton's or inductor's cache of the recording.", metavar="FOLDER"),
    ] = None,
    peaks: Annotated[
        Path | None,
        typer.Option("--peaks", help="With --trace: a record of the GPU's measured peaks.", metavar="FILE"),
    ] = None,
    verbose: Verbose = False,
    module: Annotated[
        bool, typer.Option("-m", "--module", help="PROGRAM is a module, as after python -m, or MODULE:FUNCTION.")
    ] = False,
    json: Json = False,
) -> None:
    """The layers under a program: module, operator, dispatcher, roofline, function or kernel, hot loop.

    The program runs a few times under torch's profiler, while a timer notes which instruction each thread runs. Each
    operator is shown with the functions of machine code that it spent its time in, torch's own and its libraries' too,
    and with the innermost loop that has the most samples: what an iteration does, and what the counts say. Nothing is
    changed. Exit code 2 if no operator has that name, 1 without a C++ compiler or if the program raises.

    A program on a GPU is descended from a recorded trace: with --trace nothing is run, and each kernel is shown with
    its launch, its Triton IR, PTX and SASS as far as its code is at hand.

    Example: kernelworks descend train.py:step --op addmm
    """
    if trace is not None:
        if program is not None:
            fail("--trace stands instead of a program", USAGE)
        descend_trace_file(trace, cache, peaks, op=op, most=most, verbose=verbose, json=json)
        return
    if program is None:
        fail("descend takes a program, or --trace FILE", USAGE)
    if cache is not None or peaks is not None:
        fail("--cache and --peaks go with --trace", USAGE)
    check_program(program, module=module)
    with guard_program(json=json, so="there is nothing to show"), measuring("descend") as progress:
        from kernelworks.descend.stack import OnGpu
        from kernelworks.descend.stack import descend as run
        from kernelworks.profile.program import from_target

        target = from_target(program, arguments or [], module=module)
        try:
            found = run(target, op=op, most=most, seconds=seconds, say=progress)
        except OnGpu as error:
            fail(str(error), USAGE)
        except LookupError as error:
            fail(str(error.args[0]), USAGE)
    if json:
        print_json(found)
        return
    from kernelworks.report.descent import descent

    show(descent(found, verbose=verbose))


def descend_trace_file(
    trace: Path, cache: Path | None, peaks: Path | None, *, op: str, most: int, verbose: bool, json: bool
) -> None:
    """Shows a recorded trace down to the code of its kernels."""
    for path in (trace, *((peaks,) if peaks else ())):
        readable_file(path)
    if cache is not None and not cache.is_dir():
        fail(f"{cache} is no folder", USAGE)
    from kernelworks.descend.gpu_trace import TraceError, descend_trace, read_peaks
    from kernelworks.report.descent import descent
    from kernelworks.report.terminal import progress as progress_lines

    with faults((TraceError, ValueError, OSError)), progress_lines("descend") as progress:
        try:
            measured = read_peaks(peaks) if peaks else None
            found = descend_trace(trace, cache=cache, peaks=measured, op=op, most=most, say=progress)
        except LookupError as error:
            fail(str(error.args[0]), USAGE)
    if json:
        print_json(found)
        return
    show(descent(found, verbose=verbose))


VERBS: dict[str, Callable[..., None]] = {"descend": descend}
