"""What ``autotune`` found, on the terminal: for each kind of call torch's time beside ours, and which of them runs."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kernelworks.records import AutotunedCall, AutotuneResult
from kernelworks.report import quantity

__all__ = ["autotune_result", "text"]


def autotune_result(record: AutotuneResult) -> RenderableType:
    """What ``kernelworks autotune`` prints."""
    lines: list[RenderableType] = []
    for op in dict.fromkeys(call.op for call in record.calls):
        lines += [Text(op, style="bold"), _table([c for c in record.calls if c.op == op]), Text()]
    return Group(*lines, *(Text(line, style="yellow") for line in record.notes), Text(_summary(record)))


def text(record: AutotuneResult) -> str:
    """The same without a terminal: one line a call."""
    lines = []
    for call in record.calls:
        torch, ours, ratio = _figures(call)
        times = f"torch {torch}, ours ({call.kernel}) {ours}, {ratio}; " if call.kernel else ""
        lines.append(f"{call.op} {call.what} {call.call}: {times}takes {call.taken}: {call.why}")
    return "\n".join([*lines, *record.notes, _summary(record)])


def _table(calls: list[AutotunedCall]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("call", overflow="fold", min_width=24)
    table.add_column("", no_wrap=True)
    for name in ("torch", "ours", "torch / ours"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("takes", no_wrap=True)
    table.add_column("why", overflow="fold", min_width=16)
    for call in calls:
        ours = call.taken != "torch"
        style = "green" if ours else ""
        table.add_row(call.call, call.what, *_figures(call), Text(call.taken, style=style), Text(call.why, style="dim"))
    return table


def _figures(call: AutotunedCall) -> tuple[str, str, str]:
    if not call.torch_us:
        return "-", "-", "-"
    return quantity.seconds(call.torch_us / 1e6), quantity.seconds(call.ours_us / 1e6), quantity.ratio(call.ratio)


def _summary(record: AutotuneResult) -> str:
    kinds = {(call.op, call.what, call.call) for call in record.calls}
    benchmarked = sum(call.rounds > 0 for call in record.calls)
    ours = sum(call.taken != "torch" for call in record.calls)
    if not kinds:
        return "no call of an op of ours was made: nothing to settle"
    threads = f"{record.threads} thread{'s' if record.threads > 1 else ''}"
    return (
        f"{len(kinds)} kinds of call on {', '.join(record.kinds)} with {threads}: {ours} take a row of ours, the "
        f"others torch; {benchmarked} raced now, in {quantity.seconds(record.seconds)}"
    )
