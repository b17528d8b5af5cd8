"""The kernel map: families, ops and kernels, with certificate, share of the bound and ratio to the baseline."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from kernelworks.records import MapKernel, MapOp
from kernelworks.records.model_map import MappedCalls, ModelMap
from kernelworks.report import quantity
from kernelworks.report.family_readings import family_readings
from kernelworks.report.table import Table
from kernelworks.report.terminal import style_of
from kernelworks.report.text_lines import paragraph

__all__ = ["kernel_map", "markdown", "model_map"]

LEAST_SHARE = 0.01  # of the wall clock: calls below it are counted together
NO_FAMILY = "no op of kernelworks, and gaps"
WIDE_COLUMNS = 100  # from so many columns on what a kernel is worth stands behind its name
GUIDES = 12  # columns that the tree takes before an op's kernels
MOST_DETAILED = 8  # of so many ops each kernel is told without being asked for
TARGET_CELLS = 14
VERIFY = "run `kernelworks verify"  # in the reason of a kernel that has no certificate here
MISSING = "`kernelworks verify --missing` verifies what has no certificate here"
OTHER_MACHINE = re.compile(r"verified on \S+, (?=not confirmed here)")
GPUS = "sm_"  # how the kinds of GPUs begin


def kernel_map(ops: Sequence[MapOp], kind: str, width: int = WIDE_COLUMNS, *, verbose: bool = False) -> RenderableType:
    """What ``kernelworks map`` prints: of many ops a line each, of a few each kernel. ``kind`` is the kind of machine
    that the certificates speak for. With ``verbose`` each kernel of all of them, and what an op template derived."""
    if len(ops) > MOST_DETAILED and not verbose:
        return _overview(ops, kind, width)
    tree = Tree(Text.assemble(("kernel map", "bold"), (f"  {kind}", "dim")), guide_style="dim")
    for family in dict.fromkeys(op.family for op in ops):
        branch = tree.add(Text(family, style="bold"))
        for op in (o for o in ops if o.family == family):
            leaf = branch.add(Text.assemble((op.op, "bold cyan"), (f"  {op.formula}", "dim")))
            leaf.add(_kernel_lines(op.kernels, width, verbose=verbose))
            if verbose and op.derived:
                leaf.add(_derived(op.derived))
    if any(VERIFY in kernel.reason for op in ops for kernel in op.kernels):
        return Group(tree, Text(f"\n{MISSING}", style="dim"))
    return tree


def _overview(ops: Sequence[MapOp], kind: str, width: int) -> RenderableType:
    """A line for each op: which kernel of ours may be chosen here, and what is computed."""
    named = max(len(op.op) for op in ops) + 2
    lines: list[RenderableType] = [Text.assemble(("kernel map", "bold"), (f"  {kind}", "dim"))]
    for family in dict.fromkeys(op.family for op in ops):
        lines.append(Text(family, style="bold"))
        for op in (o for o in ops if o.family == family):
            ours = _served_by(op)
            target = (f"{ours or 'torch':<{TARGET_CELLS}}", "green" if ours else "dim")
            line = Text.assemble((f"  {op.op:<{named}}", "bold cyan"), target, (op.formula, "dim"))
            line.truncate(width, overflow="ellipsis")
            lines.append(line)
    served = sum(bool(_served_by(op)) for op in ops)
    said = (
        f"{len(ops)} ops; the second column is the best kernel that may be chosen here, torch's for "
        f"{len(ops) - served} of them. `kernelworks map OP`: its kernels; `--verbose`: those of all"
    )
    missing = any(VERIFY in kernel.reason for op in ops for kernel in op.kernels)
    said += f"; {MISSING}" if missing else ""
    return Group(*lines, Text(), *paragraph(said, width, style="dim"))


def _served_by(op: MapOp) -> str:
    """The target of the best kernel of ours that may be chosen here; "" if torch's function runs."""
    first = next((kernel.target for kernel in op.kernels if not kernel.reason), "torch")
    return "" if first in ("torch", "reference") else first


def _kernel_lines(kernels: Sequence[MapKernel], width: int, *, verbose: bool) -> RenderableType:
    """A line for each kernel; on a narrow terminal what it is worth stands below its name."""
    wide = width >= WIDE_COLUMNS
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(min_width=12, no_wrap=True)
    table.add_column(min_width=9, justify="right", no_wrap=True)
    table.add_column(min_width=9, no_wrap=True)
    table.add_column(overflow="fold")
    lines: list[Text] = []
    for kernel in kernels:
        speed = f"{quantity.percent(kernel.share_of_bound)} of bound" if kernel.share_of_bound is not None else ""
        against = f"{quantity.ratio(kernel.ratio)} over {kernel.baseline}" if kernel.ratio is not None else ""
        name = Text(kernel.name, style="" if not kernel.reason else "dim")
        standing = _standing(kernel, verbose=verbose)
        if wide:
            table.add_row(name, speed, against, standing)
        else:
            figures = "".join(f"  {figure}" for figure in (speed, against) if figure)
            lines += [Text.assemble(name, figures), *paragraph(standing, width - GUIDES, 2, "  ")]
    return table if wide else Group(*lines)


