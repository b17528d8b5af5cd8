"""Where a program's time goes, and with ``--fix`` what brings some of it back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelworks.cli.console import AMBIGUOUS, FAILED, USAGE, fail, guard_program, print_json, show, write
from kernelworks.cli.options import Json, Rough
from kernelworks.cli.trace import diagnose_trace_file

if TYPE_CHECKING:
    from kernelworks.records import Diagnosis

__all__ = ["VERBS"]


def diagnose(
    program: Annotated[
        str | None, typer.Argument(help="A Python script, or FILE.py:FUNCTION to call without arguments.")
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(help="The script's own arguments, after `--`.", metavar="[-- ARGUMENTS]")
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Try optimizations: each predicted, verified, measured.")] = False,
    budget: Annotated[
        float | None, typer.Option("--budget", help="Seconds for a fix.", metavar="SECONDS", show_default="240")
    ] = None,
    allow: Annotated[
        str, typer.Option("--allow", help="Changes of numbers to try, by comma: tf32,bf16,int8,fp8.", metavar="WORDS")
    ] = "",
    plan: Annotated[
        Path | None, typer.Option("--plan", help="With --fix: put this plan in place, search nothing.", metavar="FILE")
    ] = None,
    patch: Annotated[
        Path | None, typer.Option("--patch", help="With --fix: write the best program as a diff.", metavar="FILE")
    ] = None,
    counters: Annotated[
        bool, typer.Option("--counters", help="On a GPU: check our flop and bytes against Nsight Compute's counters.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the page and the JSON.", show_default="kernelworks-out")
    ] = None,
    rough: Rough = False,
    module: Annotated[
        bool, typer.Option("-m", "--module", help="PROGRAM is a module, as after python -m, or MODULE:FUNCTION.")
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", help="Read a trace of torch.profiler or Nsight; run nothing.", metavar="FILE"),
    ] = None,
    json: Json = False,
) -> None:
    """Where a program's time goes on this machine, what bounds each part, and what is recoverable.

    Prints a table, worst first, and the whole wall clock cut by cause; writes the same as one self-contained HTML page
    and as JSON. With --fix: also the gain that was predicted beside the gain that was got.
    """
    if trace is not None:
        if program is not None or fix or counters or rough or module or plan or patch or allow or budget is not None:
            fail("--trace reads a file and runs nothing: it goes with --out and --json alone", USAGE)
        raise typer.Exit(diagnose_trace_file(trace, out, json=json))
    if program is None:
        fail("name a program (a script, or FILE.py:FUNCTION), or a trace with --trace FILE; see --help", USAGE)
    from kernelworks.diagnose import diagnose_script
    from kernelworks.records import to_json
    from kernelworks.report import diagnose as report
    from kernelworks.report import page
    from kernelworks.report import terminal as console

    if patch is not None and not fix:
        fail("--patch writes what a fix finds: it needs --fix", USAGE)
    with guard_program(json=json), console.progress("diagnose") as progress:
        record: Diagnosis = diagnose_script(
            program, tuple(arguments or ()), fix=fix, progress=progress, counters=counters, rough=rough, module=module,
            fix_s=budget, allow=tuple(word for word in allow.split(",") if word), plan=plan,
        )  # fmt: skip
    if json:
        print_json(record)
    else:
        show(report.diagnosis(record, console.stdout().width))
    if patch is not None:
        made = record.fix.patch if record.fix is not None else ""
        if made:
            write(patch, made)
        said = f"the patch: {patch}, for `git apply`" if made else "no patch: the fix changes nothing in a source file"
        console.stderr().print(f"\n{said}", soft_wrap=True)
    if out is not None or not json:
        folder = out or Path("kernelworks-out")
        name = _file(program, module=module)
        write(folder / f"{name}.html", page.diagnosis(record))
        write(folder / f"{name}.json", to_json(record) + "\n")
        if record.fix is not None and record.fix.plan:
            write(folder / f"{name}.plan.json", to_json(record.fix.plan) + "\n")
        console.stderr().print(f"\nthe page: {folder / name}.html   the record: {folder / name}.json", soft_wrap=True)
    raise typer.Exit({"": 0, "refused": FAILED, "ambiguous": AMBIGUOUS}[report.outcome(record)])


def _file(program: str, *, module: bool) -> str:
    """What the page is called: ``minilm`` for ``examples/minilm.py:embed``, the module's name for ``-m``."""
    if module:
        return program.partition(":")[0]
    return Path(program.rsplit(":", 1)[0] if ".py:" in program else program).stem


VERBS: dict[str, Callable[..., None]] = {"diagnose": diagnose}
