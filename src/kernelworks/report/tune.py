"""Tuning on the terminal: for each kernel and size the candidates, fastest first, and which is to be used."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kernelworks.records import ConfigCandidate, ConfigTuning
from kernelworks.report import quantity

__all__ = ["tuning"]


def tuning(results: Sequence[ConfigTuning]) -> RenderableType:
    """What ``kernelworks tune`` prints."""
    lines: list[RenderableType] = []
    for result in results:
        sizes = ", ".join(f"{name} {size}" for name, size in result.dims.items())
        title = f"{result.op}.{result.op_kernel} {result.kernel}"
        lines += [Text.assemble((title, "bold"), (f"  {result.case} {result.dtype} ({sizes})", "dim")), _table(result)]
    return Group(*lines)


def _table(result: ConfigTuning) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, show_edge=False, show_header=False)
    table.add_column(min_width=40)
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column(overflow="fold")
    today = next((c.median_us for c in result.candidates if c.set == result.used), None)
    for candidate in sorted(result.candidates, key=lambda c: c.median_us or float("inf")):
        table.add_row(*_row(candidate, result, today))
    return table


def _row(candidate: ConfigCandidate, result: ConfigTuning, today: float | None) -> tuple[Text, str, str, Text]:
    words = ", ".join(f"{name} {value}" for name, value in candidate.set.items())
    if candidate.wrong or candidate.median_us is None:
        return Text(words, style="dim"), "", "", Text(candidate.wrong or "not timed", style="red")
    kept = candidate.set == result.chosen
    note = "used today" if candidate.set == result.used else ""
    if kept:
        note = "used today, and kept" if note else "to be used from now on"
    spread = ((candidate.high_us or 0.0) - (candidate.low_us or 0.0)) / candidate.median_us / 2
    time = f"{quantity.seconds(candidate.median_us / 1e6)} ±{quantity.percent(spread)}"
    speedup = quantity.ratio(today / candidate.median_us) if today else "-"
    return Text(words, style="green" if kept else ""), time, speedup, Text(note, style="green" if kept else "dim")
