"""The kernel map."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from kernelworks.cli.console import faults, print_json, show
from kernelworks.cli.files import required_file, write
from kernelworks.cli.names import check_op
from kernelworks.cli.options import Json, Verbose

__all__ = ["VERBS"]


def map_(
    op: Annotated[str | None, typer.Argument(help="One op; every op without it.")] = None,
    stale: Annotated[
        bool, typer.Option("--stale", help="Only a line for each kernel without a certificate that holds, GPUs' too.")
    ] = False,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="Write the docs' reference page here.")] = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """The kernel map: families, ops and their kernels, with certificate, share of the bound and ratio to the best
    baseline.

    With --verbose also what an op template derived for each op: cases, mutants, launches.
    """
    check_op(op)
    from kernelworks.machine import machine as here
    from kernelworks.measure.bench.kernel_map import kernel_map
    from kernelworks.measure.bench.kernel_map import stale_kernels as without_certificate
    from kernelworks.report import map as report
    from kernelworks.report.terminal import stdout

    required_file(markdown)
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
    elif json:
        print_json(found)
    else:
        show(report.kernel_map(found, here().kind, stdout().width, verbose=verbose))


VERBS: dict[str, Callable[..., None]] = {"map": map_}
