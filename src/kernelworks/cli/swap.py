"""What a swap would replace in a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from kernelworks.cli.console import USAGE, fail, guard_program, print_json, show
from kernelworks.cli.names import check_program
from kernelworks.cli.options import Json

__all__ = ["VERBS"]


def swap(
    model: Annotated[str, typer.Argument(help="FILE.py:FUNCTION that returns the model.")],
    json: Json = False,
) -> None:
    """What a swap would replace in a model, and what it would leave and why. Nothing is kept: it is undone at once."""
    if ".py:" not in model:
        fail(f"the model must be given as FILE.py:FUNCTION, got {model!r}", USAGE)
    check_program(model)
    from rich.text import Text

    from kernelworks.cli.arguments import model_of
    from kernelworks.nn.swap import swap as put

    with guard_program(json=json):
        found = model_of(model)
        done = put(found, verbose=False)
        text, outlooks = str(done), done.outlooks()
        done.undo()
    if json:
        kernels = [[list(o.kernels) for o in of] for of in outlooks]
        print_json(
            {
                "replaced": [{**vars(r), "rows": of} for r, of in zip(done.replaced, kernels, strict=True)],
                "left": done.left,
            }
        )
        return
    show(Text(text))


VERBS: dict[str, Callable[..., None]] = {"swap": swap}
