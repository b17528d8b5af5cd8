"""Proofs on the terminal: one line a row, then every failure with the line that shows it again."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kernelworks.records import Proof
from kernelworks.report import quantity

__all__ = ["held", "proofs"]

MOST_FAILURES = 10  # of one row; the JSON holds all


def held(proof: Proof) -> bool:
    """Whether the row is right on every case (at least one), every other check holds, every mutant was rejected."""
    return (
        proof.cases > 0
        and not proof.failures
        and all(proof.checks.values())
        and proof.mutants_rejected == proof.mutants
    )


def proofs(records: Sequence[Proof]) -> RenderableType:
    """What ``kernelworks prove`` prints."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("row", no_wrap=True)
    table.add_column("cases", justify="right")
    table.add_column("worst error / bound", justify="right")
    table.add_column("on case", overflow="fold", max_width=44)
    table.add_column("mutants rejected", justify="right")
    table.add_column("checks", overflow="fold")
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for proof in records:
        table.add_row(
            f"{proof.op}.{proof.row}",
            str(proof.cases),
            _worst(proof),
            proof.worst_case,
            "" if proof.proved_on else f"{proof.mutants_rejected} of {proof.mutants}",
            _checks(proof),
            quantity.seconds(proof.seconds),
            _verdict(proof),
        )
    lines: list[RenderableType] = [table]
    for kind in sorted({proof.proved_on for proof in records} - {""}):
        lines.append(Text(f"confirmed: the same instructions were proved on {kind}", style="dim"))
    for proof in records:
        lines += _failures(proof)
    return Group(*lines)


def _worst(proof: Proof) -> str:
    """The worst error of all, then of each dtype."""
    each = (f"{dtype} {max(outputs.values()):.3f}" for dtype, outputs in proof.worst_by_dtype.items() if outputs)
    return "\n".join((f"{proof.worst:.3f}", *each))


def _checks(proof: Proof) -> Text:
    broken = [name for name, ok in proof.checks.items() if not ok]
    if broken:
        return Text(f"FAILED: {', '.join(broken)}", style="bold red")
    return Text(f"all {len(proof.checks)} hold", style="green")


def _verdict(proof: Proof) -> Text:
    if not held(proof):
        return Text("REFUSED", style="bold red")
    if proof.proved_on:
        return Text("confirmed, certified" if proof.certified else "confirmed", style="green")
    return Text("proved, certified" if proof.certified else "proved", style="green")


def _failures(proof: Proof) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for failure in proof.failures[:MOST_FAILURES]:
        lines.append(
            Text(
                f"\n{proof.op}.{proof.row} {failure.pass_} {failure.dtype}, case {failure.case}: "
                f"{failure.worst:.3g} of the bound. {failure.message}",
                style="red",
            )
        )
        if failure.reproduce:
            lines.append(Text(f"  again: {failure.reproduce}"))
    if len(proof.failures) > MOST_FAILURES:
        lines.append(Text(f"  and {len(proof.failures) - MOST_FAILURES} more failures of {proof.op}.{proof.row}"))
    return lines
