"""The figures of an experiment as people read them."""

from __future__ import annotations

from collections.abc import Callable

from kernelworks.records.experiment import Axis, Experiment, Point
from kernelworks.report import quantity

__all__ = ["axis_title", "figure", "places", "place_name"]

OF_UNIT: dict[str, Callable[[float], str]] = {
    "s": quantity.seconds,
    "B": quantity.size,
    "GB/s": quantity.gbs,
    "GFLOP/s": quantity.gflops,
    "%": lambda value: f"{quantity.figures(value)}%",
}

CHANGING = ("s", "B")  # units that change with the size of a figure: 3 us, 4 ms


def figure(value: float, axis: Axis) -> str:
    """A value with its unit."""
    if axis.unit in OF_UNIT:
        return OF_UNIT[axis.unit](value)
    text = f"{value:.0f}" if value == round(value) and abs(value) < 1e7 else f"{value:.3g}"
    return f"{text} {axis.unit}".rstrip()


def axis_title(axis: Axis) -> str:
    """The axis' label, with its unit if that does not change with the size of the figure."""
    return f"{axis.label}, {axis.unit}" if axis.unit and axis.unit not in CHANGING else axis.label


def place_name(point: Point, axis: Axis) -> str:
    """What stands for a point's x: its label, or the figure; its unit stands with the axis unless it changes."""
    plain = axis if axis.unit in CHANGING else Axis(axis.label)
    return point.label or figure(point.x, plain)


def places(record: Experiment) -> list[tuple[float, str]]:
    """Every x that a series has, in order, with its name."""
    found: dict[float, str] = {}
    for series in record.series:
        for point in series.points:
            found.setdefault(point.x, place_name(point, record.x))
    return sorted(found.items())
