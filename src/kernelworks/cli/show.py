"""Any record, printed again: on any machine, without measuring."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from kernelworks.cli.console import faults, print_json
from kernelworks.cli.console import show as show_table
from kernelworks.cli.files import required_file, write
from kernelworks.cli.names import readable_file
from kernelworks.cli.options import Json, Verbose

__all__ = ["VERBS"]


def show(
    record: Annotated[Path, typer.Argument(help="A record: of diagnose, or what another verb printed with --json.")],
    html: Annotated[Path | None, typer.Option("--html", help="Also write it as one page.", metavar="FILE")] = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Prints a record again, as the verb that made it does, or writes its page. Nothing is measured.

    A record may come from another machine. Exit code 2 if the file is no record, or one of a newer version.

    Example: kernelworks show kernelworks-out/train.json --html train.html
    """
    readable_file(record)
    from kernelworks.records.schema import NoRecord, read_record
    from kernelworks.report.next_steps import Files
    from kernelworks.report.record_view import record_view
    from kernelworks.report.terminal import stdout

    with faults((NoRecord, OSError)):
        found = read_record(record)
    required_file(html)
    several = found if isinstance(found, list) else [found]
    if html is not None:
        from kernelworks.report.html import render_page

        write(html, render_page(several))
    if json:
        print_json(found)
        return
    plan = record.with_suffix(".plan.json")
    files = Files(page=str(html or ""), record=str(record), plan=str(plan) if plan.exists() else "")
    show_table(record_view(several, stdout().width, verbose=verbose, files=files))


VERBS: dict[str, Callable[..., None]] = {"show": show}
