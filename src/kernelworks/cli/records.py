"""The verbs that measure nothing: they read what is on record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from kernelworks.cli.console import AMBIGUOUS, FAILED, USAGE, fail, faults, show, told, write

__all__ = ["VERBS"]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout instead of tables.")]


def map_(
    op: Annotated[str | None, typer.Argument(help="One op; every op without it.")] = None,
    stale: Annotated[
        bool, typer.Option("--stale", help="Only a line for each row without a certificate that holds, GPUs' too.")
    ] = False,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="Write the docs' reference page here.")] = None,
    json: Json = False,
) -> None:
    """The kernel map: families, ops and rows, with certificate, share of the bound and ratio to the best baseline."""
    from kernelworks.machine import machine as here
    from kernelworks.measure.bench.kernel_map import kernel_map
    from kernelworks.measure.bench.kernel_map import stale as without_certificate
    from kernelworks.report import map as report

    with faults((ValueError,)):
        if stale:
            lines = without_certificate(op)
            if json:
                told(lines)
            else:
                typer.echo("\n".join(lines or ["every row has a certificate that holds"]))
            return
        found = kernel_map(op)
    if markdown is not None:
        write(markdown, report.markdown(found))
    elif json:
        told(found)
    else:
        show(report.kernel_map(found, here().kind))


def _share(given: str) -> float:
    """``3%`` as 0.03."""
    try:
        value = float(given.removesuffix("%")) / 100
    except ValueError:
        value = -1.0
    if not given.endswith("%") or not 0 <= value < 10:
        fail(f"--fail-if-slower takes a percentage such as 3%, got {given!r}", USAGE)
    return value


def compare(
    first: Annotated[Path, typer.Argument(help="A record: of diagnose --json, of bench --json, or of the suite.")],
    second: Annotated[Path, typer.Argument(help="Another of the same kind, measured later.")],
    limit: Annotated[
        str | None, typer.Option("--fail-if-slower", help="Exit code 1 where B is slower by more.", metavar="PERCENT")
    ] = None,
    json: Json = False,
) -> None:
    """What got slower or faster from one record to another, beyond the noise, and where it lies.

    With --fail-if-slower 3%: exit code 1 where something is slower by more than that and more than the noise, 3 where
    it looks so but within the noise or by rough figures, or where the two cannot be held against each other (another
    machine, or one that was too busy). Exit code 2 where a file is no record.

    Example: kernelworks compare main.json branch.json --fail-if-slower 3%
    """
    from kernelworks.records import compare as comparing
    from kernelworks.report import compare as report

    wanted = None if limit is None else _share(limit)
    with faults((comparing.NoRecord, FileNotFoundError)):
        found = comparing.compare(first, second, limit=wanted)
    if json:
        told(found)
    else:
        show(report.comparison(found))
    codes = {comparing.SAME: 0, comparing.SLOWER: FAILED, comparing.AMBIGUOUS: AMBIGUOUS}
    raise typer.Exit(codes[found.verdict])


def truth(
    remedy: Annotated[str, typer.Option("--remedy", help="Only this remedy.")] = "",
    kind: Annotated[str, typer.Option("--kind", help="Only machines whose kind holds this text.")] = "",
    html: Annotated[Path | None, typer.Option("--html", help="Also write a page to this file.")] = None,
    png: Annotated[Path | None, typer.Option("--png", help="Also write a picture to this file.")] = None,
    json: Json = False,
) -> None:
    """How true the predictions of fixes were: predicted against got, for each kind of machine and each remedy.

    Every remedy that --fix measures leaves a line in this machine's cache; the next prediction learns from it.
    """
    from kernelworks.records.predictions import truth as read
    from kernelworks.report import truth as report
    from kernelworks.report.terminal import stdout

    found = read(kind, remedy)
    if html is not None:
        write(html, report.document(found))
    if png is not None:
        if not found.judged:
            fail(report.sentence(found), FAILED)
        with faults():
            png.parent.mkdir(parents=True, exist_ok=True)
            png.write_bytes(report.png(found))
    if json:
        told(found)
    else:
        show(report.truth(found, stdout().width))


VERBS: dict[str, Callable[..., None]] = {"map": map_, "compare": compare, "truth": truth}
