"""The command line: ``kernelworks VERB``. One verb, one folder of the package, one page of the docs.

Results go to stdout, as tables or with ``--json`` as one JSON document; progress and remarks go to stderr.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | a proof failed, outputs disagreed, a kernel could not be built, or the program under diagnosis raised |
| 2 | the command line asks for something that does not exist |
| 3 | ambiguous: the machine was too busy for a figure |

Every verb imports what it needs when it runs, so that ``--help`` need not wait for torch.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelworks.cli.console import (
    AMBIGUOUS,
    FAILED,
    USAGE,
    apart,
    device_named,
    fail,
    faults,
    guarded,
    show,
    told,
    write,
)
from kernelworks.cli.judge import VERBS as JUDGING
from kernelworks.cli.records import VERBS
from kernelworks.cli.search import VERBS as SEARCHING

if TYPE_CHECKING:
    from kernelworks.records import Diagnosis

__all__ = ["app", "main"]

app = typer.Typer(
    name="kernelworks",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Point it at a PyTorch program: it says what every kernel waits on and how much time can be had back, swaps "
    "in kernels that are proved right on this machine, and shows the gain it predicted beside the gain it got.",
    epilog="Exit codes: 0 done, 1 a proof failed or outputs disagreed, 2 usage, 3 the machine was too busy to measure.",
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


Device = Annotated[str | None, typer.Option("--device", help="cpu or cuda.", metavar="DEVICE")]
Rough = Annotated[
    bool, typer.Option("--rough", help="Give figures, marked as rough, even while other processes use the machine.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout instead of tables.")]


# ---------------------------------------------------------------- the verbs


@app.command()
def diagnose(
    program: Annotated[str, typer.Argument(help="A Python script, or FILE.py:FUNCTION to call without arguments.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="The script's own arguments, after `--`.", metavar="[-- ARGUMENTS]")
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Try remedies: each predicted, proved, measured.")] = False,
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
    json: Json = False,
) -> None:
    """Where a program's time goes on this machine, what each part waits on, and what can be had back.

    Prints a table, worst first, and the whole wall clock cut by cause; writes the same as one self-contained HTML page
    and as JSON. With --fix: also the gain that was predicted beside the gain that was got.
    """
    from kernelworks.diagnose import run
    from kernelworks.records import to_json
    from kernelworks.report import diagnose as report
    from kernelworks.report import page
    from kernelworks.report import terminal as console

    if patch is not None and not fix:
        fail("--patch writes what a fix finds: it needs --fix", USAGE)
    with guarded(json=json), console.progress("diagnose") as progress:
        record: Diagnosis = run(
            program, tuple(arguments or ()), fix=fix, progress=progress, counters=counters, rough=rough, module=module,
            fix_s=budget, allow=tuple(word for word in allow.split(",") if word), plan=plan,
        )  # fmt: skip
    if json:
        told(record)
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


@app.command()
def machine(
    again: Annotated[bool, typer.Option("--again", help="Measure even where the cache has ceilings.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Also write the page to this file.")] = None,
    device: Device = None,
    rough: Rough = False,
    json: Json = False,
) -> None:
    """What this machine was measured to do: bandwidths, rates, floors, the memory pyramid and the roofline.

    The CPU, and its GPU where there is one; with --device one of them. Measured once, each in under a minute, and
    cached with its date. Refuses (exit code 3) while other processes keep the cores busy, since a ceiling measured
    then would be wrong; with --rough it is measured all the same, marked, and not cached.
    """
    from kernelworks.build import native
    from kernelworks.machine import has_gpu
    from kernelworks.measure.peaks import ceilings
    from kernelworks.records import Ceilings, GpuCeilings
    from kernelworks.report import terminal as console

    first = device_named(device)
    records: list[Ceilings | GpuCeilings] = []
    with faults(), console.progress("measuring this machine") as progress:
        if first == "cpu":
            asked: dict[str, Any] = {"again": again} | ({"rough": True} if rough else {})
            records.append(ceilings(progress, **asked))
        if first == "cuda" or (device is None and has_gpu()):
            records.append(ceilings(progress, again=again, device="cuda"))
    if html is not None:
        from kernelworks.report import page

        write(html, page.machine(*records))
    if json:
        told(records[0] if len(records) == 1 else records)
        return
    from rich.text import Text

    from kernelworks.report.gpu import gpu
    from kernelworks.report.machine import ceilings as picture

    width = console.stdout().width
    for record in records:
        show(gpu(record, width) if isinstance(record, GpuCeilings) else picture(record, width))
    why = native.why_not()
    show(Text(f"calls of ops go through {f'Python: {why}' if why else 'C++'} (docs/calls.md)"))


@app.command()
def settle(
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
    from kernelworks.cli.autotune import settled
    from kernelworks.report import settle as report
    from kernelworks.report import terminal as console

    where = device_named(device)
    so = "only what it had called until then is settled"
    with guarded(json=json, so=so), console.progress("settle") as progress:
        found = settled(what or [], module=module, device=where, again=again, progress=progress)
    if json:
        told(found)
    else:
        show(report.settled(found))


@app.command()
def prove(
    what: Annotated[str | None, typer.Argument(help="OP or OP.ROW; every op without it.", metavar="[OP[.ROW]]")] = None,
    case: Annotated[str | None, typer.Option(help="Only this case, to see a failure again.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Only this dtype.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes that share the cases of a row.")] = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="Only rows that could be chosen and lack a certificate here.")
    ] = False,
    json: Json = False,
) -> None:
    """Proves rows right against float64 on this machine, and certifies those that are.

    Every case in every dtype, guard pages on both sides of every buffer, poisoned outputs, gradients, two threads at
    once, and every known-wrong mutant rejected. Exit code 1 where a row is refused.
    """
    from kernelworks.build import native
    from kernelworks.build.cache import forget_failures
    from kernelworks.records import Proof
    from kernelworks.report import prove as report
    from kernelworks.report import terminal as console
    from kernelworks.verify import prove as run
    from kernelworks.verify import prove_missing

    proofs: list[Proof] = []
    forget_failures()
    with faults((ValueError, RuntimeError)), console.progress("prove") as progress:
        native.provide(progress)
        wanted = _to_prove(what, case, dtype, missing=missing)
        if missing and case is None and dtype is None:
            proofs = prove_missing([(op, row) for op, row in wanted if row], progress=progress)
        else:
            for op, row in wanted:
                proofs += run(op, row, case=case, dtype=dtype, jobs=jobs, progress=progress)
    if json:
        told(proofs)
    elif proofs:
        show(report.proofs(proofs))
    else:
        console.stderr().print("every row that runs here has a certificate that holds")
    if not all(report.held(proof) for proof in proofs):
        raise typer.Exit(FAILED)


def _to_prove(what: str | None, case: str | None, dtype: str | None, *, missing: bool) -> list[tuple[str, str | None]]:
    from kernelworks.ops import ops_named
    from kernelworks.verify import lacking

    op, _, row = (what or "").partition(".")
    chosen = ops_named(op or None)
    if case is not None and not any(case == known.name for found in chosen for known in found.contract.cases):
        raise ValueError(f"no case of {op or 'any op'} is named {case!r}")
    dtypes = list(dict.fromkeys(str(d).removeprefix("torch.") for found in chosen for d in found.contract.dtypes))
    if dtype is not None and dtype not in dtypes:
        raise ValueError(f"dtype must be one of {', '.join(dtypes)}, got {dtype!r}")
    return [*lacking(chosen, row)] if missing else [(found.name, row or None) for found in chosen]


@app.command()
def bench(
    op: Annotated[str | None, typer.Argument(help="One op; every op without it.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="For every arm; torch's own count without it.")] = None,
    cold: Annotated[bool, typer.Option("--cold", help="Also with the caches overwritten before each call.")] = False,
    device: Device = None,
    rows: Annotated[
        list[str] | None, typer.Option("--row", help="Time this row too, by name; may be repeated.")
    ] = None,
    cases: Annotated[list[str] | None, typer.Option("--case", help="Only this case; may be repeated.")] = None,
    save: Annotated[Path | None, typer.Option("--save", help="Also write a document with machine and commit.")] = None,
    rough: Rough = False,
    json: Json = False,
) -> None:
    """Times ops against torch eager, torch.compile and, where installed, tuned peers: interleaved, each case gated.

    A case whose outputs were wrong for any arm gives no figure and exit code 1. On a GPU L2 is emptied before each
    call, and one arm is a device copy of the same bytes. While other processes keep the cores busy there is no figure
    (exit code 3); with --rough there are wide ones, marked, and the map does not keep them.
    """
    from kernelworks.measure.bench import bench as run
    from kernelworks.measure.bench import save as write
    from kernelworks.measure.bench.kernel_map import keep_benches
    from kernelworks.ops import ops_named
    from kernelworks.records import BenchResult
    from kernelworks.report import bench as report
    from kernelworks.report import terminal as console

    where = device_named(device)
    results: list[BenchResult] = []
    with faults((ValueError,)), console.progress("bench") as progress:
        for found in ops_named(op):
            caches = ("warm", "cold") if cold else ("warm",)
            results += run(
                found.name, cases=cases, threads=threads, rows=rows or (), caches=caches, progress=progress,
                device=where, rough=rough,
            )  # fmt: skip
    if not cases:
        with contextlib.suppress(OSError):  # a map without speeds is no reason to lose the results
            keep_benches([result for result in results if not result.rough])
    if save is not None:
        write(
            results,
            save,
            " ".join(("kernelworks bench", *([op] if op else []), *(["--device", where] if device else []))),
        )
    if json:
        told(results)
    else:
        show(report.benches(results))
    if any(result.gate for result in results):
        raise typer.Exit(FAILED)


@app.command()
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
    """Which row an op would take for these arguments, why each row above it declined, and what limits it.

    Example: kernelworks explain rms_norm 16x4096 4096 eps=1e-6 --dtype bfloat16
    """
    from kernelworks.cli.arguments import named
    from kernelworks.diagnose.explain import explain as ask
    from kernelworks.ops import op_named
    from kernelworks.report.explain import explanation

    with faults((ValueError, TypeError)):
        found = ask(op, **named(op_named(op), arguments or [], dtype, device_named(device)))
    if json:
        told(found)
    else:
        show(explanation(found))


@app.command()
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
    from kernelworks.records import Tuned
    from kernelworks.report import prove as proofs_report
    from kernelworks.report import terminal as console
    from kernelworks.report.tune import tuning

    found: list[Tuned] = []
    with faults((ValueError, RuntimeError)), console.progress("tune") as progress:
        found, proofs = run(op, row, cases=cases, keep=keep, progress=progress)
    if json:
        told({"tuned": found, "proofs": proofs})
    else:
        show(tuning(found))
        if proofs:
            show(proofs_report.proofs(proofs))
    if not all(proof.certified for proof in proofs):
        raise typer.Exit(FAILED)


@app.command()
def climb(
    ladder: Annotated[
        str | None, typer.Argument(help="A ladder's name or folder; `new` starts one, `tile` draws one tile's journey.")
    ] = None,
    name: Annotated[str | None, typer.Argument(help="After `new`: the name of your ladder.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Name the ladders and their rungs.")] = False,
    rung: Annotated[int | None, typer.Option("--rung", min=1, help="Only this rung.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only compile: what each rung takes, and its hot loop. Needs no GPU.")
    ] = False,
    device: Annotated[str, typer.Option("--device", help="After `new`: cpu or cuda.")] = "cpu",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for results.json, worklog.md and the page.", show_default="kernelworks-out"),
    ] = None,
    rough: Rough = False,
    json: Json = False,
) -> None:
    """Climbs a ladder on this machine, from naive code to the vendor's rate, and writes its worklog.

    Each rung says what it expects, is proved against float64, and is then raced against the rung before and the
    vendors' libraries, beside what the machine was measured to do. A rung that is wrong gets no figure (exit code 1),
    nor does one that was raced while the machine was busy (exit code 3); with --rough it gets a wide one, marked, and
    no verdict on what it predicted.
    """
    from kernelworks.climb import command
    from kernelworks.report.terminal import progress

    with faults((ValueError, RuntimeError)):
        if ladder == "new":
            typer.echo(command.begun(name, device))
            return
        if ladder == "tile":
            command.tile(out, json=json)
            return
        if listed or ladder is None:
            command.listed(json=json)
            return
        if check:
            found = command.checked(ladder, json=json)
        else:
            with progress(f"climb {ladder}") as advance:
                found = command.climbed(ladder, rung, out, advance, json=json, rough=rough)
    if found.what:
        fail(found.said, AMBIGUOUS if found.what == "ambiguous" else FAILED)


@app.command()
def swap(
    model: Annotated[str, typer.Argument(help="FILE.py:FUNCTION that returns the model.")],
    json: Json = False,
) -> None:
    """What a swap would replace in a model, and what it would leave and why. Nothing is kept: it is undone at once."""
    from kernelworks.cli.arguments import model_of
    from kernelworks.nn.swap import swap as put

    with guarded(json=json):
        found = model_of(model)
        done = put(found, verbose=False)
        text, outlooks = str(done), done.outlooks()
        done.undo()
    if json:
        rows = [[list(o.rows) for o in of] for of in outlooks]
        told(
            {
                "replaced": [{**vars(r), "rows": of} for r, of in zip(done.replaced, rows, strict=True)],
                "left": done.left,
            }
        )
        return
    typer.echo(text)


for name, verb in {**VERBS, **JUDGING, **SEARCHING}.items():
    app.command(name=name)(verb)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point of the ``kernelworks`` command."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    with apart(given):
        code = app(args=given, prog_name="kernelworks", standalone_mode=False)
    sys.exit(code if isinstance(code, int) else 0)
