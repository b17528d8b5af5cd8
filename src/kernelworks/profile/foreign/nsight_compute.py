"""CSV exports of Nsight Compute (``ncu --csv``, ``--page raw`` or ``--page details``): each launch with its counters.

The page of details has a line for each figure of a launch, the raw page a line for each launch and its units below the
head. The shares of peak are Nsight Compute's own, of datasheet peaks at the clock of the moment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from kernelworks.profile.foreign.events import TraceError
from kernelworks.profile.foreign.sums import KernelSums, Totals, figure, seconds_of

__all__ = ["read_compute_csv"]

DURATION = ("gpu__time_duration.sum", "gpu__time_duration.avg", "Duration")
# What bounds a kernel -> the figures that say how near its peak it came, by their names on either page.
SHARES = {
    "compute": ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "Compute (SM) Throughput", "SM [%]"),
    "memory DRAM": (
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        "DRAM Throughput",
    ),
    "memory L2": ("lts__t_sectors.avg.pct_of_peak_sustained_elapsed", "L2 Cache Throughput"),
    "memory L1": ("l1tex__throughput.avg.pct_of_peak_sustained_active", "L1/TEX Cache Throughput"),
}  # fmt: skip
NAME, NUMBER, METRIC = "Kernel Name", "ID", "Metric Name"
UNKNOWN = (
    "the time between kernels, and the program's wall clock: Nsight Compute runs each kernel by itself, some of them "
    "several times",
    "the ops and the lines of the program that launched them",
    "measured peaks: shares of peak are of Nsight Compute's own",
    "whether any optimization would be right or gain time: a trace holds no values and cannot be run again",
)


def read_compute_csv(head: Sequence[str], rows: Iterable[Sequence[str]]) -> KernelSums:
    """The kernels in the rows below ``head``. Raises TraceError if there are none."""
    names = [name.strip() for name in head]
    totals, found = Totals(), KernelSums([], UNKNOWN)
    read = _read_details if METRIC in names else _read_raw
    for name, figures in read(names, rows, found):
        seconds = next((s for key in DURATION if key in figures and (s := seconds_of(*figures[key])) is not None), None)
        if not name or seconds is None:
            found.skipped += 1
            continue
        totals.add(name, seconds, shares=_shares(figures))
    found.kernels = totals.kernels()
    if not found.kernels:
        raise TraceError(
            "an export of Nsight Compute without durations: export it with `ncu --csv --page raw`, or with the metric "
            "gpu__time_duration.sum"
        )
    if found.skipped:
        found.remarks.append(f"{found.skipped} launches have no name or no duration and were left out")
    return found


Figures = dict[str, tuple[str, str]]  # name -> value, unit


def _shares(figures: Mapping[str, tuple[str, str]]) -> dict[str, float]:
    found = {}
    for what, keys in SHARES.items():
        for key in keys:
            value = figure(figures[key][0]) if key in figures and figures[key][1].strip() in ("%", "") else None
            if value is not None and 0 <= value < 1000:
                found[what] = value / 100
                break
    return found


def _read_details(
    names: list[str], rows: Iterable[Sequence[str]], found: KernelSums
) -> Iterable[tuple[str, Figures]]:  # fmt: skip
    """The lines of one launch stand together."""
    at = {name: number for number, name in enumerate(names)}
    value, unit = at.get("Metric Value"), at.get("Metric Unit")
    if value is None or unit is None:
        raise TraceError("an export of Nsight Compute without its columns Metric Value and Metric Unit")
    key: tuple[str, str] | None = None
    figures: Figures = {}
    for row in rows:
        if len(row) <= max(value, unit, at[NAME], at[METRIC]):
            continue
        this = (row[at[NUMBER]] if NUMBER in at else "", row[at[NAME]])
        if NUMBER not in at and row[at[METRIC]] in figures:
            key = None  # the same figure again: another launch
        if this != key:
            if figures:
                yield (key or this)[1], figures
            key, figures = this, {}
        if row[at[METRIC]] not in figures or row[unit].strip() == "%":  # "Memory Throughput" is there twice
            figures[row[at[METRIC]]] = (row[value], row[unit])
    if figures and key is not None:
        yield key[1], figures


def _read_raw(names: list[str], rows: Iterable[Sequence[str]], found: KernelSums) -> Iterable[tuple[str, Figures]]:
    units = [""] * len(names)
    wanted = {*DURATION, *(key for keys in SHARES.values() for key in keys)}
    plain = [re.sub(r"^(?:\w+\.)+(?=gpu__|sm__|dram__|lts__|l1tex__)", "", name) for name in names]
    chosen = [(number, name) for number, name in enumerate(plain) if name in wanted]
    at = names.index(NAME)
    for number, row in enumerate(rows):
        if len(row) < len(names):
            continue
        if number == 0 and not row[at].strip():  # the units
            units = list(row)
            continue
        yield row[at], {name: (row[column], units[column]) for column, name in chosen if row[column].strip()}
