"""Whether somebody's kernel is right, and how fast.

| exit code | meaning |
|---|---|
| 0 | right |
| 1 | refused |
| 2 | the command line asks for something that does not exist, or names no problem or candidate |
| 3 | no verdict: the problem cannot tell right from wrong, or no bound can be derived |
| 70 | a fault of the judge's own: it says nothing about the candidate |
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from kernelworks.cli.console import AMBIGUOUS, FAILED, check_device, faults, print_json, show
from kernelworks.cli.files import writable, write
from kernelworks.cli.names import check_problem, check_words, readable_file
from kernelworks.cli.options import Json

__all__ = ["VERBS"]

CODES = {"right": 0, "refused": FAILED, "unsound": AMBIGUOUS, "undecided": AMBIGUOUS}


def judge(
    candidate: Annotated[
        Path, typer.Argument(help="A file with a candidate: ModelNew, or what the problem's format has.")
    ],
    problem: Annotated[Path, typer.Option("--problem", "-p", help="A file with a problem.")],
    over: Annotated[
        str, typer.Option("--over", help="What it is timed against, by comma: eager,compiled,ours.", metavar="WORDS")
    ] = "eager",
    page: Annotated[Path | None, typer.Option("--page", help="Also write a page to this file.", metavar="FILE")] = None,
    forward: Annotated[
        bool, typer.Option("--forward", help="It is for a forward alone: ask for no gradients.")
    ] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="For every variant; torch's own count without it.")] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu or cuda; the problem's own without it.", metavar="DEVICE")
    ] = None,
    json: Json = False,
) -> None:
    """Whether a kernel from anywhere does what a problem asks, how quick it is, and if not, why it is refused.

    It runs in a process apart, on inputs that it cannot know; each answer is held against float64 and a bound derived
    from the problem; the clock is not its own. Exit code 0 right, 1 refused, 3 no verdict,
    70 a fault of the judge's own.
    """
    check_problem(str(problem))
    readable_file(candidate)
    check_device(device)
    from kernelworks.records.judgement import BASELINES

    words = tuple(word for word in over.split(",") if word)
    check_words("--over", words, BASELINES)
    from kernelworks.judge import OVER, Budget
    from kernelworks.judge import judge as run
    from kernelworks.report import judge as report
    from kernelworks.report import terminal as console
    from kernelworks.report.html import render_page

    page = writable(page)
    with faults((ValueError, FileNotFoundError)), console.progress("judge") as progress:
        found = run(
            candidate,
            problem,
            over=words or OVER,
            budget=Budget(gradients=0) if forward else None,
            threads=threads,
            device=device,
            progress=progress,
        )
    if page is not None:
        write(page, render_page([found]))
    if json:
        print_json(found)
    else:
        show(report.judgement(found))
    raise typer.Exit(CODES[found.verdict])


VERBS: dict[str, Callable[..., None]] = {"judge": judge}
