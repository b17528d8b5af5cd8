"""Where a program's time goes, and with ``--fix`` what brings some of it back."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelworks.cli.console import (
    AMBIGUOUS,
    FAILED,
    USAGE,
    check_device,
    device_named,
    fail,
    faults,
    guard_program,
    measuring,
    print_json,
    show,
    warn,
)
from kernelworks.cli.files import apply_command, fix_patch, why_no_patch, writable, writable_folder, write
from kernelworks.cli.interrupts import report_begins
from kernelworks.cli.names import check_budget, check_program, check_words, readable_file
from kernelworks.cli.options import Json, Rough, Verbose
from kernelworks.cli.trace import diagnose_trace_file

if TYPE_CHECKING:
    from kernelworks.diagnose import DiagnosisInterrupt
    from kernelworks.records import Diagnosis
    from kernelworks.report.next_steps import Files

__all__ = ["VERBS"]

OPTIONS = ("fix", "budget", "allow", "plan", "patch", "counters", "out", "perfetto", "rough", "verbose")
Perfetto = Annotated[
    Path | None, typer.Option("--perfetto", help="Write one run as a trace for ui.perfetto.dev.", metavar="FILE")
]
Trace = Annotated[
    Path | None, typer.Option("--trace", help="Read a trace of torch.profiler or Nsight; run nothing.", metavar="FILE")
]


def diagnose(
    program: Annotated[
        str | None, typer.Argument(help="A Python script, or FILE.py:FUNCTION to call without arguments.")
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(help="The script's own arguments, after `--`.", metavar="[-- ARGUMENTS]")
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Try optimizations: each predicted, verified, measured.")] = False,
    budget: Annotated[
        float | None, typer.Option("--budget", help="Seconds for a fix, by default 240.", metavar="SECONDS")
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
        Path | None,
        typer.Option("--out", help="Folder for page and record, by default kernelworks-out.", metavar="FOLDER"),
    ] = None,
    perfetto: Perfetto = None,
    rough: Rough = False,
    verbose: Verbose = False,
    module: Annotated[
        bool, typer.Option("-m", "--module", help="PROGRAM is a module, as after python -m, or MODULE:FUNCTION.")
    ] = False,
    trace: Trace = None,
    json: Json = False,
) -> None:
    """Where a program's time goes on this machine, what bounds each part, and what is recoverable.

    Prints the result, the next command to type, the time by cause and the hotspots; writes all of it as one
    self-contained HTML page and as a record, which `kernelworks show` prints again. With --fix: also the gain that was
    predicted beside the gain that was got.
    """
    given = _given_options(locals())
    if trace is not None:
        if program is not None or fix or counters or rough or module or plan or patch or allow or budget is not None:
            fail("--trace reads a file and runs nothing: it goes with --out and --json alone", USAGE)
        raise typer.Exit(diagnose_trace_file(trace, out, json=json))
    if program is None:
        fail("name a program (a script, or FILE.py:FUNCTION), or a trace with --trace FILE; see --help", USAGE)
    allowed = tuple(word for word in allow.split(",") if word)
    _check(fix=fix, patch=patch, plan=plan, budget=budget, allowed=allowed)
    _check_names(program, module=module, counters=counters)
    from kernelworks.diagnose import DiagnosisInterrupt, diagnose_script
    from kernelworks.report import diagnose as report
    from kernelworks.report import terminal as console
    from kernelworks.report.next_steps import Files

    _check_contents(plan, counters=counters)
    folder = writable_folder(out or Path("kernelworks-out")) if out is not None or not json else None
    patch_file, trace_file = writable(patch), writable(perfetto)
    try:
        with guard_program(json=json, rough=True), measuring("diagnose") as progress:
            found = diagnose_script(
                program, tuple(arguments or ()), fix=fix, progress=progress, counters=counters, rough=rough,
                module=module, fix_s=budget, allow=allowed, plan=plan,
            )  # fmt: skip
    except DiagnosisInterrupt as stopped:
        stem = None if folder is None else folder / _file(program, module=module)
        _show_partial(stopped, given, stem, json=json)
        raise
    record: Diagnosis = dataclasses.replace(found, options=given)
    files = Files() if folder is None else _write_files(record, folder / _file(program, module=module))
    if write(patch_file if fix_patch(record) else None, fix_patch(record)):
        files = dataclasses.replace(files, patch=str(patch_file))
    if json:
        print_json(record)
    else:
        show(report.diagnosis(record, console.stdout().width, verbose=verbose, files=files))
    _write_asked(record, trace_file, patch_file)
    raise typer.Exit(_exit_code(record, report.outcome(record), None if folder is None else files))


def _given_options(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The options as a user types them, for the commands that a report names; without --json, which a program reads."""
    words: list[str] = []
    for name in OPTIONS:
        value = values[name]
        if value is True:
            words.append(f"--{name}")
        elif value not in (None, False, ""):
            words += [f"--{name}", f"{value:g}" if isinstance(value, float) else str(value)]
    return tuple(words)


def _write_asked(record: Diagnosis, trace: Path | None, patch: Path | None) -> None:
    """Writes the trace that was asked for by name, and says of the patch where it is."""
    from kernelworks.report import terminal as console
    from kernelworks.report.diagnosis_page.perfetto_trace import trace_events

    if trace is not None:
        write(trace, trace_events(record))
    if patch is not None:
        said = apply_command(record, patch) if fix_patch(record) else f"no patch: {why_no_patch(record)}"
        console.stderr().print(said, soft_wrap=True)


