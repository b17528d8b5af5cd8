"""What a problem check found: whether a problem is worth a score, why not, and which answers would pass without its
work."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from kernelworks.records.problem_check import NOT_LOOKED, NOT_WORTH, WEAK, WORTH, Guess, ProblemCheck
from kernelworks.report import quantity
from kernelworks.report.table import Table

__all__ = ["problem_check", "problem_checks", "sentence"]

STYLES = {WORTH: "green", WEAK: "yellow", NOT_WORTH: "red", NOT_LOOKED: "yellow"}


def sentence(found: ProblemCheck) -> str:
    """The verdict in a line, with the first reason."""
    fatal = [f for f in found.findings if f.fatal]
    reasons = [*fatal, *(f for f in found.findings if not f.fatal)]
    return f"{found.name}: {found.verdict}" + (f": {reasons[0].said}" if reasons else "")


def problem_check(found: ProblemCheck) -> RenderableType:
    """What ``kernelworks check-problem`` prints of one problem."""
    style = STYLES[found.verdict]
    lines: list[RenderableType] = [Text(f"{found.name}: {found.verdict}", style=f"bold {style}")]
    for finding in found.findings:
        lines.append(
            Padding(Text(f"- {finding.kind}: {finding.said}", style="red" if finding.fatal else "yellow"), (0, 2))
        )
    lines += [Text(), _facts(found)]
    if found.guesses:
        lines += [Text(), _guesses(found.guesses)]
    if found.bound:
        lines += [Text("the bound is made of", style="bold"), *(Padding(Text(f"- {w}"), (0, 2)) for w in found.bound)]
    return Group(*lines)


def _facts(found: ProblemCheck) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(overflow="fold")
    work = f"{quantity.size(found.bytes)} in and out, {found.flop / 1e9:.3g} GFLOP of products"
    rows = (
        ("format", found.format),
        ("inputs", ", ".join(found.inputs)),
        ("answers", ", ".join(found.outputs)),
        ("looked at with", ", ".join(f"{name}={size}" for name, size in found.sizes.items())),
        ("its own work", f"{work}: {quantity.seconds(found.least_s)} at the rates of a {found.device} device"),
        ("ops of the reference", str(found.ops) if found.ops else ""),
        ("bounded by measuring", ", ".join(found.unknown)),
        ("looked at in", quantity.seconds(found.seconds)),
    )
    for name, value in rows:
        if value:
            table.add_row(name, value)
    return table


def _guesses(guesses: Sequence[Guess]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("an answer made without the work")
    table.add_column("error / derived bound", justify="right")
    table.add_column("passes")
    table.add_column("by the format's tolerance")
    for guess in guesses:
        share = "beyond" if guess.share is None else f"{guess.share:.3g}"
        words = {True: Text("yes", style="red"), False: Text("no", style="green"), None: Text("")}
        table.add_row(guess.name, share, words[guess.passes], words[guess.tolerated])
    return table


def problem_checks(records: Sequence[ProblemCheck]) -> RenderableType:
    """Several problems: a line each."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("problem", overflow="fold")
    table.add_column("verdict", no_wrap=True)
    table.add_column("why", overflow="fold")
    for one in records:
        why = "; ".join(dict.fromkeys(f.kind for f in one.findings))
        table.add_row(one.name, Text(one.verdict, style=STYLES[one.verdict]), why)
    return Group(table, Text(count_verdicts(records), style="bold"))


def count_verdicts(records: Sequence[ProblemCheck]) -> str:
    """How many of each verdict."""
    verdicts = [one.verdict for one in records]
    return ", ".join(f"{verdicts.count(v)} {v}" for v in STYLES if v in verdicts)
