"""From a program down to the machine code that it spends its time in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from kernelworks.cli.console import USAGE, fail, guard_program, measuring, print_json, show
from kernelworks.cli.names import check_program
from kernelworks.cli.options import Json, Verbose

__all__ = ["VERBS"]


def descend(
    program: Annotated[str, typer.Argument(help="A Python script, or FILE.py:FUNCTION to call without arguments.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="The script's own arguments, after `--`.", metavar="[-- ARGUMENTS]")
    ] = None,
    op: Annotated[
        str, typer.Option("--op", help="Only operators with this in their name: softmax, addmm.", metavar="NAME")
    ] = "",
    most: Annotated[int, typer.Option("--most", help="So many operators, those with the most time.", min=1)] = 5,
    seconds: Annotated[float, typer.Option("--seconds", help="How long to sample, at the most.", min=0.1)] = 8.0,
    verbose: Verbose = False,
    module: Annotated[
        bool, typer.Option("-m", "--module", help="PROGRAM is a module, as after python -m, or MODULE:FUNCTION.")
    ] = False,
    json: Json = False,
) -> None:
    """The layers under a program on a CPU: module, operator, dispatcher, roofline, function, hot loop.

    The program runs a few times under torch's profiler, while a timer notes which instruction each thread runs. Each
    operator is shown with the functions of machine code that it spent its time in, torch's own and its libraries' too,
    and with the innermost loop that has the most samples: what an iteration does, and what the counts say. Nothing is
    changed. Exit code 2 if no operator has that name, 1 without a C++ compiler or if the program raises.

    Example: kernelworks descend train.py:step --op addmm
    """
    check_program(program, module=module)
    with guard_program(json=json, so="there is nothing to show"), measuring("descend") as progress:
        from kernelworks.descend.stack import OnGpu
        from kernelworks.descend.stack import descend as run
        from kernelworks.profile.program import from_target

        target = from_target(program, arguments or [], module=module)
        try:
            found = run(target, op=op, most=most, seconds=seconds, say=progress)
        except OnGpu as error:
            fail(str(error), USAGE)
        except LookupError as error:
            fail(str(error.args[0]), USAGE)
    if json:
        print_json(found)
        return
    from kernelworks.report.descent import descent

    show(descent(found, verbose=verbose))


VERBS: dict[str, Callable[..., None]] = {"descend": descend}
