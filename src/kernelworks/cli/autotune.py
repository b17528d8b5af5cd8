"""Races what a program calls against torch's own functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kernelworks.cli.console import device_named, guard_program, print_json, show
from kernelworks.cli.options import Device, Json

if TYPE_CHECKING:
    from kernelworks.records import AutotuneResult

__all__ = ["VERBS"]


def autotune(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            help="A Python script (its arguments after `--`), FILE.py:FUNCTION, or names of ops; every op without it.",
            metavar="[PROGRAM | OP...]",
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Race also what was settled before.")] = False,
    module: Annotated[
        bool, typer.Option("-m", "--module", help="PROGRAM is a module, as after python -m, or MODULE:FUNCTION.")
    ] = False,
    device: Device = None,
    json: Json = False,
) -> None:
    """Races what a program calls against torch's own functions, so that each call takes what is quickest here.

    Once for each kind of call, on the program's own tensors; of ops without a program the calls that `bench` times. A
    row of ours is taken from then on where it won by 3% in both halves of the race, host time counted, and torch's
    function everywhere else.
    """
    from kernelworks.report import autotune as report
    from kernelworks.report import terminal as console

    where = device_named(device)
    so = "only what it had called until then is settled"
    with guard_program(json=json, so=so), console.progress("settle") as progress:
        found = _run_autotune(what or [], module=module, device=where, again=again, progress=progress)
    if json:
        print_json(found)
    else:
        show(report.autotune_result(found))


def _run_autotune(
    what: Sequence[str], *, module: bool = False, device: str = "cpu", again: bool = False,
    progress: Callable[[str], None] | None = None,
) -> AutotuneResult:  # fmt: skip
    """Settles a program, as ``diagnose`` takes it, or ops by name. Raises TargetError if ``what`` is neither, and what
    the program raises."""
    from kernelworks.measure.autotune import autotune as race
    from kernelworks.measure.autotune import autotune_cases
    from kernelworks.ops import op_named, ops_named
    from kernelworks.profile.program import TargetError, from_target

    if module or (what and (".py" in what[0] or "/" in what[0])):
        if not what:
            raise TargetError("-m wants the name of a module")
        program = from_target(what[0], what[1:], module=module)
        return race(program.run, again=again, progress=progress)
    try:
        ops = [op_named(name) for name in what] or ops_named(None)
    except ValueError as error:
        raise TargetError(f"{error}; a program is a Python file or file.py:function") from None
    return autotune_cases(ops, device=device, again=again, progress=progress)


VERBS: dict[str, Callable[..., None]] = {"autotune": autotune}
