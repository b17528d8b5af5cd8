"""A judgement as its reader sees it: the verdict, why, how near the bound, how quick, and what was tried."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from kernelworks.records.judgement import Charge, Judgement, Speed
from kernelworks.report import quantity
from kernelworks.report.table import Table

__all__ = ["judgement", "sentence"]

STYLES = {"right": "green", "refused": "red", "unsound": "yellow", "undecided": "yellow"}
WORDS = {
    "right": "right: does what the problem asks",
    "refused": "refused",
    "unsound": "no verdict: the problem cannot tell right from wrong",
    "undecided": "no verdict",
}


# What a candidate must be kept from, as the sandbox names it: a judgement without one says so first.
WALLS = ("users", "network", "processes", "files", "writing elsewhere", "seeing processes", "rights", "system calls")


def missing_walls(found: Judgement) -> tuple[str, ...]:
    """What a candidate was not kept from that every candidate must be."""
    lines = [line.partition(":")[0] for line in found.open_to]
    return tuple(wall for wall in WALLS if wall in lines)


def sentence(found: Judgement) -> str:
    """The verdict in a line, with the walls that were missing."""
    walls = missing_walls(found)
    without = f"; judged without these walls: {', '.join(walls)}" if walls else ""
    return f"{_verdict(found)}{without}"


def _verdict(found: Judgement) -> str:
    words = f"{found.candidate} for {found.problem}: {WORDS[found.verdict]}"
    if found.verdict == "right":
        quick = ", ".join(f"{_ratio(s)} over {s.over}" for s in found.speeds)
        return f"{words}{f'; {quick}' if quick else ''}"
    return f"{words}: {' '.join(found.reasons[0].said.split())}" if found.reasons else words


def _ratio(speed: Speed) -> str:
    """One that is ambiguous is said as far as it is known."""
    if not speed.ambiguous:
        return quantity.ratio(speed.ratio)
    return f"{quantity.ratio(speed.low)} to {quantity.ratio(speed.high)} (ambiguous)"


def judgement(found: Judgement) -> RenderableType:
    """What ``kernelworks judge`` prints."""
    style = STYLES[found.verdict]
    lines: list[RenderableType] = [Text(sentence(found), style=f"bold {style}")]
    lines += [*_charges("why", found.reasons, style), Text(), _facts(found)]
    if found.paces:
        lines += [Text(), _paces(found)]
    lines += _charges("to know", found.remarks, "yellow")
    lines += _list("the bound is made of", found.bound)
    lines += _list("what it was not kept from", found.open_to)
    return Group(*lines)


def _charges(title: str, charges: Iterable[Charge], style: str) -> list[RenderableType]:
    said = [Padding(Text(f"- {c.kind}: {c.said}", style=style), (0, 0, 0, 2)) for c in charges]
    return [Text(title, style="bold"), *said] if said else []


def _list(title: str, items: Iterable[str]) -> list[RenderableType]:
    said = [Padding(Text(f"- {item}"), (0, 0, 0, 2)) for item in items]
    return [Text(title, style="bold"), *said] if said else []


def _facts(found: Judgement) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(overflow="fold")
    worst = "-" if found.worst is None else f"{quantity.percent(found.worst)} of the derived bound"
    rows = (
        ("worst error", worst),
        ("held against the reference", f"{found.elements} elements of {found.calls} answers"),
        ("inputs", f"{', '.join(found.draws)} at {', '.join(found.shapes)}"),
        ("weights", found.weights),
        ("own kernels that ran", ", ".join(found.kernels)),
        ("least time", "" if found.limit_s is None else f"{quantity.seconds(found.limit_s)}: {found.peak}"),
        ("bound by", quantity.bottleneck(found.bound_by)),
        ("by its own events", "" if found.events_s is None else f"{quantity.seconds(found.events_s)} a call"),
        ("kept from", ", ".join(found.kept_from)),
        ("build", quantity.seconds(found.build_s)),
        ("judged in", quantity.seconds(found.seconds)),
    )
    for name, value in rows:
        if value:
            table.add_row(name, value)
    return table


def _paces(found: Judgement) -> Table:
    table = Table(title="pace", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.show_edge = False
    table.add_column("")
    for heading in ("median", "10% to 90%", "least time", "the candidate is", "interval"):
        table.add_column(heading, justify="right", no_wrap=True)
    speeds = {s.over: s for s in found.speeds}
    for pace in found.paces:
        share = "-" if not found.limit_s or not pace.median_s else quantity.percent(found.limit_s / pace.median_s)
        its = speeds.get(pace.variant)
        ratio = "" if its is None else f"{quantity.ratio(its.ratio)}{' ambiguous' if its.ambiguous else ''}"
        between = "" if its is None else f"{its.low:.2f} to {its.high:.2f}"
        wide = f"{quantity.seconds(pace.low_s)} to {quantity.seconds(pace.high_s)}"
        table.add_row(pace.variant, quantity.seconds(pace.median_s), wide, share, ratio, between)
    return table
