"""Tries the configurations of a GPU row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from kernelworks.cli.console import FAILED, faults, print_json, show
from kernelworks.cli.options import Json

__all__ = ["VERBS"]


def tune(
    op: Annotated[str, typer.Argument(help="The op, as `kernelworks map` lists it.")],
    row: Annotated[str, typer.Option(help="The GPU row.")] = "triton",
    cases: Annotated[list[str] | None, typer.Option("--case", help="Only this case; may be repeated.")] = None,
    keep: Annotated[bool, typer.Option("--keep/--look", help="Keep the winners, or only show them.")] = True,
    json: Json = False,
) -> None:
    """Tries the configurations that a GPU row offers, on this GPU: each gated on float64, then timed interleaved.

    Winners go into your own table for this kind of GPU, and the row is proved with them; a table whose proof fails is
    taken back (exit code 1).
    """
    from kernelworks.measure.tune import tune as run
    from kernelworks.records import ConfigTuning
    from kernelworks.report import terminal as console
    from kernelworks.report import verify as proofs_report
    from kernelworks.report.tune import tuning

    found: list[ConfigTuning] = []
    with faults((ValueError, RuntimeError)), console.progress("tune") as progress:
        found, verifications = run(op, row, cases=cases, keep=keep, progress=progress)
    if json:
        print_json({"tuned": found, "verifications": verifications})
    else:
        show(tuning(found))
        if verifications:
            show(proofs_report.verifications(verifications))
    if not all(verification.certified for verification in verifications):
        raise typer.Exit(FAILED)


VERBS: dict[str, Callable[..., None]] = {"tune": tune}
