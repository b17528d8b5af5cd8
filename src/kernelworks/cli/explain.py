"""Which kernel an op takes, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from kernelworks.cli.console import check_device, device_named, faults, print_json, show
from kernelworks.cli.names import check_arguments, check_op
from kernelworks.cli.options import Device, Json

__all__ = ["VERBS"]


def explain(
    op: Annotated[str, typer.Argument(help="The op, as `kernelworks map` lists it.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="Shapes (16x4096, or 16x4096:bfloat16), numbers, NAME=VALUE. Without: a benchmark case."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Of the shapes that name none.")] = "float32",
    device: Device = None,
    json: Json = False,
) -> None:
    """Which kernel an op would take for these arguments, why each one above it declined, and what limits it.

    Example: kernelworks explain rms_norm 16x4096 4096 eps=1e-6 --dtype bfloat16
    """
    check_op(op)
    check_arguments(op, arguments or [])
    check_device(device)
    from kernelworks.cli.arguments import parse_arguments
    from kernelworks.diagnose.explain import explain as ask
    from kernelworks.ops import op_named
    from kernelworks.report.explain import explanation

    with faults((ValueError, TypeError)):
        found = ask(op, **parse_arguments(op_named(op), arguments or [], dtype, device_named(device)))
    if json:
        print_json(found)
    else:
        show(explanation(found))


VERBS: dict[str, Callable[..., None]] = {"explain": explain}
