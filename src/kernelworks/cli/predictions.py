"""What fixes were predicted to bring beside what they brought."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from kernelworks.cli.console import FAILED, USAGE, fail, faults, print_json, show
from kernelworks.cli.files import writable, write
from kernelworks.cli.names import optimization_names
from kernelworks.cli.options import Json

__all__ = ["VERBS"]


def predictions(
    optimization: Annotated[str, typer.Option("--optimization", help="Only this optimization.")] = "",
    kind: Annotated[str, typer.Option("--kind", help="Only machines whose kind holds this text.")] = "",
    html: Annotated[Path | None, typer.Option("--html", help="Also write a page to this file.")] = None,
    png: Annotated[Path | None, typer.Option("--png", help="Also write a picture to this file.")] = None,
    json: Json = False,
) -> None:
    """How true the predictions of fixes were: predicted against got, for each kind of machine and each optimization.

    Every optimization that --fix measures leaves a line in this machine's cache; the next prediction learns from it.
    """
    from kernelworks.records.predictions import prediction_accuracy as read
    from kernelworks.report import predictions as report
    from kernelworks.report.optional_pictures import EXTRA
    from kernelworks.report.terminal import stdout

    if optimization:
        _check_optimization(optimization)
    html, png = writable(html), writable(png)
    if png is not None and importlib.util.find_spec("matplotlib") is None:
        fail(f"--png needs matplotlib: {EXTRA}", FAILED)
    found = read(kind, optimization)
    if html is not None:
        write(html, report.document(found))
    if png is not None:
        if not found.outcome_count:
            fail(report.sentence(found), FAILED)
        with faults():
            png.parent.mkdir(parents=True, exist_ok=True)
            png.write_bytes(report.png(found))
    if json:
        print_json(found)
    else:
        show(report.prediction_accuracy(found, stdout().width))


def _check_optimization(name: str) -> None:
    from kernelworks.records.history import read_outcomes

    known = {*optimization_names(), *(each.optimization for each in read_outcomes())}
    if name not in known:
        fail(f"no optimization is named {name!r}; there are {', '.join(sorted(known))}", USAGE)


VERBS: dict[str, Callable[..., None]] = {"predictions": predictions}
