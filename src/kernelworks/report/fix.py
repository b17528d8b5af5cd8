"""A fix as its reader sees it: before and after, and every optimization, applied, rejected or not tried, and why."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kernelworks.records.fix import Fix, TriedOptimization
from kernelworks.report import quantity

__all__ = ["ROUGH_MARK", "error_verdict", "fix", "gain_verdict", "optimization_table", "plain_text"]

ROUGH_MARK = " rough"  # behind the figures of every line, where others used the machine
NO_WORSE_FACTOR = 3.0  # times the error of before: between two orders of one sum, that is luck


def fix(record: Fix, mark: str = "") -> RenderableType:
    """Before and after, the gain that was predicted beside the gain that was got, and the optimizations. ``mark``
    stands after every figure."""
    mark = mark or (ROUGH_MARK if record.rough else "")
    speedup = record.before_s / record.after_s if record.after_s > 0 else None
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right", style="bold")
    table.add_column()
    table.add_row("before", quantity.seconds(record.before_s) + mark, "")
    table.add_row(
        "after", quantity.seconds(record.after_s) + mark, f"{quantity.ratio(speedup)} over the program as it was"
    )
    predicted = record.predicted_gain_s
    table.add_row("gain predicted", "-" if predicted is None else quantity.seconds(predicted) + mark, "")
    table.add_row("gain got", quantity.seconds(record.gain_s) + mark, gain_verdict(record))
    if record.against:
        verdict = Text(error_verdict(record), style="green" if record.agrees else "bold red")
        table.add_row("error before", f"{record.error_before:.2e}", f"relative, against {record.against}")
        table.add_row("error after", f"{record.error_after:.2e}", verdict)
    else:
        table.add_row("error", "-", Text("NOT COMPARED: not verified", style="bold red"))
    head = Text(f"with the fix, {record.rounds} rounds in alternation", style="bold")
    lines: list[RenderableType] = [head, table] if record.rounds else [Text("no fix was applied", style="bold")]
    if record.refused:
        lines.append(Text(f"refused: {record.refused}", style="bold red"))
    if record.optimizations:
        lines += [Text(), optimization_table(record, mark)]
    if record.code:
        lines += [Text("to have it without kernelworks", style="bold"), Padding(Text(record.code), (0, 0, 0, 2))]
    for title, items in (("replaced", record.replaced), ("left as it was", record.left), ("notes", record.notes)):
        if items:
            lines += [Text(title, style="bold"), *(Padding(Text(f"- {item}"), (0, 0, 0, 2)) for item in items)]
    return Group(*lines)


def error_verdict(record: Fix) -> str:
    """What the errors before and after say, in words."""
    if not record.agrees:
        return "WORSE: not to be kept"
    if record.error_after <= NO_WORSE_FACTOR * record.error_before or not record.error_after:
        return "no worse"
    allowed = [one.changes for one in record.optimizations if one.applied and one.changes]
    return f"more, as {', '.join(allowed)} allows" if allowed else "more, and no more than rounding explains"


def optimization_table(record: Fix, mark: str = "") -> Table:
    """Every optimization: applied, rejected or not tried, and why; what was predicted and got, its cost and error."""
    table = Table(title="optimizations", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.show_edge = False
    table.add_column("", no_wrap=True)
    table.add_column("optimization, where", overflow="fold", ratio=2)
    for heading in ("predicted", "got", "cost", "error"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("why", overflow="fold", ratio=3)
    for one in sorted(record.optimizations, key=lambda one: not one.applied):
        what = Text.assemble((one.optimization, "bold"), f": {one.says}" if one.says else "")
        if one.place:
            what.append(f"\n{one.place}", style="dim")
        gains = ("-" if gain is None else quantity.seconds(gain) + mark for gain in (one.predicted_gain_s, one.gain_s))
        style = "green" if one.applied else "yellow" if one.advice else "dim"
        table.add_row(Text(_verdict(one), style=style), what, *gains, _cost(one), _error(one), one.advice or one.why)
    return table


def _verdict(one: TriedOptimization) -> str:
    return "advice" if one.advice else one.outcome


def _cost(one: TriedOptimization) -> str:
    """Seconds until it is in place, and the memory that it keeps."""
    words = [quantity.seconds(one.cost_s)] if one.cost_s >= 0.1 else []
    if one.cost_bytes:
        words.append(f"{one.cost_bytes / 1e6:.3g} MB")
    return ", ".join(words) or "-"


def _error(one: TriedOptimization) -> str:
    """After, as a share of what it was before; where that was nothing, as it is."""
    if not one.against:
        return "-"
    if one.error_before:
        return f"{one.error_after / one.error_before:.2f}x"
    return f"{one.error_after:.1e}" if one.error_after else "0"


def gain_verdict(record: Fix) -> str:
    """How the prediction compares with what was got, in words."""
    if record.predicted_gain_s is None:
        return "nothing was predicted"
    if record.gain_s <= record.noise_s:
        return "no gain: slower" if record.gain_s < -record.noise_s else "no gain beyond the noise"
    if record.predicted_gain_s <= 0:
        return "no gain was predicted"
    return f"the prediction was {quantity.percent(record.predicted_gain_s / record.gain_s)} of it"


def plain_text(record: Fix) -> str:
    """The same in lines of text."""
    if record.rounds:
        speedup = quantity.ratio(record.before_s / record.after_s if record.after_s > 0 else None)
        times = f"{quantity.seconds(record.before_s)} -> {quantity.seconds(record.after_s)}"
        head = f"{times}, {speedup}; {gain_verdict(record)}"
    else:
        head = f"nothing was changed{f': {record.refused}' if record.refused else ''}"
    lines = [
        f"  {_verdict(one)}: {one.optimization}{f', {one.says}' if one.says else ''}: {one.advice or one.why}"
        for one in sorted(record.optimizations, key=lambda one: not one.applied)
    ]
    return "\n".join([head, *lines])
