"""Verifications on the terminal: one line a kernel, then every failure with the line that shows it again."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.text import Text

from kernelworks.records import Verification
from kernelworks.report import quantity
from kernelworks.report.table import Table

__all__ = ["is_verified", "verifications"]

MOST_FAILURES = 10  # of one row; the JSON holds all


def is_verified(verification: Verification) -> bool:
    """Whether the row is right on every case (at least one), every other check holds, every mutant was rejected."""
    return (
        verification.cases > 0
        and not verification.failures
        and all(verification.checks.values())
        and verification.mutants_rejected == verification.mutants
    )


def verifications(records: Sequence[Verification]) -> RenderableType:
    """What ``kernelworks verify`` prints."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("kernel", no_wrap=True)
    table.add_column("cases", justify="right")
    table.add_column("worst error / bound", justify="right")
    table.add_column("on case", overflow="fold", max_width=44)
    table.add_column("mutants rejected", justify="right")
    table.add_column("checks", overflow="fold")
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for verification in records:
        table.add_row(
            f"{verification.op}.{verification.kernel}",
            str(verification.cases),
            _worst(verification),
            verification.worst_case,
            "" if verification.verified_on else f"{verification.mutants_rejected} of {verification.mutants}",
            _checks(verification),
            quantity.seconds(verification.seconds),
            _verdict(verification),
        )
    lines: list[RenderableType] = [table]
    for kind in sorted({verification.verified_on for verification in records} - {""}):
        lines.append(Text(f"confirmed: the same instructions were verified on {kind}", style="dim"))
    for verification in records:
        lines += _failures(verification)
    return Group(*lines)


def _worst(verification: Verification) -> str:
    """The worst error of all, then of each dtype."""
    each = (f"{dtype} {max(outputs.values()):.3f}" for dtype, outputs in verification.worst_by_dtype.items() if outputs)
    return "\n".join((f"{verification.worst:.3f}", *each))


def _checks(verification: Verification) -> Text:
    broken = [name for name, ok in verification.checks.items() if not ok]
    if broken:
        return Text(f"FAILED: {', '.join(broken)}", style="bold red")
    return Text(f"all {len(verification.checks)} hold", style="green")


def _verdict(verification: Verification) -> Text:
    if not is_verified(verification):
        return Text("REFUSED", style="bold red")
    if verification.verified_on:
        return Text("confirmed, certified" if verification.certified else "confirmed", style="green")
    return Text("verified, certified" if verification.certified else "verified", style="green")


def _failures(verification: Verification) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for failure in verification.failures[:MOST_FAILURES]:
        lines.append(
            Text(
                f"\n{verification.op}.{verification.kernel} {failure.pass_} {failure.dtype}, case {failure.case}: "
                f"{failure.worst:.3g} of the bound. {failure.message}",
                style="red",
            )
        )
        if failure.reproduce:
            lines.append(Text(f"  again: {failure.reproduce}"))
    if len(verification.failures) > MOST_FAILURES:
        lines.append(
            Text(
                f"  and {len(verification.failures) - MOST_FAILURES} more failures of "
                f"{verification.op}.{verification.kernel}"
            )
        )
    return lines
