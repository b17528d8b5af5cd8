"""Benchmarks on the terminal: one line a case, every arm beside its bound, the speedup over the best baseline."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kernelworks.records import Arm, BenchResult
from kernelworks.report import quantity
from kernelworks.report.terminal import style_of

__all__ = ["best_baseline", "benches", "ours"]

OURS = "kernelworks"  # the arm that calls the public function
ROWS = ("scalar", "avx2", "avx512", "avx512_bf16", "torch", "reference")  # arms that are rows asked for by name


def ours(result: BenchResult) -> Arm | None:
    """The arm that is what a caller of this package gets: dispatch's own choice."""
    by_name = {arm.name: arm for arm in result.arms}
    return by_name.get(OURS) or by_name.get(result.chosen)


def best_baseline(result: BenchResult) -> Arm | None:
    """The fastest arm that is neither ours nor one of our rows."""
    arms = [arm for arm in result.arms if arm.name not in (OURS, result.chosen) and arm.name not in ROWS]
    return min(arms, key=lambda arm: arm.median_us) if arms else None


def benches(results: Sequence[BenchResult]) -> RenderableType:
    """What ``kernelworks bench`` prints."""
    lines: list[RenderableType] = []
    for op in dict.fromkeys(r.op for r in results):
        group = [r for r in results if r.op == op]
        lines += [Text(op, style="bold"), _table(group), Text()]
    return Group(*lines)


def _table(results: Sequence[BenchResult]) -> Table:
    names = list(dict.fromkeys(arm.name for r in results for arm in r.arms))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, caption_justify="left")
    table.add_column("case", overflow="fold")
    for name in names:
        table.add_column(f"{name}\nus", justify="right", no_wrap=True)
    table.add_column("bound\nus", justify="right", no_wrap=True)
    table.add_column("of\nbound", justify="right")
    table.add_column("waits on")
    table.add_column("over the\nbest baseline", justify="right")
    for result in results:
        table.add_row(
            _case(result),
            *(_arm(result, name) for name in names),
            quantity.figures(result.bound_us),
            quantity.percent(_share(result)),
            Text(result.regime, style=style_of(result.regime)),
            _speedup(result),
        )  # fmt: skip
    thrown = sum(r.thrown for r in results)
    table.caption = f"median of interleaved arms; {thrown} noisy windows thrown away"
    return table


def _case(result: BenchResult) -> Text:
    threads = f"{result.threads} thread{'s' if result.threads > 1 else ''}"
    return Text.assemble(result.case, (f"\n{result.dtype}, {threads}, {result.cache}", "dim"))


def _arm(result: BenchResult, name: str) -> Text:
    arm = next((a for a in result.arms if a.name == name), None)
    if arm is None:
        return Text("-", style="dim")
    spread = (arm.high_us - arm.low_us) / arm.median_us / 2 if arm.median_us > 0 else 0.0
    return Text.assemble(quantity.figures(arm.median_us), (f" ±{quantity.percent(spread)}", "dim"))


def _share(result: BenchResult) -> float | None:
    arm = ours(result)
    if arm is None:
        return None
    if arm.share_of_bound is not None:
        return arm.share_of_bound
    return result.bound_us / arm.median_us if arm.median_us > 0 else None


def _speedup(result: BenchResult) -> Text:
    if result.gate:
        return Text(f"no figure: {result.gate}", style="bold red")
    mine, other = ours(result), best_baseline(result)
    if mine is None or other is None or mine.median_us <= 0:
        return Text("-", style="dim")
    value = other.median_us / mine.median_us
    return Text.assemble((quantity.ratio(value), "green" if value >= 1 else "yellow"), (f" {other.name}", "dim"))
