"""A diagnosis on the terminal, to be read in ten seconds: the result and what to do next, then where the time goes, the
hotspots, the optimizations, and the other steps."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from rich import box
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from kernelworks.records import CounterCheck, Diagnosis, KernelTime
from kernelworks.records.wall_clocks import half_spread
from kernelworks.report import quantity
from kernelworks.report.fix import contended_gain, optimizations, result_lines
from kernelworks.report.hotspots import MOST_COLUMNS, hotspots, sort_worst_first
from kernelworks.report.next_steps import Files, next_steps, step_lines
from kernelworks.report.table import Table
from kernelworks.report.terminal import style_of
from kernelworks.report.text_lines import Cell, cells, paragraph, section
from kernelworks.report.time_breakdown import round_to_percents, time_breakdown

__all__ = [
    "INTERRUPTION", "counters", "diagnosis", "headline", "kernels", "outcome", "round_to_percents",
    "sort_worst_first", "summary",
]  # fmt: skip

LABEL = 8  # cells of "RESULT" and of "NEXT"
INTERRUPTION = "interrupted, so this is what was measured until then"
WIDE_SPREAD = 0.5  # of the median run, from which on its extremes are told
MOST_FINDINGS = 3
MOST_KERNELS = 12
# Of a CPU's name: what says nothing to who looks at one machine.
NAME_NOISE = re.compile(r"\((?:R|TM)\)|\b\d+-Core\b|\bProcessor\b|\bCPU\b|@.*$")


def diagnosis(record: Diagnosis, width: int, *, verbose: bool = False, files: Files | None = None) -> RenderableType:
    """Everything that ``kernelworks diagnose`` prints for one program, for a terminal ``width`` columns wide."""
    steps = next_steps(record, files)
    lines = [*_header(record, width, verbose=verbose), Text(), *_result(record, width)]
    if steps:
        lines += step_lines(steps[0], width, LABEL, Text("NEXT", style="bold"))
    parts: list[RenderableType] = [*lines]
    if record.hotspots or not record.ambiguous:
        parts += [Text(), *_measured(record, width, verbose=verbose)]
    if len(steps) > 1:
        parts += [Text(), section("next steps")]
        for number, step in enumerate(steps, 1):
            said = step if number > 1 or not step.command else replace(step, why="")  # the first stands on top
            parts += step_lines(said, width, 4, f" {number}.")
    if files is not None and (files.page or files.record):
        parts += [Text(), *_files(files)]
    return Group(*parts)


def _measured(record: Diagnosis, width: int, *, verbose: bool) -> Iterable[RenderableType]:
    yield from time_breakdown(record.time_breakdown, record.wall_s, width, record.hotspots, verbose=verbose)
    yield Text()
    yield from hotspots(record, width, verbose=verbose)
    findings = record.findings if verbose else record.findings[:MOST_FINDINGS]
    if findings:
        yield Text()
        yield section("findings")
        for line in findings:
            yield from paragraph(line, width, 4, "  -")
    if record.fix is not None and record.fix.optimizations:
        yield Text()
        yield from optimizations(record.fix, width, verbose=verbose)
    if record.gpu is not None and verbose:
        yield from (Text(), kernels(record.gpu.kernels, width))
    if record.gpu is not None and record.gpu.counters:
        yield from (Text(), counters(record.gpu.counters))
    if verbose and record.notes:
        yield Text()
        yield section("notes on the measurement")
        for line in record.notes:
            yield from paragraph(line, width, 4, "  -", "dim")


def outcome(record: Diagnosis) -> str:
    """What it comes to: "", "refused" where its fix is not to be kept, "ambiguous" where there is no figure."""
    fix = record.fix
    if fix is not None and (fix.refused or not fix.agrees):
        return "refused"
    return (
        "ambiguous"
        if record.ambiguous or record.interrupted or (fix is not None and fix.ambiguous and not fix.rough)
        else ""
    )


def headline(record: Diagnosis) -> str:
    """The sentence on top, as a sentence."""
    return _as_sentence(record.sentence)


def _without_alarm(record: Diagnosis) -> str:
    """The sentence without the slow path that it begins with, where the alarms stand before it."""
    return record.sentence.removeprefix(f"slow path: {record.alarms[0]}; " if record.alarms else "")


def _as_sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def summary(record: Diagnosis, width: int) -> RenderableType:
    """The same on one screen: without the steps after it."""
    lines = [*_header(record, width, verbose=False), Text(), *_result(record, width), Text()]
    return Group(*lines, *_measured(record, width, verbose=False))


# ---------------------------------------------------------------- the header


def _header(record: Diagnosis, width: int, *, verbose: bool) -> Iterable[Text]:
    """The program, its wall clock with its interval, and the machine in words that people use."""
    threads = f"{record.threads} thread{'s' * (record.threads != 1)}"
    torch = f"torch {record.versions['torch']}" if "torch" in record.versions else ""
    machine = ", ".join(part for part in (_machine_name(record), threads, torch) if part)
    first: list[tuple[Cell, int]] = [
        (Text(record.program, style="bold"), cell_len(record.program) + 3),
        (_wall(record), 1),
    ]
    line = cells(first if record.hotspots or not record.ambiguous else first[:1])
    if cell_len(line.plain) + 3 + len(machine) <= width:
        line.append(f"   {machine}", style="dim")
        yield line
    else:
        yield from [line] if cell_len(line.plain) <= width else paragraph(line, width)
        yield from paragraph(machine, width, style="dim")
    if record.peaks.unknown and not record.ambiguous:  # else the result says so
        why = record.peaks.unknown.removeprefix("ambiguous: ")
        yield from paragraph(f"Measured peaks are unknown ({why}): no share of peak is given.", width, style="yellow")
    if record.rough:
        yield from paragraph(
            f"Rough figures: {record.disturbed or 'other processes used the machine'}.", width, style="yellow"
        )
    if verbose:
        versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
        yield from paragraph(f"{record.date}; {record.peaks.kind}; {versions}", width, style="dim")


def _machine_name(record: Diagnosis) -> str:
    return " ".join(NAME_NOISE.sub(" ", record.peaks.name).split())


def _wall(record: Diagnosis) -> str:
    """``1.13 s per run (+-2%, 5 runs)``."""
    walls = record.walls_s
    said = f"{quantity.seconds(record.wall_s)} per run"
    if len(walls) < 2:
        return said
    spread = half_spread(walls) / record.wall_s if record.wall_s else 0.0
    if spread > WIDE_SPREAD:  # an interval round the median would begin at nothing
        between = f"{quantity.seconds(min(walls))} to {quantity.seconds(max(walls))}"
        return f"{said} ({between}, {len(walls)} runs)"
    return f"{said} (+-{quantity.percent(spread)}, {len(walls)} runs)"


# ---------------------------------------------------------------- the result


def _result(record: Diagnosis, width: int) -> Iterable[Text]:
    """What a reader is to know if he reads one thing: what the fix gained, how near the program runs to the peaks, and
    what is recoverable."""
    said = [_as_sentence(clause) for clause in record.clauses or (_without_alarm(record),)]
    fix = record.fix
    if record.interrupted and fix is None:  # no kernel was benchmarked: nothing is known of gains
        said = said[:1]
    if record.ambiguous:
        said = [_as_sentence(_without_alarm(record))]
    elif fix is not None:
        said = [*result_lines(fix, rough=record.rough), *filter(None, (contended_gain(record),)), *said]
    alarms = [f"Slow path: {alarm}." for alarm in record.alarms]
    said = [*said, *alarms] if fix is not None and fix.rounds else [*alarms, *said]  # a gain that was got is said first
    if record.interrupted and not record.ambiguous:  # else the headline says so
        said = [_as_sentence(INTERRUPTION), *said]
    label = Text("RESULT", style="bold")
    for index, sentence in enumerate(said):
        bold = "bold" if index == 0 else ""
        yield from paragraph(sentence, width, LABEL, label if index == 0 else "", bold)


def _files(files: Files) -> Iterable[Text]:
    for name, path in (("page", files.page), ("record", files.record), ("plan", files.plan)):
        if path:
            yield cells([(Text(name, style="dim"), LABEL), (path, 1)])


# ---------------------------------------------------------------- a GPU's kernels


def kernels(found: tuple[KernelTime, ...], width: int, most_rows: int = MOST_KERNELS) -> Table:
    """The kernels that took the most time, each against its bound."""
    table = Table(title="KERNELS", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.show_edge, table.expand, table.width, table.caption_justify = False, True, min(width, MOST_COLUMNS), "left"
    table.add_column("kernel", overflow="ellipsis", no_wrap=True, ratio=2)
    table.add_column("op", overflow="ellipsis", no_wrap=True, ratio=1)
    for heading in ("runs", "time", "least", "achieved"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("bound by", no_wrap=True)
    for kernel in found[:most_rows]:
        share = kernel.bound_s / kernel.seconds if kernel.seconds else 1.0
        modelled = kernel.bottleneck not in ("unmodelled", "unknown")
        table.add_row(
            kernel.name,
            kernel.op,
            str(kernel.runs),
            quantity.seconds(kernel.seconds),
            quantity.seconds(kernel.bound_s) if modelled else "-",
            quantity.percent(share) if modelled else "-",
            Text(kernel.bottleneck, style=style_of(kernel.bottleneck)),
        )
    if len(found) > most_rows:
        rest = found[most_rows:]
        table.caption = f"and {len(rest)} more, {quantity.seconds(sum(k.seconds for k in rest))} together"
    return table


def counters(found: tuple[CounterCheck, ...]) -> Table:
    """Our model of kernels' work beside what the hardware counted."""
    table = Table(title="COUNTERS", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.show_edge = False
    table.add_column("op", no_wrap=True)
    for heading in ("read, MB: model", "counted", "matrix GFLOP: model", "counted"):
        table.add_column(heading, justify="right")
    for check in sorted({c.op: c for c in found}.values(), key=lambda c: -c.memory_read_bytes):
        product = check.counted_flop is not None
        table.add_row(
            check.op,
            quantity.figures(check.model_read_bytes / 1e6),
            quantity.figures(check.memory_read_bytes / 1e6),
            quantity.figures(check.model_flop / 1e9) if product else "",
            quantity.figures((check.counted_flop or 0.0) / 1e9) if product else "",
        )
    return table
