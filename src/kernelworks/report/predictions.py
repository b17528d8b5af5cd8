"""Predicted against got: in characters for a terminal, as a picture for a page or a file.

Both axes are shares of the program's wall clock, so that programs of seconds and of milliseconds stand in one picture.
On the diagonal an optimization brought what was said; the band beside it is where a prediction is counted as held.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.text import Text

from kernelworks.records.history import GAIN_TOLERANCE, NOISE_SHARE, Outcome
from kernelworks.records.predictions import OptimizationAccuracy, PredictionAccuracy
from kernelworks.report import plot, quantity
from kernelworks.report.document import STYLES as STYLE_SHEETS
from kernelworks.report.document import colours, figure_both
from kernelworks.report.document import document as html_document
from kernelworks.report.markup import html
from kernelworks.report.optional_pictures import optional_picture
from kernelworks.report.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["document", "parts", "png", "prediction_accuracy", "sentence"]

NO_OUTCOMES_TEXT = (
    "no fix has been measured here yet: `kernelworks diagnose PROGRAM --fix` leaves a line for each optimization it "
    "tries"
)
LOUD_TEXT = (
    "{} measured here, and none of them counts: other processes used the machine meanwhile. Run "
    "`kernelworks diagnose PROGRAM --fix` when it is quiet"
)
HEIGHT = 17  # lines of the picture on a terminal
COLOURS = ("series1", "series2", "series3", "series4", "accent", "good", "bad", "muted")
STYLES = ("blue", "yellow", "green", "magenta", "red", "cyan", "bright_yellow", "bright_black")
# The same order as COLOURS, in the names that report/markup.py turns into them.
PAGE_STYLES = ("dark_red", "navy_blue", "orange4", "purple4", "blue_violet", "green", "red", "bright_black")
MARKS = "abcdefghijklmnopqrstuvwxyz"
SHAPES = {"o": "●", "s": "■", "^": "▲"}  # of points in a file, as matplotlib calls them; each with every colour
OVERLAP_MARK = "*"  # where points of several optimizations fall together


def sentence(found: PredictionAccuracy) -> str:
    if not found.outcome_count:
        return LOUD_TEXT.format(found.loud_count) if found.loud_count else NO_OUTCOMES_TEXT
    share = quantity.percent(found.accurate_count / found.outcome_count)
    held = f"{found.accurate_count} of {found.outcome_count} predictions held ({share})"
    return f"{held}: within a fifth of the gain, or both under 2%"


def prediction_accuracy(found: PredictionAccuracy, width: int) -> RenderableType:
    """What ``kernelworks predictions`` prints: for each kind of machine a picture and a table."""
    if not found.outcome_count:
        return Text(sentence(found))
    names = _optimization_names(found)
    lines: list[RenderableType] = [Text(sentence(found), style="bold"), Text(found.file, style="dim")]
    for kind in dict.fromkeys(one.kind for one in found.kept):
        points = [one for one in found.outcomes if one.kind == kind]
        lines += [Text(), Text(kind, style="bold"), _drawn(points, names, min(width, 84))]
        lines += [_table([one for one in found.kept if one.kind == kind], names, _letter_mark)]
    return Group(*lines)


def _optimization_names(found: PredictionAccuracy) -> list[str]:
    """In one order everywhere: an optimization has one mark and one colour."""
    return sorted({one.optimization for one in found.kept})


def _letter(at: int) -> str:
    return MARKS[at % len(MARKS)]


def _shape(at: int) -> str:
    """Of the points of an optimization in a file, as matplotlib calls it."""
    return [*SHAPES][at // len(COLOURS) % len(SHAPES)]


def _letter_mark(at: int) -> Text:
    return Text(_letter(at), style=STYLES[at % len(STYLES)])


def _shape_mark(at: int) -> Text:
    return Text(SHAPES[_shape(at)], style=PAGE_STYLES[at % len(PAGE_STYLES)])


def _table(kept: Sequence[OptimizationAccuracy], names: Sequence[str], mark: Callable[[int], Text]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("optimization", no_wrap=True)
    for name in ("tried", "kept", "held", "got for 1 s predicted", "off by", "calibrated, off by", "the next x"):
        table.add_column(name, justify="right")
    for one in kept:
        at = names.index(one.optimization)
        table.add_row(
            mark(at), one.optimization, str(one.outcomes), str(one.taken),
            f"{one.held} of {one.outcomes}", "-" if one.got is None else f"{quantity.figures(one.got)} s",
            quantity.percent(one.raw_error, 1), quantity.percent(one.error, 1), quantity.figures(one.factor),
        )  # fmt: skip
    return table


# ---------------------------------------------------------------- the picture on a terminal


def _reach(points: Sequence[Outcome]) -> tuple[float, float]:
    """From where to where both axes go: shares of the wall clock, tenths at the coarsest, with 0 in them."""
    values = [0.0, *(share for one in points for share in _at(one))]
    low, high = max(min(values), -1.0), min(max(values), 1.0)
    step = 0.1 if high - low > 0.4 else 0.05 if high - low > 0.15 else 0.02
    least, most = step * math.floor(low / step + 1e-9), step * math.ceil(high / step - 1e-9)
    return (least if low < -NOISE_SHARE / 2 else 0.0), max(most, step)


def _at(one: Outcome) -> tuple[float, float]:
    """Predicted, as it was told, and got."""
    return one.told_s / one.wall_s, one.gain_s / one.wall_s


def _drawn(points: Sequence[Outcome], names: Sequence[str], width: int) -> Text:
    """Rows of got from the highest downwards, columns of predicted; dots are the diagonal."""
    low, high = _reach(points)
    across = max(width - 9, 20)

    def cell(predicted: float, got: float) -> tuple[int, int]:
        x, y = ((min(max(v, low), high) - low) / (high - low) for v in (predicted, got))
        return HEIGHT - 1 - round(y * (HEIGHT - 1)), round(x * (across - 1))

    grid: dict[tuple[int, int], tuple[str, str]] = {}
    for column in range(across):
        share = low + (high - low) * column / (across - 1)
        grid[cell(share, share)[0], column] = ("·", "dim")
    for one in points:
        at = names.index(one.optimization)
        mark, style = _letter(at), STYLES[at % len(STYLES)]
        where = cell(*_at(one))
        before = grid.get(where, ("·", ""))[0]
        grid[where] = (
            mark if before in ("·", mark) else OVERLAP_MARK,
            style if one.is_accurate else f"bold reverse {style}",
        )
    text = Text("got, of the wall clock; reversed: not as predicted\n", style="dim")
    zero = cell(0, 0)
    for row in range(HEIGHT):
        label = {0: high, HEIGHT - 1: low, zero[0]: 0.0}.get(row)
        text.append(f"{'' if label is None else f'{100 * label:.0f}%':>6s} │", style="dim")
        for column in range(across):
            mark, style = grid.get((row, column), ("─" if row == zero[0] and low < 0 else " ", "dim"))
            text.append(mark, style=style)
        text.append("\n")
    text.append(f"{'':>6s} └{'─' * across}\n", style="dim")
    right = f"predicted {100 * high:.0f}%"
    text.append(f"{'':>8s}{f'{100 * low:.0f}%':<{across - len(right)}s}{right}", style="dim")
    return text


# ---------------------------------------------------------------- the picture in a file


WIDTH, SIDE, BELOW, ABOVE = 9.4, 5.2, 0.55, 0.1  # inches: of a square, to whose right the names stand
NARROW_SIDE, NAME_HEIGHT = 3.9, 0.24  # on a narrow picture they stand below it
TITLE = 0.6


def _picture(
    points: Sequence[Outcome],
    names: Sequence[str],
    ink: Callable[[str], str],
    title: str = "",
    inches: float = plot.WIDE_INCHES,
) -> Figure:
    narrow = inches < plot.WIDE_INCHES
    width, square = (inches, NARROW_SIDE) if narrow else (WIDTH, SIDE)
    below = BELOW + (0.7 + NAME_HEIGHT * len(names) if narrow else 0.0)
    height = below + square + (TITLE if title else ABOVE)
    figure, axes = plot.canvas(width, height, f"predictions {len(points)}{' narrow' if narrow else ''}")
    figure.set_layout_engine("none")
    axes.set_position((0.8 / width, below / height, square / width * (0.93 if narrow else 1.0), square / height))
    if title:
        figure.suptitle(title, color=ink("ink"), fontsize=10)
    low, high = _reach(points)
    margin = 0.03 * (high - low)
    line = [low - margin, high + margin]
    axes.plot(line, line, color=ink("muted"), linewidth=1.2, zorder=1)
    # held: got between predicted / (1 + CLOSE) and predicted / (1 - CLOSE), or both small
    steps = [line[0] + (line[1] - line[0]) * i / 200 for i in range(201)]
    bounds = [sorted((s / (1 + GAIN_TOLERANCE), s / (1 - GAIN_TOLERANCE))) for s in steps]
    lower = [min(a, -NOISE_SHARE) if abs(s) <= NOISE_SHARE else a for s, (a, _) in zip(steps, bounds, strict=True)]
    upper = [max(b, NOISE_SHARE) if abs(s) <= NOISE_SHARE else b for s, (_, b) in zip(steps, bounds, strict=True)]
    axes.fill_between(steps, lower, upper, color=ink("muted"), alpha=0.14, linewidth=0, zorder=0)
    for at, name in enumerate(names):
        some = [one for one in points if one.optimization == name]
        colour, shape = ink(COLOURS[at % len(COLOURS)]), _shape(at)
        for is_accurate, face in ((True, colour), (False, "none")):
            at_held = [_at(one) for one in some if one.is_accurate == is_accurate]
            x, y = [p for p, _ in at_held], [g for _, g in at_held]
            axes.scatter(x, y, s=42, marker=shape, facecolors=face, edgecolors=colour, linewidths=1.6, zorder=3)
        if some:
            kept = sum(one.is_accurate for one in some)
            axes.scatter([], [], s=42, marker=shape, color=colour, label=f"{name}: {kept} of {len(some)} held")
    for side in ("bottom", "left"):
        axes.spines[side].set_color(ink("line"))
    axes.tick_params(colors=ink("muted"), which="both")
    if low < 0:
        axes.axhline(0, color=ink("line"), linewidth=0.8, zorder=0)
        axes.axvline(0, color=ink("line"), linewidth=0.8, zorder=0)
    axes.set_xlim(*line)
    axes.set_ylim(*line)
    percents = lambda value, _: f"{100 * value:.0f}%"  # noqa: E731
    axes.xaxis.set_major_formatter(percents)
    axes.yaxis.set_major_formatter(percents)
    axes.set_xlabel("predicted, of the program's time", color=ink("ink"))
    axes.set_ylabel("got", color=ink("ink"))
    place = (0.0, -0.55 / square) if narrow else (1.01, 1.0)
    axes.legend(
        loc="upper left", bbox_to_anchor=place, frameon=False, labelcolor=ink("ink"), fontsize=10,
        title="filled: held", title_fontsize=9,
    ).get_title().set_color(ink("muted"))  # fmt: skip
    return figure


def png(found: PredictionAccuracy) -> bytes:
    """The picture of all outcomes. Raises ValueError where there are none."""
    if not found.outcome_count:
        raise ValueError(NO_OUTCOMES_TEXT)
    inks = colours(dark=False)
    kinds = ", ".join(dict.fromkeys(one.kind for one in found.kept))
    title = f"{sentence(found)}\n{kinds}"
    figure = _picture(found.outcomes, _optimization_names(found), inks.__getitem__, title)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, facecolor=inks["paper"])
    return buffer.getvalue()


def parts(found: PredictionAccuracy) -> tuple[str, ...]:
    """What stands on the page."""
    names = _optimization_names(found)
    body = ["<h1>kernelworks predictions</h1>", f'<p class="sentence">{escape(sentence(found))}</p>']
    for kind in dict.fromkeys(one.kind for one in found.kept):
        points = [one for one in found.outcomes if one.kind == kind]
        body += [f"<h2>{escape(kind)}</h2>", f'<div class="picture">{figure_both(_drawing(points, names, kind))}</div>']
        kept = [one for one in found.kept if one.kind == kind]
        body.append(html(_table(kept, names, _shape_mark)))
    return tuple(body)


def _drawing(points: Sequence[Outcome], names: Sequence[str], kind: str) -> Callable[[float], str]:
    @optional_picture
    def draw(inches: float) -> str:
        return plot.svg_text(_picture(points, names, plot.stand_in, "", inches), f"Predicted against got on {kind}")

    return draw


def document(found: PredictionAccuracy) -> str:
    """One self-contained page."""
    return html_document("kernelworks predictions", parts(found), (*STYLE_SHEETS, "style/shown.css"))
