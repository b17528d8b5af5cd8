"""An experiment as a page: a picture of its points, a table of the same, and what they say."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from kernelworks.records.experiment import Experiment, Series
from kernelworks.report import plot
from kernelworks.report.document import context_line, figure_both, table, text_list
from kernelworks.report.experiment.figures import axis_title, figure, places
from kernelworks.report.optional_pictures import optional_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["parts"]

MARKS, DASHES = "os^Dv", ("--", "-.", ":")
MOST_DENSE = 1000  # times: the span of an axis that has ticks between powers of ten
MOST_NAMES = 16  # below an axis of names


def parts(record: Experiment) -> Sequence[str]:
    """What stands on that page."""
    where = f"measured on {record.machine}" if record.is_timed else "computed: the same on every machine"
    by_place = {series.name: {p.x: p for p in series.points} for series in record.series}
    rows = [
        (name, *(figure(of[x].value, record.y) if x in of else "-" for of in by_place.values()))
        for x, name in places(record)
    ]
    return [
        f"<h1>{escape(record.question)}</h1>",
        context_line((where, record.date[:10], f"kernelworks experiment {record.name}")),
        f'<p class="note">rough: {escape(record.rough)} meanwhile</p>' if record.rough else "",
        f"<p>Expected: {escape(record.expected)}</p>",
        f'<div class="picture">{figure_both(lambda width: picture(record, width))}</div>',
        text_list("What came out", record.readings),
        text_list("How", record.notes),
        table("Figures", (record.x.label, *by_place), rows),
        f'<p class="context">{escape(record.page)} explains it.</p>',
    ]


@optional_picture
def picture(record: Experiment, width: float = plot.WIDE_INCHES) -> str:
    """The points of every series, each with the interval that holds it; limits are dashed."""
    narrow = width < plot.WIDE_INCHES
    figure_, axes = plot.canvas(width, 5.2 if narrow else 4.6, f"{record.name}{'-narrow' if narrow else ''}")
    if record.x.logarithmic:
        axes.set_xscale("log", base=2)
    if record.y.logarithmic:
        axes.set_yscale("log", base=10)
    for index, series in enumerate(record.series):
        _draw(axes, series, index)
    named = places(record)
    if len(named) <= MOST_NAMES:
        every = 2 if narrow and len(named) > MOST_NAMES // 2 else 1
        axes.set_xticks([x for x, _ in named][::every], [name for _, name in named][::every])
        axes.minorticks_off()
    else:
        axes.xaxis.set_major_formatter(lambda x, _: figure(x, record.x))
    if record.y.logarithmic:
        _dense_ticks(axes)
    axes.yaxis.set_major_formatter(lambda y, _: figure(y, record.y) if record.y.unit in ("s", "B") else f"{y:g}")
    if not record.y.logarithmic:
        axes.set_ylim(bottom=min(0.0, *(p.low for series in record.series for p in series.points)))
    axes.set_xlabel(axis_title(record.x), color=plot.stand_in("muted"))
    axes.set_ylabel(axis_title(record.y), color=plot.stand_in("muted"))
    axes.grid(which="major", color=plot.stand_in("line"), linewidth=0.5, alpha=0.5)
    axes.set_axisbelow(True)
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=1 if narrow else 3, fontsize=9, frameon=False,
        labelcolor=plot.stand_in("ink"), borderpad=0,
    )  # fmt: skip
    return plot.svg_text(figure_, f"{record.y.label} over {record.x.label}")


def _dense_ticks(axes: Axes) -> None:
    """Ticks at 1, 2 and 5 of each power of ten where powers alone would be one or two."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axes.get_ylim()
    if high < MOST_DENSE * low:
        axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())


def _draw(axes: Axes, series: Series, index: int) -> None:
    variable = "muted" if series.is_limit else plot.SERIES[index % len(plot.SERIES)]
    colour, xs = plot.stand_in(variable), [p.x for p in series.points]
    line = DASHES[index % len(DASHES)] if series.is_limit else "-"
    mark = "" if series.is_limit else MARKS[index % len(MARKS)]
    axes.plot(
        xs, [p.value for p in series.points], line, color=colour, marker=mark, ms=5, linewidth=1.6, label=series.name
    )
    if any(p.low < p.high for p in series.points):
        axes.fill_between(
            xs, [p.low for p in series.points], [p.high for p in series.points], color=colour, alpha=0.15, linewidth=0
        )
