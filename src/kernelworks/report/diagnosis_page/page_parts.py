"""What stands on the page of a diagnosis, in the order in which it is read: figures, the next command, where the time
went by cause and by module, hotspots, the timeline, the roofline, optimizations, findings."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from kernelworks.records import Diagnosis, GpuTime
from kernelworks.report import plot, quantity
from kernelworks.report.diagnose import INTERRUPTION, headline
from kernelworks.report.diagnosis_page.breakdown_bar import breakdown_bar
from kernelworks.report.diagnosis_page.cards import cards
from kernelworks.report.diagnosis_page.hotspot_table import hotspot_table
from kernelworks.report.diagnosis_page.module_icicle import module_icicle
from kernelworks.report.diagnosis_page.optimization_tables import optimization_tables
from kernelworks.report.diagnosis_page.run_timeline import run_timeline
from kernelworks.report.document import (
    STYLES as PAGE_STYLES,
)
from kernelworks.report.document import (
    context_line,
    copied_code,
    figure_both,
    table,
    text_list,
    versions_text,
)
from kernelworks.report.fix import contended_gain
from kernelworks.report.next_steps import Files, command_text, next_steps

__all__ = ["SCRIPTS", "STYLES", "diagnosis_parts"]

STYLES = (*PAGE_STYLES, "diagnosis_page/diagnosis.css")
SCRIPTS = ("style/page.js", "diagnosis_page/hotspots.js", "diagnosis_page/icicle.js", "diagnosis_page/timeline.js")
MOST_KERNELS = 40


def diagnosis_parts(record: Diagnosis, files: Files | None = None) -> tuple[str, ...]:
    """The parts of the page; ``files`` is where the rest was written, for the commands. Without figures it is the
    sentence that says why, and what to do."""
    context = (
        record.peaks.name,
        f"{record.threads} thread{'s' * (record.threads != 1)}",
        versions_text(record.versions),
        record.date,
    )
    head = (f"<h1>{escape(record.program)}</h1>", context_line(context))
    if record.ambiguous and not record.hotspots:
        said = f'<p class="sentence">{escape(headline(record))}</p>'
        return (*head, said, _commands(record, files))
    return (*head, _warnings(record), cards(record), _commands(record, files), *_measured(record))


def _measured(record: Diagnosis) -> tuple[str, ...]:
    return (
        breakdown_bar(record),
        module_icicle(record),
        hotspot_table(record),
        _kernels(record.gpu) if record.gpu else "",
        run_timeline(record),
        _roofline(record),
        optimization_tables(record.fix) if record.fix else "",
        text_list("Findings", record.findings),
        text_list("Not modelled", record.unmodelled),
    )


def _warnings(record: Diagnosis) -> str:
    """What must be known before a figure is read."""
    fix = record.fix
    lines = [f"{INTERRUPTION.capitalize()}."] if record.interrupted and not record.ambiguous else []
    lines += [f"Slow path: {alarm}." for alarm in record.alarms]
    if record.ambiguous:
        lines.append(headline(record))
    elif record.peaks.unknown:
        lines.append(f"Measured peaks are unknown ({record.peaks.unknown}): no share of peak is given.")
    if record.rough:
        lines.append("Rough: other processes used the machine while this was measured. Every figure is an estimate.")
    if fix is not None and fix.refused:
        lines.append(f"The fix is refused: {fix.refused}.")
    elif fix is not None and not fix.agrees:
        lines.append("The fix is not to be kept: its outputs are worse than the program's own.")
    if fix is not None and fix.ambiguous:
        lines.append(f"The fix was measured while {fix.ambiguous}.")
    currency = contended_gain(record)
    lines += [currency] if currency else []
    return "".join(f'<p class="warning">{escape(line)}</p>' for line in lines)


def _commands(record: Diagnosis, files: Files | None) -> str:
    """What to type next, each with a button that copies it."""
    items = "".join(
        f"<li>{copied_code(command_text(step), 'command') if step.command else ''}<div>{escape(step.why)}</div></li>"
        for step in next_steps(record, files)
    )
    return f'<section class="next"><h2>Next</h2>\n<ol>{items}</ol></section>' if items else ""


def _roofline(record: Diagnosis) -> str:
    if record.peaks.unknown:
        return ""
    picture = figure_both(lambda width: plot.roofline(record.peaks, record.threads, record.hotspots, width))
    if not picture:
        return ""
    return (
        '<section id="roofline-section"><h2>Roofline</h2>\n'
        '<p class="note">A dot is a hotspot: how much arithmetic it does on each byte that it cannot avoid moving, and '
        "how fast it ran. Its area goes with its time, its colour with what bounds it. Open circles mark the ridge "
        "points: to their right compute is the limit, to their left memory. A click on a dot goes to its hotspot.</p>\n"
        f'<div class="picture" id="roofline">{picture}</div></section>'
    )


def _kernels(times: GpuTime) -> str:
    """The kernels that took the most time, each against its bound, and what counters say of our model of them."""
    shown = times.kernels[:MOST_KERNELS]
    rows = [
        (
            f"{k.name} ({k.op})",
            str(k.runs),
            quantity.seconds(k.seconds),
            quantity.seconds(k.bound_s),
            quantity.percent(k.bound_s / k.seconds) if k.seconds else "",
            k.bottleneck,
        )
        for k in shown
    ]
    headings = ("kernel (op)", "runs", "time", "least", "achieved", "bound by")
    counted = [
        (
            f"{c.name} ({c.op})",
            quantity.figures(c.model_read_bytes / 1e6),
            quantity.figures(c.memory_read_bytes / 1e6),
            quantity.figures(c.model_flop / 1e9) if c.counted_flop else "",
            quantity.figures(c.counted_flop / 1e9) if c.counted_flop else "",
        )
        for c in times.counters
    ]
    columns = ("kernel (op)", "MB read, model", "counted", "matrix GFLOP, model", "counted")
    return _folded_table("Kernels", headings, rows) + (_folded_table("Counters", columns, counted) if counted else "")


def _folded_table(title: str, headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table that shows its first rows at first."""
    return table(title, headings, rows).replace("<table>", '<table class="folded">')
