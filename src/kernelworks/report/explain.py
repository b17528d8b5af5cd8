"""One choice on the terminal: the kernel chosen, why each kernel above it was not, and what bounds the call."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from kernelworks.records import Explanation
from kernelworks.report import quantity
from kernelworks.report.table import Table
from kernelworks.report.terminal import style_of

__all__ = ["explanation"]


def explanation(record: Explanation) -> RenderableType:
    """What ``kernelworks explain`` prints."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    where = "the GPU" if record.device == "cuda" else f"{record.threads} thread{'s' if record.threads > 1 else ''}"
    table.add_row("call", f"{record.op}({record.call}) on {where}")
    table.add_row("kernel", Text.assemble((record.kernel, "bold green"), f": {record.because}"))
    for name, reason in record.declined:
        table.add_row("", Text.assemble((name, "bold"), f" declined: {reason}"))
    if record.through_python:
        table.add_row("called", f"through Python, some microseconds later than through C++: {record.through_python}")
    for line in record.compiled:
        table.add_row("compiled", f'backend="kernelworks": {line}')
    work = f"{_count(record.flop)}flop, {_count(record.bytes)}byte it cannot avoid moving"
    table.add_row("work", f"{work}, {record.assumed}" if record.assumed else work)
    if record.bound_us is None:
        device = " --device cuda" if record.device == "cuda" else ""
        table.add_row("bound", f"unknown: `kernelworks machine{device}` measures what this machine can do")
        return table
    limit = Text.assemble("bound by ", (record.bottleneck, style_of(record.bottleneck)), f", {record.peak}")
    when = f" {record.assumed}" if record.assumed else ""
    table.add_row("bound", Text.assemble(quantity.seconds(record.bound_us / 1e6), when, ", ", limit))
    if record.predicted_us is not None:
        table.add_row("predicted", quantity.seconds(record.predicted_us / 1e6) + when)
    return Group(table)


def _count(value: float) -> str:
    """A count with a decimal prefix: ``16.8 M``."""
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{quantity.figures(value / scale)} {prefix}"
    return f"{quantity.figures(value)} "
