"""The kernel map."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelworks.cli.console import USAGE, fail, faults, guard_program, measuring, print_json, show
from kernelworks.cli.files import required_file, write
from kernelworks.cli.names import check_op, check_program
from kernelworks.cli.options import Json, Verbose

if TYPE_CHECKING:
    from kernelworks.records import MapOp

__all__ = ["VERBS"]


def map_(
    op: Annotated[str | None, typer.Argument(help="One op; every op without it.")] = None,
    stale: Annotated[
        bool, typer.Option("--stale", help="Only a line for each kernel without a certificate that holds, GPUs' too.")
    ] = False,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="Write the docs' reference page here.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="The map of this program: FILE.py:FUNCTION.", metavar="PROGRAM")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write the map as one page.", metavar="FILE")] = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """The kernel map: every op, family by family, with the best kernel that may be chosen here. Of one OP: its kernels,
    with certificate, share of the bound and ratio to the best baseline.

    With --verbose the kernels of all ops, and what an op template derived: cases, mutants, launches. With --html as a
    page, with what each family is in a model and as a kernel, and the exercises in which an op is written. With
    --model the map of one program, which is run as `diagnose` runs it: families and ops that occur in it, their share
    of the time and of the roofline, the kernel that a swap would take and whether it is verified, and where to learn
    to write it.

    Example: kernelworks map --model examples/train_ranker.py:step
    """
    if model is not None:
        if op or stale or markdown:
            fail("--model is the map of a program: it goes with --html, --verbose and --json", USAGE)
        _map_of_model(model, html, verbose=verbose, json=json)
        return
    check_op(op)
    from kernelworks.machine import machine as here
    from kernelworks.measure.bench.kernel_map import kernel_map
    from kernelworks.measure.bench.kernel_map import stale_kernels as without_certificate
    from kernelworks.report import map as report
    from kernelworks.report.terminal import stdout

    required_file(markdown)
    required_file(html)
    with faults((ValueError,)):
        if stale:
            lines = without_certificate(op)
            if json:
                print_json(lines)
            else:
                typer.echo("\n".join(lines or ["every kernel has a certificate that holds"]))
            return
        found = kernel_map(op)
    if markdown is not None:
        write(markdown, report.markdown(found))
    elif html is not None:
        from kernelworks.report.html import render_page

        write(html, render_page(_with_exercises(found)))
    elif json:
        print_json(found)
    else:
        show(report.kernel_map(found, here().kind, stdout().width, verbose=verbose))


def _map_of_model(program: str, page: Path | None, *, verbose: bool, json: bool) -> None:
    check_program(program, module=False)
    required_file(page)
    with guard_program(json=json, rough=True), measuring("map") as progress:
        from kernelworks.diagnose import diagnose_script
        from kernelworks.diagnose.model_map import model_map
        from kernelworks.measure.bench.kernel_map import kernel_map

        record = diagnose_script(program, progress=progress, rough=True)
        found = model_map(record, _with_exercises(kernel_map(None)))
    from kernelworks.report.html import render_page
    from kernelworks.report.map import model_map as shown

    if page is not None:
        write(page, render_page([found]))
    elif json:
        print_json(found)
    else:
        show(shown(found, verbose=verbose))


def _with_exercises(ops: Sequence[MapOp]) -> list[MapOp]:
    from kernelworks.learn.exercise import exercises

    of_op: dict[str, list[str]] = {}
    for name, exercise in exercises().items():
        of_op.setdefault(exercise.op, []).append(name)
    return [dataclasses.replace(one, exercises=tuple(of_op.get(one.op, ()))) for one in ops]


VERBS: dict[str, Callable[..., None]] = {"map": map_}
