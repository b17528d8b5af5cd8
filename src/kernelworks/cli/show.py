"""Any record, printed again: on any machine, without measuring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from kernelworks.cli.console import FAILED, USAGE, fail, faults, print_json
from kernelworks.cli.console import show as show_table
from kernelworks.cli.files import apply_command, fix_patch, required_file, why_no_patch, write
from kernelworks.cli.names import readable_file
from kernelworks.cli.options import Json, Verbose

__all__ = ["VERBS"]


def show(
    record: Annotated[Path, typer.Argument(help="A record: of diagnose, or what another verb printed with --json.")],
    html: Annotated[Path | None, typer.Option("--html", help="Also write it as one page.", metavar="FILE")] = None,
    patch: Annotated[
        Path | None,
        typer.Option("--patch", help="Write what a fix applied as a diff of the program's source.", metavar="FILE"),
    ] = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Prints a record again, as the verb that made it does, or writes its page or its fix. Nothing is measured.

    A record may come from another machine. Exit code 2 if the file is no record, or one of a newer version; or if
    there is no fix in it to write.

    Example: kernelworks show kernelworks-out/train.json --html train.html
    """
    readable_file(record)
    from kernelworks.records.schema import NoRecord, read_record
    from kernelworks.report.next_steps import Files
    from kernelworks.report.record_view import record_view
    from kernelworks.report.terminal import stderr, stdout

    with faults((NoRecord, OSError)):
        found = read_record(record)
    required_file(html)
    several = found if isinstance(found, list) else [found]
    said = "" if patch is None else _write_patch(several, patch)
    paged = ""
    if html is not None:
        from kernelworks.report.html import render_page

        paged = str(html) if write(html, render_page(several)) else ""
    if json:
        print_json(found)
    else:
        plan = record.with_suffix(".plan.json")
        written = str(patch) if said else ""
        files = Files(paged, str(record), str(plan) if plan.exists() else "", written)
        show_table(record_view(several, stdout().width, verbose=verbose, files=files))
    if said:  # what was asked for stands last
        stderr().print(said, soft_wrap=True)
    if (html is not None and not paged) or (patch is not None and not said):
        raise typer.Exit(FAILED)


def _write_patch(several: Sequence[Any], patch: Path) -> str:
    """What to do with the patch; "" if it could not be written."""
    text = "".join(fix_patch(one) for one in several)
    if not text:
        fail(f"no patch: {why_no_patch(several[0])}", USAGE)
    required_file(patch)
    return apply_command(next(one for one in several if fix_patch(one)), patch) if write(patch, text) else ""


VERBS: dict[str, Callable[..., None]] = {"show": show}
