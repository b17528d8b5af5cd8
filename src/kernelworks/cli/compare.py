"""Two records beside each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from kernelworks.cli.console import AMBIGUOUS, FAILED, USAGE, fail, faults, print_json, show
from kernelworks.cli.names import readable_file
from kernelworks.cli.options import Json

__all__ = ["VERBS"]


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
    first: Annotated[
        Path,
        typer.Argument(
            help="A record: the JSON file that diagnose writes, or what bench or the suite print with --json."
        ),
    ],
    second: Annotated[Path, typer.Argument(help="Another of the same kind, measured later.")],
    limit: Annotated[
        str | None, typer.Option("--fail-if-slower", help="Exit code 1 where B is slower by more.", metavar="PERCENT")
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown, for a job's summary or a comment.")
    ] = False,
    json: Json = False,
) -> None:
    """What got slower or faster from one record to another, beyond the noise, and where it lies.

    With --fail-if-slower 3%: exit code 1 where something is slower by more than that and more than the noise, 3 where
    it looks so but within the noise or by rough figures, or where the two cannot be held against each other (another
    machine, or one that was too busy). Exit code 2 where a file is no record.

    Example: kernelworks compare main.json branch.json --fail-if-slower 3%
    """
    wanted = None if limit is None else _share(limit)
    if json and markdown:
        fail("--json and --markdown are two documents: ask for one", USAGE)
    readable_file(first)
    readable_file(second)
    from kernelworks.records import compare as comparing
    from kernelworks.report import compare as report
    from kernelworks.report.terminal import document

    with faults((comparing.NoRecord, FileNotFoundError)):
        found = comparing.compare(first, second, limit=wanted)
    if json:
        print_json(found)
    elif markdown:
        document(report.markdown(found))
    else:
        show(report.comparison(found))
    codes = {comparing.SAME: 0, comparing.SLOWER: FAILED, comparing.AMBIGUOUS: AMBIGUOUS}
    raise typer.Exit(codes[found.verdict])


VERBS: dict[str, Callable[..., None]] = {"compare": compare}
