"""A diagnosis on the terminal: the sentence, the table (worst first), where the time went, and what a fix got."""

from __future__ import annotations

import dataclasses
import re

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kernelworks.records import CounterCheck, Diagnosis, Hotspot, KernelTime
from kernelworks.report import quantity
from kernelworks.report.fix import ROUGH_MARK, fix
from kernelworks.report.terminal import bar, style_of

__all__ = [
    "HIDDEN_IF_ZERO",
    "MOST_ROWS",
    "counters",
    "diagnosis",
    "headline",
    "hotspots",
    "kernels",
    "outcome",
    "sort_worst_first",
    "summary",
    "time_breakdown",
]

MOST_ROWS = 12  # on the terminal; the JSON and the page hold every hotspot
# Parts that are not shown where a program has nothing of them.
HIDDEN_IF_ZERO = (
    "native code outside torch",
    "kernels of its own",
    "input (DataLoader)",
    "communication",
    "compiling (torch.compile)",
    "waiting",
    "other threads",
    "Python and framework, not attributed",
    "CPU contention",
)
MIN_GAIN_SHARE = 0.005  # of the wall clock
MIN_SHOWN_SHARE = 0.001  # of the wall clock: what takes less has no line of its own
WIDE_COLUMNS = 118  # columns from which the next action stands in the table's own column
MAX_COLUMNS = 150
BAR_WIDTH = 60


def sort_worst_first(found: tuple[Hotspot, ...]) -> list[Hotspot]:
    """By the time that is predicted to come back where that is worth having, then by the gain at the roofline, then by
    the time taken."""

    def worth(hotspot: Hotspot) -> tuple[float, float, float]:
        promised = hotspot.high_s if hotspot.high_s * hotspot.share >= MIN_GAIN_SHARE * hotspot.seconds else 0.0
        return -promised, -hotspot.allows_s, -hotspot.seconds

    return sorted(found, key=worth)


def diagnosis(record: Diagnosis, width: int) -> RenderableType:
    """Everything that ``kernelworks diagnose`` prints for one program, for a terminal ``width`` columns wide."""
    parts: list[RenderableType] = [Text(), Text(headline(record), style="bold"), _context(record), Text()]
    if record.ambiguous and not record.hotspots:
        return Group(*parts[1:])
    mark = ROUGH_MARK if record.rough else ""
    parts += [hotspots(record, width), Text(), time_breakdown(record.time_breakdown, record.wall_s, width, mark)]
    if record.gpu is not None:
        parts += [Text(), kernels(record.gpu.kernels, width, mark=mark)]
        if record.gpu.counters:
            parts += [Text(), counters(record.gpu.counters)]
    for title, lines in (("findings", record.findings), ("not modelled", record.unmodelled)):
        if lines:
            parts += [Text(), Text(title, style="bold"), *(_bullet(line) for line in lines)]
    if record.fix is not None:
        parts += [Text(), fix(record.fix, mark)]
    return Group(*parts)


def outcome(record: Diagnosis) -> str:
    """What it comes to: "", "refused" where its fix is not to be kept, "ambiguous" where there is no figure."""
    fix = record.fix
    if fix is not None and (fix.refused or not fix.agrees):
        return "refused"
    return "ambiguous" if record.ambiguous or (fix is not None and fix.ambiguous and not fix.rough) else ""


def headline(record: Diagnosis) -> str:
    """The sentence on top, as a sentence."""
    text = record.sentence.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def summary(record: Diagnosis, width: int, most_rows: int) -> RenderableType:
    """The same on one screen: the sentence, the worst hotspots, the bar, and the fix without its lists."""
    parts: list[RenderableType] = [Text(headline(record), style="bold"), _context(record), Text()]
    parts += [hotspots(record, width, most_rows), Text(), time_breakdown(record.time_breakdown, record.wall_s, width)]
    if record.fix is not None:
        parts += [
            Text(),
            fix(dataclasses.replace(record.fix, replaced=(), left=(), notes=(), optimizations=(), code="")),
        ]
    return Group(*parts)


def _context(record: Diagnosis) -> Text:
    machine = record.peaks
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    pieces = (record.program, machine.name, f"{record.threads} threads", versions, record.date)
    return Text(" · ".join(p for p in pieces if p), style="dim")


