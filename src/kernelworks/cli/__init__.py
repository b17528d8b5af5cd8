"""The command line: ``kernelworks VERB``. One verb, one folder of the package, one page of the docs.

Results go to stdout, as tables or with ``--json`` as one JSON document; progress and remarks go to stderr.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | a verification failed, outputs disagreed, a kernel could not be built, or the program under diagnosis raised |
| 2 | the command line asks for something that does not exist |
| 3 | ambiguous: the machine was too busy for a figure |
| 70 | a fault of this package, which says nothing about what was asked |
| 130 | interrupted |

Every verb imports what it needs when it runs, so that ``--help`` need not wait for torch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from kernelworks.cli import (
    autotune,
    bench,
    cache,
    check_problem,
    climb,
    compare,
    descend,
    diagnose,
    experiment,
    explain,
    export,
    judge,
    learn,
    machine,
    map,
    predictions,
    search,
    show,
    swap,
    verify,
)
from kernelworks.cli.console import guard_command
from kernelworks.cli.help_texts import PANELS, VerbCommand, VerbGroup

__all__ = ["app", "main"]

app = typer.Typer(
    name="kernelworks",
    cls=VerbGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Point it at a PyTorch program: it says what bounds every kernel and how much time is recoverable, swaps "
    "in kernels that are verified on this machine, and shows the gain it predicted beside the gain it got.",
    epilog="Exit codes: 0 done, 1 a verification failed or outputs disagreed, 2 usage, 3 the machine was too busy to "
    "measure, 70 a fault of this package, 130 interrupted.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from kernelworks import __version__

        typer.echo(f"kernelworks {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


# In the order in which ``--help`` lists them.
VERBS = {
    **diagnose.VERBS, **show.VERBS, **machine.VERBS, **autotune.VERBS, **verify.VERBS, **bench.VERBS, **explain.VERBS,
    **learn.VERBS, **experiment.VERBS, **climb.VERBS, **descend.VERBS, **swap.VERBS, **map.VERBS, **compare.VERBS,
    **predictions.VERBS, **judge.VERBS, **check_problem.VERBS, **search.VERBS, **export.VERBS, **cache.VERBS,
}  # fmt: skip
for name, verb in VERBS.items():
    app.command(name=name, cls=VerbCommand, rich_help_panel=PANELS[name])(verb)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point of the ``kernelworks`` command."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    with guard_command(given):
        code = app(args=given, prog_name="kernelworks", standalone_mode=False)
        raise typer.Exit(code if isinstance(code, int) else 0)
