"""One tile's journey as text and as a picture: which bytes move when, how often each is used, what that makes."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from kernelworks.records.climb import Journey, Move
from kernelworks.report import plot, quantity
from kernelworks.report.document import document, table
from kernelworks.report.optional_pictures import optional_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["page", "picture", "text"]

LEVELS = ("memory", "L2", "L1", "registers")
HEIGHTS = {"memory": 0.0, "L2": 1.0, "L1": 2.0, "registers": 3.0}
COLOURS = {"A": "series1", "B": "series2", "C": "series3"}


def _title(record: Journey) -> str:
    m, n, k = record.size.values()
    return f"C[{m}, {n}] = A[{m}, {k}] B[{k}, {n}] in float32, tile {_shape(record.tile)}, block {_shape(record.block)}"


def _shape(pair: tuple[int, int]) -> str:
    return f"{pair[0]} x {pair[1]}"


def text(record: Journey) -> Group:
    """The trips, outermost first, and the flop for each byte that leaves each level."""
    found = Table(title=_title(record), title_justify="left", title_style="bold")
    for name in ("what moves", "from", "to"):
        found.add_column(name)
    for name in ("shape", "bytes a trip", "trips", "all bytes", "uses of each element"):
        found.add_column(name, justify="right")
    for x in record.moves:
        sizes = (_shape(x.shape), str(x.bytes), str(x.trips), quantity.size(x.bytes * x.trips), str(x.uses))
        found.add_row(x.what, x.source, x.to, *sizes)
    lines = [Text(f"{name}: {quantity.figures(rate)} flop for each byte") for name, rate in record.intensity.items()]
    return Group(found, Text(), *lines, Text(), Text(sentence(record)))


def sentence(record: Journey) -> str:
    """What the journey shows."""
    m, n, k = record.size.values()
    once = quantity.figures(record.flop / (4 * (m * k + k * n + m * n)))
    tile_m, tile_n = record.tile
    return (
        f"An element of B is fetched from memory once for all {m} rows, from L2 once for {tile_m} rows, and then waits "
        f"in a register for {tile_m} multiply-adds; one of A is used {tile_n} times a load. A larger tile means fewer "
        f"loads from L1, a larger block fewer trips to memory. Were every byte moved once, memory would give {once} "
        "flop for each."
    )


@optional_picture
def picture(record: Journey) -> str:
    """The memory hierarchy, with an arrow for each kind of trip, as thick as its share of the bytes."""
    figure, axes = plot.canvas(10.5, 6.0, "tile")
    axes.set_axis_off()
    for level, height in HEIGHTS.items():
        half = 4.6 - 0.75 * height
        corners = ((-half, height), (half, height), (half - 0.35, height + 0.42), (-half + 0.35, height + 0.42))
        axes.fill(*zip(*corners, strict=True), color=plot.stand_in("line"), alpha=0.9)
        axes.text(
            -half + 0.45, height + 0.21, level, ha="left", va="center", fontsize=12, weight="bold",
            color=plot.stand_in("ink"),
        )  # fmt: skip
    places = {"B": -1.9, "A": -0.2, "C": 1.5}
    for x in record.moves:
        _arrow(axes, x, places[_matrix(x)])
    for name, rate in record.intensity.items():
        height = HEIGHTS[name.removeprefix("out of ")]
        axes.text(
            4.9, height + 0.7, f"{quantity.figures(rate)} flop\nfor each byte\n{name}", ha="left", va="center",
            fontsize=10, color=plot.stand_in("muted"),
        )  # fmt: skip
    axes.set_xlim(-4.8, 6.4)
    axes.set_ylim(-0.1, 3.6)
    return plot.svg_text(figure, "One tile's journey through the memory hierarchy")


def _matrix(move: Move) -> str:
    return next(name for name in COLOURS if f"of {name}" in move.what)


def _arrow(axes: Axes, move: Move, place: float) -> None:
    colour = plot.stand_in(COLOURS[_matrix(move)])
    low, high = HEIGHTS[move.source] + 0.46, HEIGHTS[move.to] - 0.04
    style = "<|-|>" if "back" in move.what else "-|>"
    width = 1.0 + 0.9 * len(str(move.bytes * move.trips // 1024))
    axes.annotate(
        "", (place, high), xytext=(place, low), arrowprops={"arrowstyle": style, "color": colour, "linewidth": width}
    )
    label = f"{move.what}\n{_shape(move.shape)}, {move.trips} trips, {move.uses} uses"
    axes.text(place + 0.1, low + 0.05, label, ha="left", va="bottom", fontsize=8.5, color=plot.stand_in("ink"))


def page(record: Journey) -> str:
    """The picture and the table's figures in one self-contained page."""
    titles = ("what moves", "between", "shape", "bytes a trip", "trips", "all bytes", "uses of each element")
    rows = [
        (
            x.what, f"{x.source} to {x.to}", _shape(x.shape), str(x.bytes), str(x.trips),
            quantity.size(x.bytes * x.trips), str(x.uses),
        )
        for x in record.moves
    ]  # fmt: skip
    return document(
        "One tile's journey - kernelworks climb",
        (
            f"<h1>{escape(_title(record))}</h1>",
            f'<p class="sentence">{escape(sentence(record))}</p>',
            f'<div class="picture wide-only" id="tile">{picture(record)}</div>',  # the table says the same
            table("Which bytes move when", titles, rows),
        ),
    )