def _bullet(line: str) -> Padding:
    return Padding(Text(f"- {line}"), (0, 0, 0, 2))


def _first_column_width(width: int, *, wide: bool) -> int:
    """About how many cells the first column gets: what the others leave, half of it where the action has a column."""
    return (width - 65) // 2 if wide else width - 57


def _where(hotspot: Hotspot, column_width: int) -> Text:
    name = break_long_words(hotspot.op, column_width)
    text = Text.assemble((name, "bold" if hotspot.modelled else "bold dim"), f" x {hotspot.calls}")
    for line in (_end(hotspot.module, column_width), hotspot.source):
        if line:
            text.append(f"\n{break_long_words(line, column_width)}", style="dim")
    return text


def break_long_words(text: str, column_width: int) -> str:
    """Breaks what is too long for a line of ``column_width`` cells after a full stop, a stroke or an underline in it,
    so that no word is cut in two."""
    return re.sub(rf"\S{{{column_width + 1},}}", lambda match: _cut(match[0], max(column_width, 8)), text)


def _cut(word: str, column_width: int) -> str:
    lines = []
    while len(word) > column_width:
        at = max(word.rfind(mark, 1, column_width) for mark in "._/-:") + 1
        at = at if at > 1 else column_width
        lines.append(word[:at])
        word = word[at:]
    return "\n".join([*lines, word])


def _end(path: str, column_width: int) -> str:
    """A dotted path cut at a dot from the left until it fits: ``..layer.*.attention``. The page has it whole."""
    if len(path) <= column_width:
        return path
    parts = path.split(".")
    while len(parts) > 1 and len(".".join(parts)) + 2 > column_width:
        parts.pop(0)
    return ".." + ".".join(parts)


def _bound_by(hotspot: Hotspot) -> Text:
    text = Text(hotspot.bottleneck, style=style_of(hotspot.bottleneck))
    if hotspot.peak:
        text.append(f"\n{hotspot.peak}", style="dim")
    return text


def _share_of_peak(hotspot: Hotspot) -> Text:
    if hotspot.achieved is None:
        return Text("-", style="dim")
    return Text.assemble(
        quantity.percent(hotspot.achieved), "\n", (bar(hotspot.achieved, 8), style_of(hotspot.bottleneck))
    )


def _back(hotspot: Hotspot) -> Text:
    """What is predicted to come back, and below it the gain at the roofline where that is more."""
    text = Text(quantity.seconds_range(hotspot.low_s, hotspot.high_s))
    if hotspot.allows_s > hotspot.high_s:
        text.append(f"\n< {quantity.seconds(hotspot.allows_s)}", style="dim")
    return text


def hotspots(record: Diagnosis, width: int, most_rows: int = MOST_ROWS) -> Table:
    """The table of hotspots, worst first; the ones left out are counted in its caption."""
    ordered = sort_worst_first(record.hotspots)
    notable = [r for r in ordered if max(r.seconds, r.high_s) >= MIN_SHOWN_SHARE * record.wall_s] or ordered
    shown, mark = notable[:most_rows], ROUGH_MARK if record.rough else ""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, caption_justify="left")
    table.expand, table.width = True, min(width, MAX_COLUMNS)
    wide = width >= WIDE_COLUMNS
    table.add_column("op x calls, module, source" if wide else "op x calls,\nmodule, source", overflow="fold", ratio=1)
    table.add_column("time,\nof wall", justify="right", no_wrap=True)
    table.add_column("bound by,\npeak", overflow="fold", max_width=24 if wide else 18)
    table.add_column("achieved", justify="right", no_wrap=True)
    table.add_column("recoverable,\nat roofline", justify="right", no_wrap=True)
    if wide:
        table.add_column("next action", overflow="fold", ratio=1)
    column_width = _first_column_width(table.width or width, wide=wide)
    for hotspot in shown:
        where = _where(hotspot, column_width)
        if not wide and hotspot.action:
            where.append(f"\n> {break_long_words(hotspot.action, column_width)}", style="italic")
        cells: list[RenderableType] = [
            where,
            f"{quantity.seconds(hotspot.seconds)}{mark}\n{quantity.percent(hotspot.share, 1)}",
            _bound_by(hotspot),
            _share_of_peak(hotspot),
            _back(hotspot),
        ]
        table.add_row(*cells, *([break_long_words(hotspot.action, column_width)] if wide else []))
    rest = [r for r in ordered if all(r is not one for one in shown)]
    if rest:
        together = quantity.seconds(sum(r.seconds for r in rest))
        part = quantity.percent(sum(r.share for r in rest), 1)
        table.caption = f"and {len(rest)} more, {together} together ({part})"
    return table


