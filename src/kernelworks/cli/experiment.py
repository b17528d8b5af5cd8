"""One small experiment about one concept, on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from kernelworks.cli.console import faults, measuring, print_json, show
from kernelworks.cli.files import writable, write
from kernelworks.cli.options import Json, Rough

__all__ = ["VERBS"]


def experiment(
    name: Annotated[
        str | None, typer.Argument(help="An experiment's name; without it they are listed.", metavar="NAME")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Also write it as one page.", metavar="FILE")] = None,
    rough: Rough = False,
    json: Json = False,
) -> None:
    """Small experiments, each about one concept: a question, what to expect, and what comes out on this machine.

    Each belongs to a page of the documentation and takes seconds. Exit code 2 if no experiment has that name, 1
    without a C++ compiler if it needs one, 3 while other processes keep the cores busy if it is timed; with --rough
    figures are given all the same, marked.

    Example: kernelworks experiment strides --html strides.html
    """
    from kernelworks.experiment.list import PLANS, plan_named
    from kernelworks.experiment.plan import run_plan
    from kernelworks.report.experiment import terminal

    if name is None:
        entries = [(plan.name, plan.question, plan.seconds) for plan in PLANS]
        if json:
            print_json([dict(zip(("name", "question", "seconds"), entry, strict=True)) for entry in entries])
        else:
            show(terminal.entries(entries))
        return
    with faults((ValueError,)):
        plan = plan_named(name)
    html = writable(html)
    with faults(rough=True), measuring(f"experiment {name}") as progress:
        record = run_plan(plan, progress, rough=rough)
    if html is not None:
        from kernelworks.report.html import render_page

        write(html, render_page([record]))
    if json:
        print_json(record)
        return
    from kernelworks.report.terminal import stdout

    show(terminal.experiment(record, stdout().width))


VERBS: dict[str, Callable[..., None]] = {"experiment": experiment}
