"""A search as data for whoever trains models."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from kernelworks.cli.console import USAGE, fail, faults, print_json
from kernelworks.cli.files import required_file
from kernelworks.cli.names import check_words, readable_file

__all__ = ["VERBS"]


def export(
    store: Annotated[Path, typer.Argument(help="What a search was kept in: `kernelworks search` says where.")],
    format: Annotated[
        str, typer.Option("--format", help="kernelbook, kevin or sft-jsonl.", metavar="FORMAT")
    ] = "sft-jsonl",
    out: Annotated[Path | None, typer.Option("--out", help="The file; stdout without it.", metavar="FILE")] = None,
    json: Annotated[
        bool, typer.Option("--json", help="With --out: print what was written as one JSON document.")
    ] = False,
) -> None:
    """A search as rows of JSON to train models on: problem, candidate, the judge's word, what came next, reward.

    kernelbook: problems and right candidates. kevin: turns of conversations, with scores and discounted rewards.
    sft-jsonl: a prompt and the better candidate that answers it, as messages.
    """
    check_words("--format", (format,), ("kernelbook", "kevin", "sft-jsonl"))
    if json and out is None:
        fail("--json needs --out FILE: without it the rows themselves go to stdout", USAGE)
    readable_file(store)
    from kernelworks.report import terminal as console
    from kernelworks.search.export import export as run

    required_file(out)
    with faults((ValueError, FileNotFoundError)):
        done = run(store, format, sys.stdout.write if out is None else out)
    if json:
        print_json(done)
        return
    left = ", ".join(f"{count} {why}" for why, count in done.left_out.items())
    said = f"{done.rows} rows of {done.candidates} candidates for {done.problem}{f'; left out: {left}' if left else ''}"
    console.stderr().print(said, highlight=False, markup=False, soft_wrap=True)


VERBS: dict[str, Callable[..., None]] = {"export": export}
