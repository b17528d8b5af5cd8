"""The kernel map of one model on the terminal: families in the order of their time, and below each its calls."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from kernelworks.records.model_map import MappedCalls, ModelMap
from kernelworks.report import quantity
from kernelworks.report.family_readings import family_readings
from kernelworks.report.table import Table
from kernelworks.report.terminal import style_of

__all__ = ["model_map"]

LEAST_SHARE = 0.01  # of the wall clock: calls below it are counted together
NO_FAMILY = "no op of kernelworks, and gaps"


def model_map(record: ModelMap, *, verbose: bool = False) -> RenderableType:
    """What ``kernelworks map --model`` prints. ``verbose``: every call, however short."""
    families = list(dict.fromkeys(one.family for one in record.calls))
    families.sort(key=lambda family: -_seconds(record.calls, family))
    rough = "; rough: other processes used the machine" if record.rough else ""
    parts: list[RenderableType] = [
        Text(f"{record.program} on {record.machine}", style="bold"),
        Text(f"{quantity.seconds(record.wall_s)} a run, {len(record.calls)} kinds of calls{rough}", style="dim"),
    ]
    for family in families:
        parts += [Text(), *_family(record, family, verbose=verbose)]
    elsewhere = quantity.percent(record.elsewhere_s / record.wall_s) if record.wall_s else ""
    parts.append(
        Text(f"\n{elsewhere} of a run is in no call that is shown: `kernelworks diagnose` has it", style="dim")
    )
    return Group(*parts)


def _seconds(calls: Sequence[MappedCalls], family: str) -> float:
    return sum(one.seconds for one in calls if one.family == family)


def _family(record: ModelMap, family: str, *, verbose: bool) -> list[RenderableType]:
    its = [one for one in record.calls if one.family == family]
    shown = its if verbose else [one for one in its if one.share >= LEAST_SHARE]
    share = quantity.percent(sum(one.share for one in its))
    parts: list[RenderableType] = [Text.assemble((family or NO_FAMILY, "bold"), f"  {share} of a run")]
    reading = family_readings().get(family)
    if reading is not None:
        parts.append(Text(f"  {reading.model}", style="dim"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("operator", "share", "of the roofline", "bound by", "kernel once swapped", "where"):
        table.add_column(heading, justify="right" if "share" in heading or "roofline" in heading else "left")
    for one in shown:
        limit = "unknown" if one.share_of_roofline is None else quantity.percent(one.share_of_roofline)
        table.add_row(
            one.operator, quantity.percent(one.share), limit,
            Text(quantity.bottleneck(one.bottleneck), style=style_of(one.bottleneck)), _kernel(one), _place(one),
        )  # fmt: skip
    if shown:
        parts.append(table)
    if len(shown) < len(its):
        rest = quantity.percent(sum(one.share for one in its if one not in shown))
        parts.append(Text(f"  {len(its) - len(shown)} more, {rest} of a run in all", style="dim"))
    return [*parts, *_links(its)]


def _kernel(one: MappedCalls) -> str:
    if not one.kernel:  # time in which nothing is computed has no kernel
        return "torch's own" if one.op or one.share_of_roofline is not None else ""
    return f"{one.op}: {one.kernel}, {'verified' if one.verified else 'not verified here'}"


def _place(one: MappedCalls) -> str:
    return " ".join(filter(None, (" > ".join(one.module.split(".")) if one.module else "", one.source)))


def _links(calls: Sequence[MappedCalls]) -> list[RenderableType]:
    """Where to read on: each op's page once, and the exercises in which it is written."""
    lines: list[RenderableType] = []
    for op in dict.fromkeys(one.op for one in calls if one.op):
        one = next(one for one in calls if one.op == op)
        learn = f"; kernelworks learn start {', '.join(one.exercises)}" if one.exercises else ""
        lines.append(Text(f"  {op}: kernelworks map {op}{learn}", style="dim"))
    return lines
