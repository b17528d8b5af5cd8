"""Where the wall clock of a program went, by cause: the largest part first, with what contributes most to it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.text import Text

from kernelworks.records import Hotspot
from kernelworks.report import quantity
from kernelworks.report.hotspots import MOST_COLUMNS, op_label
from kernelworks.report.terminal import bar, style_of
from kernelworks.report.text_lines import Cell, cells, fold_items, section

__all__ = ["round_to_percents", "time_breakdown"]

LEAST_PERCENT = 1.0  # a part below it has no line of its own
MOST_CONTRIBUTORS = 3
CONTRIBUTOR_SHARE = 0.1  # of a part: what has less of it is not named
TIME, SHARE, BAR = -9, -7, 12
LEAST_BAR = 5
WIDE_COLUMNS = 100  # from so many columns on contributors stand behind their part, else below it


def round_to_percents(parts: dict[str, float]) -> dict[str, float]:
    """Each part's share in tenths of a percent, rounded so that the printed figures add to exactly 100.0."""
    total = sum(parts.values())
    if not 0 < total < math.inf:
        return dict.fromkeys(parts, 0.0)
    exact = {name: 1000 * (value / total) for name, value in parts.items()}
    if not all(map(math.isfinite, exact.values())):
        return dict.fromkeys(parts, 0.0)
    tenths = {name: int(value // 1) for name, value in exact.items()}
    by_remainder = sorted(parts, key=lambda name: tenths[name] - exact[name])
    for name in by_remainder[: 1000 - sum(tenths.values())]:
        tenths[name] += 1
    return {name: value / 10 for name, value in tenths.items()}


def time_breakdown(
    parts: dict[str, float], wall_s: float, width: int, hotspots: Sequence[Hotspot] = (), *, verbose: bool = False
) -> Iterable[Text]:
    """The section: a line for each part, the small ones in one; the percentages add to 100."""
    width = min(width, MOST_COLUMNS)
    shares = round_to_percents(parts)
    ordered = sorted((n for n in parts if shares[n] >= (0.1 if verbose else LEAST_PERCENT)), key=lambda n: -parts[n])
    small = [name for name in parts if name not in ordered and shares[name] > 0]
    unit = quantity.unit_of(wall_s, *(parts[name] for name in ordered))  # one for all: figures that are compared
    longest = max((cell_len(name) for name in [*ordered, *small[:1], "wall clock"]), default=10) + 2
    narrow = longest - TIME - SHARE > width  # then a part's name stands above its figures
    longest = 4 if narrow else longest
    room = width - longest + TIME + SHARE - 2
    drawn = min(BAR, room) if room >= LEAST_BAR else 0  # cells of a bar
    wide = width >= WIDE_COLUMNS
    heads = [("", longest), ("time", TIME), ("share", SHARE), ("  ", drawn + 2)]
    yield section("where the time goes", heads + ([("largest contributors", 20)] if wide else []))
    for name in ordered:
        if narrow:
            yield cells([(f"  {name}", 1)])
        figures: list[tuple[Cell, int]] = [
            ("" if narrow else f"  {name}", longest),
            (quantity.seconds(parts[name], unit), TIME),
            (f"{shares[name]:.1f}%", SHARE),
            (
                Text.assemble("  ", (bar(shares[name] / 100, drawn).rstrip("░"), style_of(name))) if drawn else "",
                drawn + 4,
            ),
        ]
        named = _contributors(name, parts[name], hotspots, unit)
        start = sum(abs(size) for _, size in figures)
        if wide:
            first, *more = fold_items(named, width, start, cells(figures)) if named else [cells(figures)]
            yield first
            yield from more
        else:
            yield cells(figures)
            yield from fold_items(named, width, 4, style="dim") if named else ()
    if small:
        value = sum(parts[name] for name in small)
        percent = sum(shares[name] for name in small)
        label = small[0] if len(small) == 1 else f"{len(small)} smaller parts"
        if narrow:
            yield cells([(f"  {label}", 1)])
        yield cells(
            [
                ("" if narrow else f"  {label}", longest),
                (quantity.seconds(value, unit), TIME),
                (f"{percent:.1f}%", SHARE),
            ]
        )
    if narrow:
        yield cells([(Text("  wall clock", style="dim"), 1)])
    total: list[tuple[str, int]] = [
        ("" if narrow else "  wall clock", longest),
        (quantity.seconds(wall_s, unit), TIME),
        (f"{sum(shares.values()):.1f}%", SHARE),
    ]
    yield cells([(Text(text, style="dim"), size) for text, size in total])


def _contributors(part: str, seconds: float, hotspots: Sequence[Hotspot], unit: tuple[float, str]) -> list[str]:
    """The ops with most of a part; what lies between ops by its line of source."""
    by_name: dict[str, float] = {}
    for hotspot in hotspots:
        mine = hotspot.parts.get(part, 0.0)
        between = hotspot.achieved is None and not hotspot.shapes and hotspot.source
        name = hotspot.source if between else op_label(hotspot)
        if mine > 0 and name != part:
            by_name[name] = by_name.get(name, 0.0) + mine
    ordered = sorted((n for n in by_name if by_name[n] >= CONTRIBUTOR_SHARE * seconds), key=lambda n: -by_name[n])
    return [f"{name} {quantity.seconds(by_name[name], unit)}" for name in ordered[:MOST_CONTRIBUTORS]]
