"""Measures each call of a program, or of an op, against torch's own function; with ``--configs`` also the
configurations of a GPU kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kernelworks.cli.console import (
    FAILED,
    USAGE,
    check_device,
    device_named,
    fail,
    guard_program,
    measuring,
    print_json,
    show,
)
from kernelworks.cli.names import check_op, check_program, is_program
from kernelworks.cli.options import Device, Json

if TYPE_CHECKING:
    from kernelworks.dispatch.op import Op
    from kernelworks.records import AutotuneResult

__all__ = ["VERBS"]

NO_PROGRAM = "; a program is a Python file or file.py:function"
EVERY_OP = (
    "Every op: verified where there is no certificate, then timed. That takes hours; what is done is kept if you stop "
    "it (Ctrl-C). For one program: kernelworks autotune PROGRAM."
)
GPU_KERNEL = "triton"  # The kernel whose configurations are tried, unless --kernel names another.


def autotune(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            help="A Python script (its arguments after `--`), FILE.py:FUNCTION, or names of ops; every op without it.",
            metavar="[PROGRAM | OP...]",
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure again what has a tuning record.")] = False,
    module: Annotated[
        bool, typer.Option("-m", "--module", help="PROGRAM is a module, as after python -m, or MODULE:FUNCTION.")
    ] = False,
    device: Device = None,
    configs: Annotated[
        bool, typer.Option("--configs", help="First try the configurations of the OPs' GPU kernel. Slow; GPU only.")
    ] = False,
    kernel: Annotated[
        str | None, typer.Option(help=f"With --configs: the GPU kernel, {GPU_KERNEL} without it.", show_default=False)
    ] = None,
    cases: Annotated[
        list[str] | None, typer.Option("--case", help="With --configs: only this case; may be repeated.")
    ] = None,
    keep: Annotated[
        bool | None,
        typer.Option(
            "--keep/--look", help="With --configs: keep the winners, or show them and stop.", show_default=False
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Measures each call signature of a program against torch's own function, and keeps what is faster here.

    The program runs once, and each call signature is measured on the program's own tensors. For an OP, the calls are
    those that `bench` times. A kernel of ours serves a call from then on if it won by 3% in both halves of the race,
    host time counted. Otherwise torch's function runs.

    With --configs, the configurations that the OPs' GPU kernel lists are tried first: each is compared with the float64
    reference, then timed interleaved. Winners go into your own table for this kind of GPU, and the kernel is verified
    with them. A table that fails verification is taken back (exit code 1). The race then times the new table.
    """
    names = what or []
    if not configs and (kernel is not None or cases or keep is not None):
        fail("--kernel, --case, --keep and --look need --configs", USAGE)
    if configs and (not names or module or is_program(names)):
        fail("--configs takes names of ops, not a program", USAGE)
    if configs and device == "cpu":
        fail("--configs tries configurations of GPU kernels, so --device cannot be cpu", USAGE)
    _check(names, module=module)
    check_device("cuda" if configs else device)
    from kernelworks.report import autotune as report
    from kernelworks.report.terminal import Notice

    where = device_named("cuda" if configs else device)
    so = "only what it had called until then is autotuned"
    with guard_program(json=json, so=so), measuring("autotune") as progress:
        if not names:
            progress(Notice(EVERY_OP))
        if configs:
            found = _run_configs(
                names, kernel or GPU_KERNEL, cases=cases, keep=keep is not False, again=again, progress=progress
            )
        else:
            found = _run_autotune(names, module=module, device=where, again=again, progress=progress)
    if json:
        print_json(found)
    else:
        show(report.autotune_result(found))
    if not all(verification.certified for verification in found.verifications):
        raise typer.Exit(FAILED)


def _check(what: Sequence[str], *, module: bool) -> None:
    """Leaves if there is no such program, or no such op."""
    if module and not what:
        fail("-m wants the name of a module", USAGE)
    if module or is_program(what):
        check_program(what[0], module=module)
        return
    for name in what:
        check_op(name, NO_PROGRAM)


def _run_autotune(
    what: Sequence[str], *, module: bool = False, device: str = "cpu", again: bool = False,
    progress: Callable[[str], None] | None = None,
) -> AutotuneResult:  # fmt: skip
    """Autotunes a program, as ``diagnose`` takes it, or ops by name. Raises TargetError if ``what`` is neither, and
    what the program raises."""
    from kernelworks.measure.autotune import autotune as run
    from kernelworks.measure.autotune import autotune_cases
    from kernelworks.ops import ops_named
    from kernelworks.profile.program import from_target

    if module or is_program(what):
        program = from_target(what[0], what[1:], module=module)
        return run(program.run, again=again, progress=progress)
    ops = _named(what) or ops_named(None)
    return autotune_cases(ops, device=device, again=again, progress=progress)


def _run_configs(
    names: Sequence[str], kernel: str, *, cases: Sequence[str] | None, keep: bool, again: bool,
    progress: Callable[[str], None] | None = None,
) -> AutotuneResult:  # fmt: skip
    """Raises TargetError if the command line names an op, a kernel or a case that is not there."""
    from kernelworks.measure.autotune import autotune_configs
    from kernelworks.profile.target import TargetError

    ops = _named(names)
    try:
        return autotune_configs(ops, kernel, cases=cases, keep=keep, again=again, progress=progress)
    except ValueError as error:
        raise TargetError(str(error)) from None


def _named(names: Sequence[str]) -> list[Op]:
    """The ops of these names. Raises TargetError if one is not there."""
    from kernelworks.ops import op_named
    from kernelworks.profile.target import TargetError

    try:
        return [op_named(name) for name in names]
    except ValueError as error:
        raise TargetError(f"{error}{NO_PROGRAM}") from None


VERBS: dict[str, Callable[..., None]] = {"autotune": autotune}
