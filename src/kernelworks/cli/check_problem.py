"""Whether a problem is worth a score.

| exit code | meaning |
|---|---|
| 0 | worth a score |
| 1 | not worth a score |
| 2 | the command line asks for something that does not exist, or names no problem |
| 3 | it could not be looked at |
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from kernelworks.cli import names
from kernelworks.cli.console import AMBIGUOUS, FAILED, faults, print_json, show
from kernelworks.cli.files import writable, write
from kernelworks.cli.options import Json

__all__ = ["VERBS"]


def check_problem(
    problems: Annotated[list[str], typer.Argument(help="Files with problems, or ops of ours.", metavar="PROBLEM...")],
    device: Annotated[
        str | None, typer.Option("--device", help="For whose rates sizes are judged: cpu or cuda.", metavar="DEVICE")
    ] = None,
    page: Annotated[Path | None, typer.Option("--page", help="Also write a page to this file.", metavar="FILE")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="torch's own count without it.")] = None,
    json: Json = False,
) -> None:
    """Whether a problem is worth a score: what passes without doing its work, and what its reference does for nothing.

    Zeros, a constant, an input, the answer to other inputs and fewer bits are held against the bound that is derived
    from the problem. Exit code 0 where all are worth scoring, perhaps with care, 1 where one is not, 3 where one is too
    slow or too large to be looked at.
    """
    for given in problems:
        names.check_problem(given)
    names.check_words("--device", (device or "cpu",), ("cpu", "cuda"))  # a GPU is not needed: its rates are
    from kernelworks.judge.formats import read_problem
    from kernelworks.judge.problem_check import check_problem as look
    from kernelworks.records.problem_check import NOT_LOOKED, NOT_WORTH, ProblemCheck
    from kernelworks.report import check_problem as report
    from kernelworks.report import terminal as console
    from kernelworks.report.html import render_page

    page = writable(page)
    found: list[ProblemCheck] = []
    with faults((ValueError, FileNotFoundError)), console.progress("check-problem") as progress:
        for problem in [read_problem(problem) for problem in problems]:
            progress(problem.name)
            found.append(look(problem, device=device, threads=threads))
    if page is not None:
        write(page, render_page(found))
    if json:
        print_json(found[0] if len(found) == 1 else found)
    else:
        show(report.problem_check(found[0]) if len(found) == 1 else report.problem_checks(found))
    if any(one.verdict == NOT_WORTH for one in found):
        raise typer.Exit(FAILED)
    if any(one.verdict == NOT_LOOKED for one in found):
        raise typer.Exit(AMBIGUOUS)


VERBS: dict[str, Callable[..., None]] = {"check-problem": check_problem}
