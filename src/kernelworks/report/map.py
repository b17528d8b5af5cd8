"""The kernel map: families, ops and rows as a tree, with certificate, share of the bound and ratio to the baseline."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from kernelworks.records import MapOp, MapRow
from kernelworks.report import quantity

__all__ = ["kernel_map", "markdown"]

GPUS = "sm_"  # how the kinds of GPUs begin


def kernel_map(ops: Sequence[MapOp], kind: str) -> RenderableType:
    """What ``kernelworks map`` prints. ``kind`` is the kind of machine that the certificates speak for."""
    tree = Tree(Text.assemble(("kernel map", "bold"), (f"  {kind}", "dim")), guide_style="dim")
    for family in dict.fromkeys(op.family for op in ops):
        branch = tree.add(Text(family, style="bold"))
        for op in (o for o in ops if o.family == family):
            leaf = branch.add(Text.assemble((op.op, "bold cyan"), (f"  {op.formula}", "dim")))
            leaf.add(_rows(op.rows))
            if len(ops) == 1 and op.derived:
                leaf.add(_derived(op.derived))
    if any("run `kernelworks prove" in row.reason for op in ops for row in op.rows):
        return Group(tree, Text("\n`kernelworks prove --missing` proves what has no certificate here", style="dim"))
    return tree


def _rows(rows: Sequence[MapRow]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(min_width=12, no_wrap=True)
    table.add_column(min_width=9, justify="right", no_wrap=True)
    table.add_column(min_width=9, no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        speed = f"{quantity.percent(row.share_of_bound)} of bound" if row.share_of_bound is not None else ""
        against = f"{quantity.ratio(row.ratio)} over {row.baseline}" if row.ratio is not None else ""
        table.add_row(Text(row.name, style="" if not row.reason else "dim"), speed, against, _standing(row))
    return table


def _derived(parts: Sequence[tuple[str, str]]) -> Table:
    """What an op's form made, where a reader looks at that op alone."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0), title="derived by its form")
    table.title_justify = "left"
    table.add_column(min_width=12, no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, text in parts:
        table.add_row(name, Text(text))
    return table


def _standing(row: MapRow) -> Text:
    on = f" on {row.kind}" if row.kind.startswith(GPUS) else ""
    losses = (f"; loses on {', '.join(row.losses)}" if row.losses else "", "yellow")
    if row.reason:
        words = row.reason.split("; run")[0].split(" (")[0]
        words = words.replace("on this kind of machine", on.strip()) if on and "this kind" in words else words + on
        return Text.assemble((words, "yellow"), losses)
    if row.certificate:
        each = ", ".join(f"{share:.2f} in {dtype}" for dtype, share in row.worst_by_dtype.items())
        worst = "" if row.worst is None else f", worst error {each or format(row.worst, '.2f')} of its bound"
        return Text.assemble((f"proved {row.certificate}{on}{worst}", "green"), losses)
    return Text.assemble(("plain torch, needs no certificate", "dim"), losses)


def markdown(ops: Sequence[MapOp]) -> str:
    """The reference page of the docs: what every op computes, from where, and its rows. No figures: those age."""
    lines = [
        "# Reference: ops and rows",
        "",
        "Generated from the rows by `kernelworks map --markdown docs/reference.md`; a test checks that it is current.",
        "`kernelworks map` prints the same tree with this machine's certificates and speeds. Each op is called in its",
        "own way, or as torch's function is ([faces](faces.md)).",
    ]
    for family in dict.fromkeys(op.family for op in ops):
        lines += ["", f"## {family}"]
        for op in (o for o in ops if o.family == family):
            rows = ", ".join(f"`{name}`" for name in dict.fromkeys(row.name for row in op.rows))
            room = f"../src/kernelworks/{op.room}/README.md"
            lines += [
                "",
                f"### {op.op}",
                "",
                f"    {op.formula}",
                "",
                *(f"- {'as torch is' if i else 'called'}: `{call}`" for i, call in enumerate(op.calls)),
                f"- source: {op.source}",
                f"- rows, best first: {rows}",
            ]
            lines += [f"- mathematics, bound, choices: [{op.op}]({room})"]
    return "\n".join(lines) + "\n"
