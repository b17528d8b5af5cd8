"""A foreign trace on the terminal: the sentence, where the time went, hotspots, kernels, and what it cannot tell."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kernelworks.records.trace import TraceDiagnosis, TraceHotspot, TraceKernel
from kernelworks.report import quantity
from kernelworks.report.terminal import style_of
from kernelworks.report.time_breakdown import time_breakdown

__all__ = ["trace_diagnosis"]

MOST_ROWS = 12
MAX_COLUMNS = 150


def trace_diagnosis(record: TraceDiagnosis, width: int) -> RenderableType:
    """What ``kernelworks diagnose --trace`` prints."""
    sentence = record.sentence[:1].upper() + record.sentence[1:] + "."
    events = f"{record.events} {'events' if record.time_breakdown else 'launches'}"
    context = " · ".join(word for word in (record.file, record.format, ", ".join(record.devices), events) if word)
    parts: list[RenderableType] = [Text(sentence, style="bold"), Text(context, style="dim")]
    if record.time_breakdown:
        parts += [Text(), *time_breakdown(record.time_breakdown, record.wall_s, width)]
    if record.hotspots:
        parts += [Text(), _hotspots(record)]
    if record.kernels:
        parts += [Text(), _kernels(record, width)]
    for title, lines in (("findings", record.findings), ("what this trace cannot tell", record.unknown)):
        if lines:
            parts += [Text(), Text(title, style="bold"), *(Padding(Text(f"- {line}"), (0, 0, 0, 2)) for line in lines)]
    return Group(*parts)


def _hotspots(record: TraceDiagnosis) -> Table:
    rates = any(spot.flop is not None for spot in record.hotspots)
    bounds = any(spot.bottleneck for spot in record.hotspots)
    table = Table(title="hotspots", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.show_edge, table.caption_justify = False, "left"
    table.add_column("op x calls", overflow="fold", min_width=20)
    for heading in ("time", "of wall", *(("GFLOP/s", "GB/s") if rates else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    if bounds:
        table.add_column("bound by", overflow="fold")
        table.add_column("achieved", justify="right", no_wrap=True)
    for spot in record.hotspots[:MOST_ROWS]:
        cells: list[RenderableType] = [
            _where(spot), quantity.seconds(spot.seconds), quantity.percent(spot.share, 1),
            *((_rate(spot.flop, spot.seconds), _rate(spot.bytes, spot.seconds)) if rates else ()),
        ]  # fmt: skip
        if bounds:
            cells += [Text(spot.bottleneck, style=style_of(spot.bottleneck)), quantity.percent(spot.achieved)]
        table.add_row(*cells)
    table.caption = _rest(record.hotspots[MOST_ROWS:])
    return table


def _rest(some: Sequence[TraceHotspot | TraceKernel]) -> str | None:
    """What a table leaves out, in a line; None if that is nothing."""
    return f"and {len(some)} more, {quantity.seconds(sum(one.seconds for one in some))} together" if some else None


def _where(spot: TraceHotspot) -> Text:
    text = Text.assemble((spot.op, "bold"), f" x {spot.calls}")
    for line in (spot.module, spot.source, spot.shapes):
        if line:
            text.append(f"\n{line}", style="dim")
    return text


def _rate(count: float | None, seconds: float) -> str:
    return quantity.figures(count / seconds / 1e9) if count and seconds else "-"


def _kernels(record: TraceDiagnosis, width: int) -> Table:
    bounds = any(kernel.bottleneck for kernel in record.kernels)
    table = Table(title="kernels", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.show_edge, table.caption_justify, table.expand, table.width = False, "left", True, min(width, MAX_COLUMNS)
    table.add_column("kernel", overflow="ellipsis", no_wrap=True, min_width=20, ratio=2)
    ops = any(kernel.op for kernel in record.kernels)
    if ops:
        table.add_column("op", overflow="ellipsis", no_wrap=True, ratio=1)
    for heading in ("runs", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    if bounds:
        table.add_column("bound by", overflow="fold")
        table.add_column("of peak", justify="right", no_wrap=True)
    for kernel in record.kernels[:MOST_ROWS]:
        cells: list[RenderableType] = [Text(kernel.name), *((Text(kernel.op),) if ops else ())]
        cells += [str(kernel.runs), quantity.seconds(kernel.seconds)]
        if bounds:
            cells += [Text(kernel.bottleneck, style=style_of(kernel.bottleneck)), quantity.percent(kernel.achieved)]
        table.add_row(*cells)
    table.caption = _rest(record.kernels[MOST_ROWS:])
    return table