def round_to_percents(parts: dict[str, float]) -> dict[str, float]:
    """Each part's share in tenths of a percent, rounded so that the printed figures add to exactly 100.0."""
    total = sum(parts.values())
    if total <= 0:
        return dict.fromkeys(parts, 0.0)
    exact = {name: 1000 * value / total for name, value in parts.items()}
    tenths = {name: int(value // 1) for name, value in exact.items()}
    by_remainder = sorted(parts, key=lambda name: tenths[name] - exact[name])
    for name in by_remainder[: 1000 - sum(tenths.values())]:
        tenths[name] += 1
    return {name: value / 10 for name, value in tenths.items()}


def time_breakdown(parts: dict[str, float], wall_s: float, width: int, mark: str = "") -> RenderableType:
    """One bar of the whole wall clock, cut by cause, and its legend. The percentages add to 100. ``mark`` stands after
    every figure."""
    shares = round_to_percents(parts)
    cells = max(20, min(BAR_WIDTH, width - 4))
    line, drawn, so_far = Text(), 0, 0.0
    for name, share in shares.items():
        so_far += share
        end = round(cells * so_far / 100)
        line.append("█" * (end - drawn), style=style_of(name))
        drawn = end
    legend = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    legend.add_column()
    legend.add_column(justify="right")
    legend.add_column(justify="right")
    for name, value in parts.items():
        if name in HIDDEN_IF_ZERO and not shares[name]:
            continue
        legend.add_row(
            Text.assemble(("■ ", style_of(name)), name), quantity.seconds(value) + mark, f"{shares[name]:.1f}%"
        )
    legend.add_row(Text("  wall clock", style="bold"), quantity.seconds(wall_s) + mark, f"{sum(shares.values()):.1f}%")
    return Group(Text("where the time went", style="bold"), line, legend)


def kernels(found: tuple[KernelTime, ...], width: int, most_rows: int = MOST_ROWS, mark: str = "") -> Table:
    """The kernels that took the most time, each against its bound."""
    table = Table(title="kernels", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.show_edge, table.expand, table.width, table.caption_justify = False, True, min(width, MAX_COLUMNS), "left"
    table.add_column("kernel", overflow="ellipsis", no_wrap=True, ratio=2)
    table.add_column("op", overflow="ellipsis", no_wrap=True, ratio=1)
    for heading in ("runs", "time", "least", "achieved"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("bound by", no_wrap=True)
    for kernel in found[:most_rows]:
        share = kernel.bound_s / kernel.seconds if kernel.seconds else 1.0
        modelled = kernel.bottleneck != "unmodelled"
        table.add_row(
            kernel.name,
            kernel.op,
            str(kernel.runs),
            quantity.seconds(kernel.seconds) + mark,
            quantity.seconds(kernel.bound_s) if modelled else "-",
            quantity.percent(share) if modelled else "-",
            Text(kernel.bottleneck, style=style_of(kernel.bottleneck)),
        )
    if len(found) > most_rows:
        rest = found[most_rows:]
        table.caption = f"and {len(rest)} more, {quantity.seconds(sum(k.seconds for k in rest))} together"
    return table


def counters(found: tuple[CounterCheck, ...]) -> Table:
    """Our model of kernels' work beside what the hardware counted."""
    table = Table(title="counters", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.show_edge = False
    table.add_column("op", no_wrap=True)
    for heading in ("read, MB: model", "counted", "matrix GFLOP: model", "counted"):
        table.add_column(heading, justify="right", no_wrap=True)
    for check in sorted({c.op: c for c in found}.values(), key=lambda c: -c.memory_read_bytes):
        product = check.counted_flop is not None
        table.add_row(
            check.op,
            quantity.figures(check.model_read_bytes / 1e6),
            quantity.figures(check.memory_read_bytes / 1e6),
            quantity.figures(check.model_flop / 1e9) if product else "",
            quantity.figures((check.counted_flop or 0.0) / 1e9) if product else "",
        )
    return table
