"""An experiment on the terminal: the question, what was expected, a bar for each figure, what the figures say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from kernelworks.records.experiment import Experiment, Series
from kernelworks.report.experiment.figures import axis_title, figure, place_name
from kernelworks.report.table import Table
from kernelworks.report.terminal import bar
from kernelworks.report.text_lines import paragraph

__all__ = ["entries", "experiment"]

MOST_BAR, LEAST_BAR = 40, 8  # cells
STYLES = ("cyan", "yellow", "green", "magenta", "blue")
FLOOR_DECADES = 0.05  # below the least figure, where a logarithmic bar begins


def entries(some: Sequence[tuple[str, str, int]]) -> RenderableType:
    """The experiments by name."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("experiment")
    table.add_column("question")
    table.add_column("takes", justify="right")
    for name, question, seconds in some:
        table.add_row(Text(name, style="bold"), question, f"{seconds} s")
    return table


def experiment(record: Experiment, width: int) -> RenderableType:
    """Everything that ``kernelworks experiment NAME`` prints."""
    where = f"measured on {record.machine}" if record.is_timed else "computed: the same on every machine"
    lines: list[RenderableType] = [
        Text(record.question, style="bold"),
        Text(f"{where}, {record.date[:10]}", style="dim"),
    ]
    if record.rough:
        lines += paragraph(f"rough: {record.rough} meanwhile", width, 7, style="yellow")
    lines += [*paragraph(record.expected, width, 10, "expected"), Text()]
    lines += _bars(record, width)
    lines += [Text(), Text("what came out", style="bold")]
    for reading in record.readings:
        lines += paragraph(reading, width, 2, "-")
    for note in record.notes:
        lines += paragraph(note, width, 2, "-", style="dim")
    lines += [Text(), *paragraph(f"{record.page} explains it", width, 0, style="dim")]
    return Group(*lines)


def _bars(record: Experiment, width: int) -> Iterator[RenderableType]:
    scale = "; bars are logarithmic" if record.y.logarithmic else ""
    yield from paragraph(f"{axis_title(record.y)}, over {axis_title(record.x)}{scale}", width, 0, style="bold")
    values = [p.value for series in record.series for p in series.points if p.value > 0 or not record.y.logarithmic]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    places = [place_name(p, record.x) for series in record.series for p in series.points]
    figures = [figure(p.value, record.y) for series in record.series for p in series.points]
    left, right = max(map(len, places), default=1), max(map(len, figures), default=1)
    room = max(LEAST_BAR, min(MOST_BAR, width - left - right - 6))
    for index, series in enumerate(record.series):
        values = [p.value for p in series.points]
        if series.is_limit and min(values) == max(values):
            yield Text(f"{series.name} (limit): {figure(values[0], record.y)} everywhere", style="dim")
            continue
        style = "dim" if series.is_limit else STYLES[index % len(STYLES)]
        yield Text(series.name + (" (limit)" if series.is_limit else ""), style=style)
        yield from _rows(record, series, (left, right, room), (low, high), style)


def _rows(
    record: Experiment, series: Series, cells: tuple[int, int, int], span: tuple[float, float], style: str
) -> Iterator[Text]:
    left, right, room = cells
    for point in series.points:
        drawn = bar(share_of_span(point.value, span, logarithmic=record.y.logarithmic), room).rstrip("░")
        line = Text(f"  {place_name(point, record.x):>{left}}  ")
        line.append(f"{figure(point.value, record.y):>{right}}  ")
        line.append(drawn, style=style)
        line.rstrip()
        yield line


def share_of_span(value: float, span: tuple[float, float], *, logarithmic: bool) -> float:
    """How much of a bar is filled: from 0 to the largest figure, or from just below the least one on."""
    low, high = span
    if not logarithmic:
        return value / high if high > 0 else 0.0
    if value <= 0:
        return 0.0
    begin = math.log10(low) - FLOOR_DECADES
    return (math.log10(value) - begin) / max(math.log10(high) - begin, 1e-9)
