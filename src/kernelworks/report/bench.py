"""Benchmarks on the terminal: one line a case, every variant beside its bound, the speedup over the best baseline."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.text import Text

from kernelworks.records import BenchResult, Variant
from kernelworks.report import quantity
from kernelworks.report.table import Table
from kernelworks.report.terminal import style_of

__all__ = ["benches", "best_baseline", "our_variant"]

OUR_VARIANT = "kernelworks"  # the variant that calls the public function
COPY = "copy"  # on a GPU: a device copy of the same bytes
# Variants that are kernels asked for by name, and the copy: no baselines.
NON_BASELINES = ("scalar", "avx2", "avx512", "avx512_bf16", "triton", "cuda", "sm90", "torch", "reference", COPY)


def our_variant(result: BenchResult) -> Variant | None:
    """The variant that is what a caller of this package gets: dispatch's own choice."""
    by_name = {variant.name: variant for variant in result.variants}
    return by_name.get(OUR_VARIANT) or by_name.get(result.chosen)


def best_baseline(result: BenchResult) -> Variant | None:
    """The fastest variant that is neither ours nor one of our kernels."""
    variants = [
        variant
        for variant in result.variants
        if variant.name not in (OUR_VARIANT, result.chosen) and variant.name not in NON_BASELINES
    ]
    return min(variants, key=lambda variant: variant.median_us) if variants else None


def benches(results: Sequence[BenchResult]) -> RenderableType:
    """What ``kernelworks bench`` prints."""
    lines: list[RenderableType] = []
    for op in dict.fromkeys(r.op for r in results):
        group = [r for r in results if r.op == op]
        lines += [Text(op, style="bold"), _table(group)]
        lines += [Text(f"{r.case} {r.dtype}: {r.gate}", style="bold red") for r in group if r.gate]
        lines += [Text()]
    return Group(*lines)


def _table(results: Sequence[BenchResult]) -> Table:
    names = list(dict.fromkeys(variant.name for r in results for variant in r.variants))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, caption_justify="left")
    table.add_column("case", overflow="fold", min_width=14)
    for name in names:
        table.add_column(f"{name}\nus", justify="right", no_wrap=True)
    table.add_column("bound\nus", justify="right", no_wrap=True)
    table.add_column("of\nbound", justify="right")
    gpu = any(result.device == "cuda" for result in results)
    if gpu:
        table.add_column("of the\ncopy", justify="right")
        table.add_column("host us\nours, eager", justify="right", no_wrap=True)
    table.add_column("bound by", min_width=7)
    table.add_column("over the\nbest baseline", justify="right")
    for result in results:
        table.add_row(
            _case(result),
            *(_variant_cell(result, name) for name in names),
            quantity.figures(result.bound_us),
            quantity.percent(_share(result)),
            *((quantity.percent(_of_copy(result)), _host(result)) if gpu else ()),
            Text(result.bottleneck, style=style_of(result.bottleneck)),
            _speedup(result),
        )  # fmt: skip
    thrown = sum(r.thrown for r in results)
    table.caption = f"median of interleaved variants; {thrown} noisy windows thrown away"
    rough = next((r.rough for r in results if r.rough), "")
    if rough:
        table.caption = f"rough, since {rough}: from the least to the most of interleaved samples"
    if gpu:
        table.caption = "median of interleaved variants between events, L2 emptied before each call"
    return table


def _of_copy(result: BenchResult) -> float | None:
    """The time of a device copy of the same bytes over ours."""
    copy, mine = next((a for a in result.variants if a.name == COPY), None), our_variant(result)
    return copy.median_us / mine.median_us if copy is not None and mine is not None and mine.median_us > 0 else None


def _host(result: BenchResult) -> str:
    variants = (our_variant(result), next((a for a in result.variants if a.name == "eager"), None))
    return ", ".join("-" if a is None or a.host_us is None else quantity.figures(a.host_us, 2) for a in variants)


def _case(result: BenchResult) -> Text:
    threads = f"{result.threads} thread{'s' if result.threads > 1 else ''}"
    where = result.chosen if result.device == "cuda" else f"{threads}, {result.cache}"
    return Text.assemble(
        result.case, (" rough" if result.rough else "", "yellow"), (f"\n{result.dtype}, {where}", "dim")
    )


def _variant_cell(result: BenchResult, name: str) -> Text:
    variant = next((a for a in result.variants if a.name == name), None)
    if variant is None:
        return Text("-", style="dim")
    if result.rough:
        return Text(f"{quantity.figures(variant.low_us)} to {quantity.figures(variant.high_us)}")
    spread = (variant.high_us - variant.low_us) / variant.median_us / 2 if variant.median_us > 0 else 0.0
    between = "\n" if result.device == "cuda" else " "  # a GPU has more variants than a line has room for
    return Text.assemble(quantity.figures(variant.median_us), (f"{between}±{quantity.percent(spread)}", "dim"))


def _share(result: BenchResult) -> float | None:
    variant = our_variant(result)
    if variant is None:
        return None
    if variant.share_of_bound is not None:
        return variant.share_of_bound
    return result.bound_us / variant.median_us if variant.median_us > 0 else None


def _speedup(result: BenchResult) -> Text:
    if result.gate:
        return Text("no figure: wrong, see below", style="bold red")
    mine, other = our_variant(result), best_baseline(result)
    if mine is None or other is None or mine.median_us <= 0:
        return Text("-", style="dim")
    if result.rough:
        least, most = other.low_us / mine.high_us, other.high_us / mine.low_us
        return Text.assemble(f"{quantity.ratio(least)} to {quantity.ratio(most)} rough", (f" {other.name}", "dim"))
    value = other.median_us / mine.median_us
    between = "\n" if result.device == "cuda" else " "
    return Text.assemble(
        (quantity.ratio(value), "green" if value >= 1 else "yellow"), (f"{between}{other.name}", "dim")
    )
