"""The layers of a descent that a CPU's operator and a GPU's have alike: one line each on the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kernelworks.records.descent import OperatorTime
from kernelworks.report import quantity
from kernelworks.report.terminal import style_of

__all__ = ["declined_kernels", "dispatch_choice", "layer", "roofline_place", "upper_layers"]

LABEL = 12


def upper_layers(one: OperatorTime) -> Iterator[RenderableType]:
    """Module, line and operator."""
    if one.module or one.source:
        where = " > ".join(one.module.split(".")) if one.module else "outside any module"
        yield layer("module", f"{where}  {one.source}".rstrip() + (f"  {one.code}" if one.code else ""))
    if one.shapes:
        yield layer("operator", f"{one.operator} {one.shapes}")


def dispatch_choice(one: OperatorTime) -> Text:
    return Text.assemble("kernelworks takes ", (one.kernel, "bold green"), f": {one.because}")


def declined_kernels(one: OperatorTime) -> Iterator[RenderableType]:
    for name, reason in one.declined:
        yield layer("", Text.assemble((name, "bold"), f" declined: {reason}"))


def layer(label: str, text: str | Text) -> RenderableType:
    """A layer: its name, and what is known of it; what does not fit in a line goes on below its own begin."""
    row = Table.grid(padding=0)
    row.add_column(width=LABEL, no_wrap=True, style="dim")
    row.add_column(overflow="fold")
    row.add_row(label, text)
    return Padding(row, (0, 0, 0, 2), expand=False)


def roofline_place(one: OperatorTime) -> Text:
    """Rates, intensity and share of the roofline, as far as they are known."""
    if one.flop is None or one.bytes is None:
        return Text("unknown: no formula says how much work this is")
    per_s = 1e9 * one.seconds
    rates = f"{quantity.gflops(one.flop / per_s)}, {quantity.gbs(one.bytes / per_s)}"
    intensity = f"{quantity.figures(one.flop / one.bytes)} flop a byte" if one.bytes else "no bytes"
    if one.bound_s is None:
        return Text(f"{rates}; {intensity}; the peaks of this machine: `kernelworks machine`")
    share = quantity.percent(min(1.0, one.bound_s / one.seconds))
    limit = Text(quantity.bottleneck(one.bottleneck), style=style_of(one.bottleneck))
    return Text.assemble(f"{rates}; {intensity}; {share} of the roofline ({one.peak}), ", limit)
