"""A small experiment about one concept, as it came out on one machine: points to draw, and what they say."""

from __future__ import annotations

from dataclasses import dataclass

from kernelworks.records.base import Record

__all__ = ["Axis", "Experiment", "Point", "Series"]


@dataclass(frozen=True)
class Axis:
    """What is drawn along one direction. ``unit`` is ``s``, ``B``, ``GB/s``, ``GFLOP/s``, or what follows a figure."""

    label: str
    unit: str = ""
    logarithmic: bool = False


@dataclass(frozen=True)
class Point:
    """One figure. ``low`` and ``high`` hold it; what was computed, not timed, is equal to both."""

    x: float
    value: float
    low: float
    high: float
    label: str = ""  # in place of ``x``: "4 x 2"


@dataclass(frozen=True)
class Series:
    name: str
    points: tuple[Point, ...]
    is_limit: bool = False  # a bound or a floor that the others are compared with


@dataclass(frozen=True)
class Experiment(Record):
    """``question`` and ``expected`` were written before anything was measured, ``readings`` from the points."""

    name: str
    question: str
    expected: str
    machine: str
    date: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    readings: tuple[str, ...]
    page: str  # of the documentation, that explains it
    is_timed: bool  # its figures are times of this machine; else they are the same on every one
    rough: str = ""  # what other processes took meanwhile, if figures were asked for all the same
    notes: tuple[str, ...] = ()