def _derived(parts: Sequence[tuple[str, str]]) -> Table:
    """What an op's form made, where a reader looks at that op alone."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0), title="derived by its form")
    table.title_justify = "left"
    table.add_column(min_width=12, no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, text in parts:
        table.add_row(name, Text(text))
    return table


def _standing(kernel: MapKernel, *, verbose: bool) -> Text:
    on = f" on {kernel.kind}" if kernel.kind.startswith(GPUS) else ""
    losses = (f"; loses on {', '.join(kernel.losses)}" if kernel.losses else "", "yellow")
    if kernel.reason:
        words = kernel.reason.split("; run")[0].split(" (")[0]
        words = words if verbose else OTHER_MACHINE.sub("verified on another kind of machine, ", words)
        words = words.replace("on this kind of machine", on.strip()) if on and "this kind" in words else words + on
        return Text.assemble((words, "yellow"), losses)
    if kernel.certificate:
        each = ", ".join(f"{share:.2f} in {dtype}" for dtype, share in kernel.worst_by_dtype.items())
        worst = "" if kernel.worst is None else f", worst error {each or format(kernel.worst, '.2f')} of its bound"
        return Text.assemble((f"verified {kernel.certificate}{on}{worst}", "green"), losses)
    return Text.assemble(("plain torch, needs no certificate", "dim"), losses)


def markdown(ops: Sequence[MapOp]) -> str:
    """The reference page of the docs: what every op computes, from where, and its kernels. No figures: those age."""
    lines = [
        "# Ops and kernels",
        "",
        "Written by `kernelworks map --markdown docs/reference/ops.md`; a test checks that it is current.",
        "`kernelworks map OP` prints an op's kernels with this machine's certificates and speeds. Each op takes its",
        "own arguments, or those of torch's function ([calling conventions](calling-conventions.md)).",
    ]
    for family in dict.fromkeys(op.family for op in ops):
        lines += ["", f"## {family}"]
        for op in (o for o in ops if o.family == family):
            kernels = ", ".join(f"`{name}`" for name in dict.fromkeys(kernel.name for kernel in op.kernels))
            readme = f"../../src/kernelworks/{op.op_package}/README.md"
            lines += [
                "",
                f"### {op.op}",
                "",
                f"    {op.formula}",
                *(f"    {name} = {text}" for name, text in op.expressions),
                "",
                *(f"- {'as torch is' if i else 'called'}: `{call}`" for i, call in enumerate(op.calls)),
                f"- source: {op.source}",
                f"- kernels, best first: {kernels}",
            ]
            lines += [f"- mathematics, bound, choices: [{op.op}]({readme})"]
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- of one program


def model_map(record: ModelMap, *, verbose: bool = False) -> RenderableType:
    """What ``kernelworks map --model`` prints. ``verbose``: every call, however short."""
    families = list(dict.fromkeys(one.family for one in record.calls))
    families.sort(key=lambda family: -_seconds(record.calls, family))
    rough = "; rough: other processes used the machine" if record.rough else ""
    parts: list[RenderableType] = [
        Text(f"{record.program} on {record.machine}", style="bold"),
        Text(f"{quantity.seconds(record.wall_s)} a run, {len(record.calls)} call signatures{rough}", style="dim"),
    ]
    for family in families:
        parts += [Text(), *_family_of(record, family, verbose=verbose)]
    elsewhere = quantity.percent(record.elsewhere_s / record.wall_s) if record.wall_s else ""
    parts.append(
        Text(f"\n{elsewhere} of a run is in no call that is shown: `kernelworks diagnose` has it", style="dim")
    )
    return Group(*parts)


def _seconds(calls: Sequence[MappedCalls], family: str) -> float:
    return sum(one.seconds for one in calls if one.family == family)


def _family_of(record: ModelMap, family: str, *, verbose: bool) -> list[RenderableType]:
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
            Text(quantity.bottleneck(one.bottleneck), style=style_of(one.bottleneck)), _kernel_of(one), _place(one),
        )  # fmt: skip
    if shown:
        parts.append(table)
    if len(shown) < len(its):
        rest = quantity.percent(sum(one.share for one in its if one not in shown))
        parts.append(Text(f"  {len(its) - len(shown)} more, {rest} of a run in all", style="dim"))
    return [*parts, *_links(its)]


def _kernel_of(one: MappedCalls) -> str:
    if not one.kernel:  # time in which nothing is computed has no kernel
        return "torch's own" if one.op or one.share_of_roofline is not None else ""
    return f"{one.kernel}, {'verified' if one.verified else 'not verified here'}"


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
