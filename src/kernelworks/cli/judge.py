"""The verbs that judge what somebody else has made.

| exit code | meaning |
|---|---|
| 0 | right |
| 1 | refused, or not worth scoring |
| 2 | the command line asks for something that does not exist, or names no problem or candidate |
| 3 | no verdict: the problem cannot tell right from wrong, or no bound can be derived |
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from kernelworks.cli.console import AMBIGUOUS, FAILED, faults, show, told, write

__all__ = ["VERBS"]

CODES = {"right": 0, "refused": FAILED, "unsound": AMBIGUOUS, "undecided": AMBIGUOUS}
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout instead of tables.")]


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
    threads: Annotated[int | None, typer.Option(min=1, help="For every arm; torch's own count without it.")] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu or cuda; the problem's own without it.", metavar="DEVICE")
    ] = None,
    json: Json = False,
) -> None:
    """Whether a kernel from anywhere does what a problem asks, how quick it is, and if not, why it is refused.

    It runs in a process apart, on inputs that it cannot know; each answer is held against float64 and a bound derived
    from the problem; the clock is not its own. Exit code 0 right, 1 refused, 3 no verdict.
    """
    from kernelworks.judge import OVER, Budget
    from kernelworks.judge import judge as run
    from kernelworks.report import judge as report
    from kernelworks.report import terminal as console
    from kernelworks.report.html import whole

    words = tuple(word for word in over.split(",") if word)
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
        write(page, whole([found]))
    if json:
        told(found)
    else:
        show(report.judgement(found))
    raise typer.Exit(CODES[found.verdict])


def lint_problem(
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
    from kernelworks.judge.lint import lint as look
    from kernelworks.records.problem_check import NOT_LOOKED, NOT_WORTH, Lint
    from kernelworks.report import lint as report
    from kernelworks.report import terminal as console
    from kernelworks.report.html import whole

    found: list[Lint] = []
    with faults((ValueError,)), console.progress("lint-problem") as progress:
        for problem in problems:
            progress(problem)
            found.append(look(problem, device=device, threads=threads))
    if page is not None:
        write(page, whole(found))
    if json:
        told(found[0] if len(found) == 1 else found)
    else:
        show(report.lint(found[0]) if len(found) == 1 else report.lints(found))
    if any(one.verdict == NOT_WORTH for one in found):
        raise typer.Exit(FAILED)
    if any(one.verdict == NOT_LOOKED for one in found):
        raise typer.Exit(AMBIGUOUS)


VERBS: dict[str, Callable[..., None]] = {"judge": judge, "lint-problem": lint_problem}