def _write_files(record: Diagnosis, stem: Path) -> Files:
    """Writes the page, the record, and the plan of a fix that applied something."""
    from kernelworks.records import to_document
    from kernelworks.report import page
    from kernelworks.report.next_steps import Files

    plan = _plan(record)
    named = Files(f"{stem}.html", f"{stem}.json", f"{stem}.plan.json" if plan else "")
    texts = {".json": to_document(record), ".html": page.diagnosis(record, named)}
    texts |= {".plan.json": to_document(plan)} if plan else {}
    reports = record.fix.compiler_reports if record.fix is not None else ()
    texts |= {f".compiler-{number}.py": report.text for number, report in enumerate(reports, 1)}
    other = _other_program(Path(f"{stem}.json"), record)
    if other:
        warn(f"{stem}.json was the record of {other}: it is written over (--out names another folder)")
    written = {ending for ending, text in texts.items() if write(Path(f"{stem}{ending}"), text)}
    return Files(*(f"{stem}{ending}" if ending in written else "" for ending in (".html", ".json", ".plan.json")))


def _exit_code(record: Diagnosis, outcome: str, files: Files | None) -> int:
    """``files`` are those that were to be written."""
    lost = files is not None and not (files.page and files.record and (files.plan or not _plan(record)))
    return {"": 0, "refused": FAILED, "ambiguous": AMBIGUOUS}[outcome] or (FAILED if lost else 0)


def _plan(record: Diagnosis) -> Mapping[str, Any]:
    return record.fix.plan if record.fix is not None else {}


def _show_partial(stopped: DiagnosisInterrupt, given: tuple[str, ...], stem: Path | None, *, json: bool) -> None:
    """What was measured before Ctrl-C, and its record first; the page takes longer than a user who leaves waits."""
    from kernelworks.records import to_document
    from kernelworks.report import diagnose as report
    from kernelworks.report import terminal as console
    from kernelworks.report.next_steps import Files

    stopped.options = given
    report_begins()
    if stopped.walls:
        first, *others = (f"{1e3 * wall:.4g} ms" for wall in stopped.walls)
        more = f", then {', '.join(others[:5])}{' ...' * (len(others) > 5)}" if others else ""
        console.stderr().print(f"measured until then: a first run of {first}{more}", soft_wrap=True)
    record = stopped.diagnosis()
    if record is None:
        return
    kept = stem is not None and write(Path(f"{stem}.json"), to_document(record))
    if json:
        print_json(record)
    else:
        files = Files(record=f"{stem}.json" if kept else "")
        show(report.diagnosis(record, console.stdout().width, files=files))


def _check(
    *, fix: bool, patch: Path | None, plan: Path | None, budget: float | None, allowed: Sequence[str]
) -> None:  # fmt: skip
    """Leaves if options contradict each other or name what is not there: nothing of the program has run yet."""
    named = {"--patch": patch, "--plan": plan, "--budget": budget, "--allow": allowed or None}
    given = [name for name, value in named.items() if value is not None]
    if given and not fix:
        fail(f"{given[0]} is of a fix: it needs --fix", USAGE)
    if allowed:
        from kernelworks.records.fix import CHANGES

        check_words("--allow", allowed, CHANGES)
    check_budget(budget)
    if plan is not None:
        readable_file(plan)


def _check_names(program: str, *, module: bool, counters: bool) -> None:
    """Leaves if the program is not there, or no GPU for the counters."""
    check_program(program, module=module)
    if counters:
        check_device("cuda")


def _check_contents(plan: Path | None, *, counters: bool) -> None:
    """Leaves if the plan is none, or torch sees no GPU for the counters."""
    if counters:
        device_named("cuda")
    if plan is not None:
        from kernelworks.diagnose.fix.plan import load_plan

        with faults((ValueError, FileNotFoundError)):
            load_plan(plan)


def _file(program: str, *, module: bool) -> str:
    """What the page is called: ``train`` for ``examples/train.py``, ``train-step`` for ``examples/train.py:step``, for
    ``-m`` the module's name in place of the file's."""
    path, colon, function = program.rpartition(":") if module or ".py:" in program else (program, "", "")
    path, function = (path, function) if colon else (program, "")
    return "-".join(filter(None, (path if module else Path(path).stem, function)))


def _other_program(path: Path, record: Diagnosis) -> str:
    """The program that a record in this place is of, if that is another one: another file of this name, or other
    arguments. "" if there is none, or no record that can be read."""
    from kernelworks.records.schema import NoRecord, read_record

    try:
        command = getattr(read_record(path), "command", ())
    except (NoRecord, OSError):
        return ""
    return "" if not command or _absolute(command) == _absolute(record.command) else shlex.join(command)


def _absolute(command: Sequence[str]) -> tuple[str, ...]:
    """A command whose program is named by its whole path."""
    return tuple(os.path.abspath(word) if at == 0 and word != "-m" else word for at, word in enumerate(command))


VERBS: dict[str, Callable[..., None]] = {"diagnose": diagnose}
