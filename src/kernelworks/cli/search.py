"""Looks for kernels.

| exit code | meaning |
|---|---|
| 0 | a candidate is better than what the search began with: right twice, quicker by more than the noise |
| 1 | none was; or none is right; or it was to be kept and was not |
| 2 | the command line asks for something that does not exist, or a file is not what it should be |
| 3 | the problem allows no verdict |
| 130 | interrupted before the best was judged again; the same command goes on |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from kernelworks.cli.console import AMBIGUOUS, FAILED, USAGE, check_device, fail, faults, print_json, show
from kernelworks.cli.files import writable, write
from kernelworks.cli.interrupts import INTERRUPTED_CODE, end_after_this
from kernelworks.cli.names import check_budget, check_problem, check_words, readable_file
from kernelworks.cli.options import Json

__all__ = ["VERBS"]

CODES = {"better": 0, "no better": FAILED, "none right": FAILED, "no verdict": AMBIGUOUS}
Device = Annotated[
    str | None, typer.Option("--device", help="cpu or cuda; the problem's own without it.", metavar="DEVICE")
]
Store = Annotated[
    Path | None,
    typer.Option("--store", help="The file that keeps the search, by default in the cache.", metavar="FILE"),
]


def search(
    problem: Annotated[str, typer.Argument(help="A file with a problem, or an op of ours: rms_norm, rms_norm:CASE.")],
    parent: Annotated[
        list[Path] | None, typer.Option("--parent", help="A candidate to begin with; several may be given.")
    ] = None,
    proposers: Annotated[
        str | None,
        typer.Option("--proposers", help="Who proposes, by comma; by default all that can.", metavar="NAMES"),
    ] = None,
    budget: Annotated[float, typer.Option("--budget", help="Seconds of this run.", metavar="SECONDS")] = 600.0,
    most: Annotated[
        int | None, typer.Option("--most", min=1, help="Candidates of the whole search, with those of runs before.")
    ] = None,
    store: Store = None,
    over: Annotated[str, typer.Option("--over", help="The baseline: eager, compiled or ours.")] = "eager",
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", help="Where a language model is asked for candidates.", metavar="URL")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Its name there.", metavar="NAME")] = None,
    command: Annotated[
        str | None,
        typer.Option("--command", help="Or a command that reads a prompt.", metavar="CMD"),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--with", help="An option of a proposer's.", metavar="PROPOSER.NAME=VALUE")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the best candidate's text to this file.", metavar="FILE")
    ] = None,
    page: Annotated[Path | None, typer.Option("--page", help="Also write a page to this file.", metavar="FILE")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="For every variant; torch's own count without it.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of what proposers draw.")] = 0,
    device: Device = None,
    workers: Annotated[
        int, typer.Option("--workers", min=1, help="Processes that judge beside each other, each with its own cores.")
    ] = 1,
    keep: Annotated[
        bool, typer.Option("--keep", help="Verify the best and put it into its op package; of an op of ours.")
    ] = False,
    json: Json = False,
) -> None:
    """Looks for a kernel that does what a problem asks, quicker than what there is: propose, build, judge, go on.

    Every candidate and its verdict is kept; a search that was ended or killed goes on with the same command. Exit code
    0 where one is better than what the search began with, 1 where none is, 3 no verdict, 130 interrupted.
    """
    _check(problem, parent or (), over, budget, device)
    named = _options(option or (), {"endpoint": endpoint, "model": model, "command": command})
    from kernelworks.report import search as report
    from kernelworks.report import terminal as console
    from kernelworks.report.html import render_page
    from kernelworks.search import search as run

    out, page = writable(out), writable(page)
    end_after_this()
    with faults((ValueError, FileNotFoundError)), console.progress("search") as progress:
        found = run(
            problem,
            device=device,
            parents=parent or (),
            proposers=None if proposers is None else [name for name in proposers.split(",") if name],
            budget_s=budget,
            most=most,
            store=store,
            over=over,
            threads=threads, seed=seed,
            options=named,
            workers=workers, keep=keep, progress=progress,
        )  # fmt: skip
    if out is not None and found.best is not None:
        write(out, found.best.code)
    if page is not None:
        write(page, render_page([found]))
    if json:
        print_json(found)
    else:
        show(report.search(found))
    refused = keep and (found.kept is None or found.kept.why)
    code = CODES[found.outcome] or (FAILED if refused else 0)
    raise typer.Exit(INTERRUPTED_CODE if found.stopped == "interrupted" else code)


def _check(problem: str, parents: Sequence[Path], over: str, budget: float, device: str | None) -> None:
    """Leaves if one of these is not there, before torch is loaded."""
    check_problem(problem)
    check_budget(budget)
    check_device(device)
    for path in parents:
        readable_file(path)
    from kernelworks.records.judgement import BASELINES

    check_words("--over", (over,), BASELINES)


def _options(given: Sequence[str], of_model: Mapping[str, str | None]) -> dict[str, str]:
    for one in given:
        if "=" not in one:
            fail(f"--with takes PROPOSER.NAME=VALUE, got {one!r}", USAGE)
    named = {f"model.{name}": value for name, value in of_model.items() if value is not None}
    return named | {name: value for name, _, value in (one.partition("=") for one in given)}


VERBS: dict[str, Callable[..., None]] = {"search": search}
