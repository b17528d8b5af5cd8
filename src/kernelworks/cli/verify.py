"""Verifies kernels against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from kernelworks.cli.console import FAILED, faults, print_json, show
from kernelworks.cli.names import check_op
from kernelworks.cli.options import Json

if TYPE_CHECKING:
    from kernelworks.dispatch.op import Op

__all__ = ["VERBS"]


def verify(
    what: Annotated[
        str | None, typer.Argument(help="OP or OP.KERNEL; every op without it.", metavar="[OP[.KERNEL]]")
    ] = None,
    case: Annotated[str | None, typer.Option(help="Only this case, to see a failure again.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Only this dtype.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes that share the cases of a kernel.")] = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="Only kernels that could be chosen and lack a certificate here.")
    ] = False,
    json: Json = False,
) -> None:
    """Verifies kernels against float64 on this machine, and certifies those that are.

    Every case in every dtype, guard pages on both sides of every buffer, poisoned outputs, gradients, two threads at
    once, and every known-wrong mutant rejected. Exit code 1 if a kernel is refused.
    """
    if what is None or what.partition(".")[0]:
        check_op(what and what.partition(".")[0])
    from kernelworks.build import native
    from kernelworks.build.cache import forget_failures
    from kernelworks.records import Verification
    from kernelworks.report import terminal as console
    from kernelworks.report import verify as report
    from kernelworks.verify import lacking, verify_missing
    from kernelworks.verify import verify as run

    verifications: list[Verification] = []
    with faults((ValueError, RuntimeError)), console.progress("verify") as progress:
        chosen, only = _named(what, case, dtype)
        forget_failures()
        native.provide(progress)
        wanted = [*lacking(chosen, only)] if missing else [(found.name, only or None) for found in chosen]
        if missing and case is None and dtype is None:
            verifications = verify_missing([(op, kernel) for op, kernel in wanted if kernel], progress=progress)
        else:
            for op, kernel in wanted:
                verifications += run(op, kernel, case=case, dtype=dtype, jobs=jobs, progress=progress)
    if json:
        print_json(verifications)
    elif verifications:
        show(report.verifications(verifications))
    else:
        console.stderr().print("every row that runs here has a certificate that holds")
    if not all(report.is_verified(verification) for verification in verifications):
        raise typer.Exit(FAILED)


def _named(what: str | None, case: str | None, dtype: str | None) -> tuple[list[Op], str]:
    """The ops and the kernel that are meant. Raises ValueError for a name that is not there: nothing is built yet."""
    from kernelworks.ops import ops_named

    op, dot, kernel = (what or "").partition(".")
    if dot and not kernel:
        raise ValueError(f"give OP or OP.KERNEL, got {what!r}")
    chosen = ops_named(op if what else None)
    if kernel:
        chosen[0].kernel(kernel)
    known = {each.name for found in chosen for each in (*found.contract.cases, *found.contract.device_cases)}
    if case is not None and case not in known:
        raise ValueError(f"no case of {op or 'any op'} is named {case!r}")
    dtypes = list(dict.fromkeys(str(d).removeprefix("torch.") for found in chosen for d in found.contract.dtypes))
    if dtype is not None and dtype not in dtypes:
        raise ValueError(f"dtype must be one of {', '.join(dtypes)}, got {dtype!r}")
    return chosen, kernel


VERBS: dict[str, Callable[..., None]] = {"verify": verify}
