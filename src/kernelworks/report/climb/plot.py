"""Pictures of a climb: on the roofline, and rung by rung what was predicted beside what came."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernelworks.records import GpuPeaks
from kernelworks.records.climb import Climb, RungResult, RungTime
from kernelworks.report import plot, quantity, roofs
from kernelworks.report.climb import words
from kernelworks.report.optional_pictures import optional_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["caption", "roofline", "stairs"]

LINE = 14.0  # points from one label to the next below
COUNTER = "L2 bytes"
BOX: dict[str, Any] = {"boxstyle": "square,pad=0.1", "edgecolor": "none", "alpha": 0.85}
NAME = 150.0  # points that a name may take to the right of its dot
NUMBER = 22.0  # points: room for a rung's number
FEW_RUNGS = 8  # so many have room for their ratios on a narrow picture
OCTAVES = 5.5  # of the axis to the right of the last dot: names stand there
TRAFFIC_LABELS = {
    "L1": "moved between L1 and the registers", "L2": "moved from L2 to the multiprocessors", "HBM": "of memory",
    "DRAM": "of memory",
}  # fmt: skip


@dataclass(frozen=True)
class Dot:
    """A rung on the roofline: flop per byte, and GFLOP/s at its own size, least threads first."""

    rung: RungResult
    x: float
    rates: tuple[float, ...]
    sure: bool  # whether its bytes are those of the axis


# ---------------------------------------------------------------- where a rung lies


def level(record: Climb) -> str:
    """Whose bytes the axis counts: of what the ladder is about, or of the level that a rung can do most about."""
    if record.unit == "GB/s":
        return "HBM" if record.device == "cuda" else "DRAM"
    return "L2" if record.device == "cuda" else "L1"


def _counted(record: Climb) -> bool:
    """Whether the GPU itself counted every rung's bytes from L2."""
    return level(record) == "L2" and all(r.counters.get(COUNTER) for r in record.rungs if r.times)


def _dots(record: Climb) -> list[Dot]:
    where, counted, found = level(record), _counted(record), []
    for rung in (r for r in record.rungs if r.times):
        times = words.times_at_own_size(rung)
        flop = record.flop * math.prod(times[0].size[n] / record.size[n] for n in record.size)
        rates = tuple(flop / t.median_s / 1e9 for t in times)
        if record.unit == "GB/s":
            found.append(Dot(rung, rates[0] / times[0].rate, rates, True))
        elif counted:
            found.append(Dot(rung, flop / rung.counters[COUNTER], rates, True))
        elif rung.loads:
            sure = where in rung.loads
            found.append(Dot(rung, 2 / rung.loads.get(where, max(rung.loads.values())), rates, sure))
    return found


def caption(record: Climb) -> str:
    """What the picture shows."""
    several = any(len(words.times_at_own_size(r)) > 1 for r in record.rungs)
    text = "Filled: one thread; rings: all threads. " if several else ""
    if record.unit == "GB/s":
        text += (
            "Upwards: the same product in less time. Every rung lies at the flop that it does for a byte of memory, "
            "which the format of its inputs alone decides: fewer bytes move it to the right, where memory's roof is "
            "higher."
        )
    else:
        text += (
            f"To the right: more work for each byte that is loaded from {level(record)}"
            f"{', as the GPU counted them' if _counted(record) else ''}; upwards: faster. A slope is what a level "
            "would allow if every byte came from there."
        )
    if any(not dot.sure for dot in _dots(record)):
        text += (
            f" Diamonds count what is asked of {level_of_unsure(record)}, some of which never gets as far as "
            f"{level(record)}."
        )
    return text


def level_of_unsure(record: Climb) -> str:
    dot = next(dot for dot in _dots(record) if not dot.sure)
    return max(dot.rung.loads, key=lambda name: dot.rung.loads[name])


# ---------------------------------------------------------------- roofline


@optional_picture
def roofline(record: Climb, width: float = plot.WIDE_INCHES) -> str:
    """The climb on the roofline, on a narrow picture with the rungs' numbers alone. Empty if the peaks lack a roof or
    no rung has a figure."""
    slopes, tops, dots = _slopes(record), _tops(record), _dots(record)
    if not slopes or not tops or not dots:
        return ""
    narrow = "-narrow" if width < plot.WIDE_INCHES else ""
    figure, axes = plot.canvas(width, 6.2, f"climb-{record.ladder}{narrow}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10)
    on_memory = record.unit == "GB/s"  # then names stand on both sides
    left = min(d.x for d in dots) / (64 if on_memory else 8)
    right = max(d.x for d in dots) * 2.0 ** (4 if on_memory else OCTAVES)
    dashed = _dashed(record)
    highest = max([roof.gflops for roof in tops] + [rate for rate, _ in dashed] + [r for d in dots for r in d.rates])
    axes.set_xlim(left, right)
    axes.set_ylim(min(d.rates[0] for d in dots) / 2.5, highest * 1.9)
    plot.draw_roofs(axes, slopes, tops, left, right)
    for rate, name in dashed:
        _dashes(axes, rate, name, right, max(slopes.values()), tops)
    path = [(d.x, d.rates[0]) for d in dots]
    axes.plot(*zip(*path, strict=True), color=plot.stand_in("muted"), linewidth=1.1, linestyle=":", zorder=3)
    for dot in dots:
        _mark(axes, dot)
    lowest = min([roof.gflops for roof in tops if roof.dtype == record.arithmetic] + [rate for rate, _ in dashed])
    _labels(axes, record, dots, lowest, titled=not narrow)
    big = highest > 1e4
    axes.set_xlabel(f"flop per byte {TRAFFIC_LABELS[level(record)]}", color=plot.stand_in("muted"))
    axes.set_ylabel("FLOP/s" if big else "GFLOP/s", color=plot.stand_in("muted"))
    axes.xaxis.set_major_formatter(lambda x, _: f"1/{round(1 / x)}" if x < 1 else f"{x:g}")
    axes.yaxis.set_major_formatter(lambda y, _: quantity.short_flops(y) if big else f"{y:g}")
    axes.grid(which="major", color=plot.stand_in("line"), linewidth=0.5, alpha=0.5)
    axes.set_axisbelow(True)
    text = plot.svg_text(figure, f"The climb of {record.ladder} on the roofline")
    for dot in dots:
        place = f'<g id="rung-dot-{dot.rung.number}">'
        title = html.escape(_tooltip(record, dot))
        its = f'<g id="rung-dot{narrow}-{dot.rung.number}" class="dot"><title>{title}</title>'
        text = text.replace(place, its, 1)
    return text


def _slopes(record: Climb) -> dict[str, float]:
    """GB/s by name, innermost first."""
    here = record.peaks
    if isinstance(here, GpuPeaks) or record.unit != "GB/s":
        return roofs.slopes(here, 1)
    found: dict[int, float] = {}
    for t in (t for r in record.rungs for t in r.times):
        found[t.threads] = max(t.peak, found.get(t.threads, 0.0))
    return {f"DRAM{words.thread_suffix(count)}": found[count] for count in sorted(found, reverse=True)}


def _tops(record: Climb) -> list[roofs.Roof]:
    """The flat roofs, lowest first: of the ladder's arithmetic, on a GPU also of float32."""
    wanted = {record.arithmetic, "float32"}
    if isinstance(record.peaks, GpuPeaks):
        return [roof for roof in roofs.best_flops(record.peaks, 1) if roof.dtype in wanted]
    count = max((t.threads for r in record.rungs for t in r.times), default=1) if record.unit == "GB/s" else 1
    return [roof for roof in roofs.best_flops(record.peaks, count) if roof.dtype in wanted]


def _dashed(record: Climb) -> list[tuple[float, str]]:
    """Further flat roofs of the same arithmetic: on a GPU after a second of it, on a CPU with all threads."""
    here = record.peaks
    if isinstance(here, GpuPeaks):
        best = max((r for r in here.rates if r.dtype == record.arithmetic), key=lambda r: r.burst_tflops, default=None)
        if best is None or best.sustained_tflops > 0.97 * best.burst_tflops or record.unit == "GB/s":
            return []
        rate = best.sustained_tflops * 1e3
        return [(rate, f"after a second {quantity.gflops(rate)} (dashed)")]
    if record.unit == "GB/s":
        return []
    count, rate = max(((t.threads, t.peak) for r in record.rungs for t in r.times), default=(1, 0.0))
    name = f"{record.arithmetic}{words.thread_suffix(count)} {quantity.gflops(rate)}"
    return [(rate, name)] if count > 1 else []


def _dashes(axes: Axes, rate: float, name: str, right: float, steepest: float, tops: Sequence[roofs.Roof]) -> None:
    """A dashed roof, its name above it; where a roof lies close above, beside that one's name."""
    ink = plot.stand_in("ink")
    axes.plot([rate / steepest, right], [rate, rate], color=ink, linewidth=1.2, linestyle="--", zorder=2)
    near = next((roof for roof in tops if rate < roof.gflops < 1.5 * rate), None)
    aside = -4 - 5.8 * len(f"{near.dtype} {quantity.gflops(near.gflops)}  ") if near else -4
    axes.annotate(
        name, (right, near.gflops if near else rate), xytext=(aside, 3), textcoords="offset points", ha="right",
        va="bottom", fontsize=9.5, color=ink,
    )  # fmt: skip


def _mark(axes: Axes, dot: Dot) -> None:
    colour, paper = plot.stand_in(plot.cause(dot.rung.bottleneck)), plot.stand_in("paper")
    shape, size = ("o", 9.0) if dot.sure else ("D", 7.5)
    marks = axes.plot([dot.x], [dot.rates[0]], shape, ms=size, color=colour, mec=paper, zorder=4)
    marks[0].set_gid(f"rung-dot-{dot.rung.number}")
    for rate in dot.rates[1:]:
        axes.plot([dot.x] * 2, [dot.rates[0], rate], color=colour, linewidth=1.0, alpha=0.6, zorder=3)
        axes.plot([dot.x], [rate], "o", ms=9, mfc=paper, mec=colour, mew=1.8, zorder=4)


def _tooltip(record: Climb, dot: Dot) -> str:
    rates = "; ".join(words.rate_summary(record, t) for t in words.times_at_own_size(dot.rung))
    return f"{dot.rung.number} {dot.rung.title}: {rates}; {quantity.figures(dot.x)} flop/byte"


# ---------------------------------------------------------------- names of dots


def _points(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Where a value lies, in points."""
    figure: Any = axes.figure
    across, up = axes.transData.transform((x, y)) / (figure.dpi / 72)
    return float(across), float(up)


def _labels(axes: Axes, record: Climb, dots: Sequence[Dot], lowest: float, *, titled: bool) -> None:
    """Every rung's name: beside its dot where that stands alone, else in a column beside the group, tied to its dot.

    Where a format decides how far right a dot lies, those of the first formats have their names on the left."""
    figure: Any = axes.figure
    figure.draw_without_rendering()
    places = [_points(axes, dot.x, dot.rates[0]) for dot in dots]
    most, far = _points(axes, dots[0].x, lowest)[1] - LINE, max(dot.x for dot in dots)
    left = [i for i, dot in enumerate(dots) if record.unit == "GB/s" and dot.x < 0.8 * far]
    right = [i for i in range(len(dots)) if i not in left]
    for side, chosen in ((-1, left), (1, right)):
        for group in _groups([places[i] for i in chosen], NAME if titled else NUMBER):
            members = sorted((chosen[j] for j in group), key=lambda i: (-places[i][1], i))
            for i in [i for i in members if side > 0 and _apart_from(places, members, i)]:
                members.remove(i)
                _write(axes, dots[i], (-11.0, 0.0), -1, tied=False, titled=titled)
            alone = len(members) == 1
            heights = _apart([places[i][1] for i in members], math.inf if alone else most)
            edge = side * max(side * places[i][0] for i in members) + side * (11 if alone else 26)
            for i, height in zip(members, heights, strict=True):
                offset = (edge - places[i][0], height - places[i][1])
                _write(axes, dots[i], offset, side, tied=not alone, titled=titled)


def _apart_from(places: Sequence[tuple[float, float]], members: Sequence[int], one: int) -> bool:
    """Whether a dot lies so far to the left of the others of its group that its name has room on its own left."""
    x, y = places[one]
    others = [places[i] for i in members if i != one]
    return bool(others) and all(u > x + 60 for u, _ in others) and all(abs(v - y) > LINE for _, v in others)


def _groups(places: Sequence[tuple[float, float]], length: float) -> list[list[int]]:
    """Dots of which the names would meet, in one group: joined until no two groups' names do."""
    groups = [[i] for i in range(len(places))]

    def box(group: list[int]) -> tuple[float, float, float, float]:
        across, up = zip(*(places[i] for i in group), strict=True)
        return min(across) - 8, min(min(up), max(up) - LINE * (len(group) - 1)), max(across) + length, max(up)

    def meet(one: list[int], other: list[int]) -> bool:
        a, b = box(one), box(other)
        return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] + LINE and b[1] < a[3] + LINE

    while True:
        pairs = ((a, b) for a in groups for b in groups if a is not b and meet(a, b))
        found = next(pairs, None)
        if found is None:
            return groups
        groups = [g for g in groups if g not in found] + [found[0] + found[1]]


def _apart(heights: Sequence[float], most: float) -> list[float]:
    """Heights from the top down, none nearer to the one above than a line and none above ``most``."""
    found: list[float] = []
    for height in heights:
        found.append(min(height, most, found[-1] - LINE if found else most))
    return found


def _write(axes: Axes, dot: Dot, offset: tuple[float, float], side: int, *, tied: bool, titled: bool) -> None:
    line = {"arrowstyle": "-", "color": plot.stand_in("muted"), "linewidth": 0.7, "shrinkA": 1, "shrinkB": 5}
    box = BOX | {"facecolor": plot.stand_in("paper")}
    name = f"{dot.rung.number} {dot.rung.title}" if titled else str(dot.rung.number)
    axes.annotate(
        name, (dot.x, dot.rates[0]), xytext=offset, textcoords="offset points", ha="left" if side > 0 else "right",
        va="center", fontsize=9.5, color=plot.stand_in("ink"), zorder=5,
        arrowprops={**line, "relpos": (0 if side > 0 else 1, 0.5)} if tied else None, bbox=box,
    )  # fmt: skip


# ---------------------------------------------------------------- prediction beside outcome

COLOURS = {"as predicted": "good", "more than predicted": "accent", "less than predicted": "bad"}


@optional_picture
def stairs(record: Climb, width: float = plot.WIDE_INCHES) -> str:
    """Rung by rung what came and what was predicted, as shares of the best baseline in the same race (in GB/s: of the
    peak), with the other baselines and the peak. Empty where fewer than two rungs have a figure."""
    found = [(i, r, t) for i, r in enumerate(record.rungs) if (t := words.judged_time(r)) is not None]
    if len(found) < 2:
        return ""
    name = "" if record.unit == "GB/s" else words.best_baseline(found[-1][2])[0]
    if not all(name in t.baselines for _, _, t in found):
        name = ""
    narrow = "-narrow" if width < plot.WIDE_INCHES else ""
    figure, axes = plot.canvas(width, 4.9, f"stairs-{record.ladder}{narrow}")
    lines = _lines(found, name)
    every = [100 * x / _whole(t, name) for _, r, t in found for x in (t.rate, *_said(r, t))]
    axes.set_ylim(-4, 1.1 * max(every + [share for shares in lines.values() for share in shares.values()]))
    axes.set_xlim(-0.6, len(record.rungs) - 0.4)
    _levels(axes, lines)
    path = [(i, 100 * t.rate / _whole(t, name)) for i, _, t in found]
    axes.plot(*zip(*path, strict=True), color=plot.stand_in("muted"), linewidth=1.1, linestyle=":", zorder=2)
    for i, rung, timed in found:
        _step(axes, i, rung, timed, _whole(timed, name), labelled=not narrow or len(record.rungs) <= FEW_RUNGS)
    for i, rung in enumerate(record.rungs):
        if not rung.times:
            axes.text(i, 6, rung.status, ha="center", color=plot.stand_in("bad"), fontsize=9.5)
    _names(axes, record.rungs, titled=not narrow)
    axes.set_ylabel(f"% of {name or 'the peak'}, in the same race", color=plot.stand_in("muted"))
    axes.grid(which="major", axis="y", color=plot.stand_in("line"), linewidth=0.5, alpha=0.5)
    axes.set_axisbelow(True)
    return plot.svg_text(figure, f"{record.ladder}: predicted and got, rung by rung")


def _names(axes: Axes, rungs: Sequence[RungResult], *, titled: bool) -> None:
    """Below the axis, slanted where there are many; without titles the numbers alone."""
    axes.set_xticks(range(len(rungs)))
    slanted: dict[str, Any] = {"rotation": 32, "ha": "right", "rotation_mode": "anchor"}
    if not titled:
        names, slanted = [str(r.number) for r in rungs], {}
    elif len(rungs) > 9:
        names = [f"{r.number} {r.title}" for r in rungs]
    else:
        wrapped = (textwrap.wrap(r.title, int(115 / len(rungs)), break_long_words=False) for r in rungs)
        names = ["\n".join([str(r.number), *lines]) for r, lines in zip(rungs, wrapped, strict=True)]
        slanted = {}
    axes.set_xticklabels(names, fontsize=9, color=plot.stand_in("ink"), **slanted)


def _whole(timed: RungTime, name: str) -> float:
    """The rate that counts as 100%."""
    return timed.baselines[name] if name else timed.peak


def _said(rung: RungResult, timed: RungTime) -> list[float]:
    """The rate that was predicted, if one was."""
    return [timed.before * rung.predicted] if timed.before and rung.predicted else []


def _step(axes: Axes, place: int, rung: RungResult, timed: RungTime, whole: float, *, labelled: bool) -> None:
    """What came, what was predicted, and the way from one to the other; ``labelled`` with their ratios."""
    got, said = 100 * timed.rate / whole, [100 * rate / whole for rate in _said(rung, timed)]
    colour, paper = plot.stand_in(COLOURS.get(words.verdict(rung), "muted")), plot.stand_in("paper")
    below = any(x > got for x in said)
    box = BOX | {"facecolor": paper}
    for x in said:
        axes.plot([place, place], [x, got], color=colour, linewidth=3.0, alpha=0.45, zorder=3)
        axes.plot([place], [x], "D", ms=7.5, mfc=paper, mec=colour, mew=1.6, zorder=4)
        if labelled and words.verdict(rung) != "as predicted":
            axes.annotate(
                quantity.ratio(rung.predicted), (place, x), xytext=(0, 8 if below else -8), ha="center", bbox=box,
                va="bottom" if below else "top", textcoords="offset points", fontsize=9, zorder=3,
                color=plot.stand_in("muted"),
            )  # fmt: skip
    axes.plot([place], [got], "o", ms=10, color=colour, mec=paper, zorder=5)
    if labelled and rung.gain is not None:
        axes.annotate(
            quantity.ratio(rung.gain), (place, got), xytext=(0, -9 if below else 9), textcoords="offset points",
            ha="center", va="top" if below else "bottom", fontsize=9.5, weight="bold", bbox=box, zorder=4,
            color=plot.stand_in("ink"),
        )  # fmt: skip


def _lines(found: Sequence[tuple[int, RungResult, RungTime]], whole: str) -> dict[str, dict[int, float]]:
    """The peak's share and every baseline's, by name and by the rung's place."""
    names = words.baseline_names([r for _, r, _ in found])
    lines = {"peak": {i: 100 * t.peak / _whole(t, whole) for i, _, t in found}}
    for name in names:
        lines[name] = {i: 100 * t.baselines[name] / _whole(t, whole) for i, _, t in found if name in t.baselines}
    return lines


def _levels(axes: Axes, lines: dict[str, dict[int, float]]) -> None:
    """Short lines above each rung, named at the right."""
    dashes = ("-", "--", "-.", ":", "--")
    ends = list[tuple[float, str, str]]()
    for (name, shares), dash in zip(lines.items(), dashes, strict=False):
        colour = "ink" if name == "peak" else "series2"
        for i, share in shares.items():
            axes.plot([i - 0.42, i + 0.42], [share, share], dash, color=plot.stand_in(colour), linewidth=1.3, zorder=2)
        (last, share), final = list(shares.items())[-1], max(lines["peak"])
        if last == final:
            ends.append((share, name, colour))
        else:  # another format has other baselines
            first, share = next(iter(shares.items()))
            axes.annotate(
                name, (first - 0.42, share), xytext=(0, 2), textcoords="offset points", ha="left", va="bottom",
                fontsize=9, color=plot.stand_in(colour),
            )  # fmt: skip
    figure: Any = axes.figure
    figure.draw_without_rendering()
    ends.sort(reverse=True)
    right = axes.get_xlim()[1]
    heights = [_points(axes, right, share)[1] for share, _, _ in ends]
    for (share, name, colour), was, now in zip(ends, heights, _apart(heights, math.inf), strict=True):
        axes.annotate(
            f"{name} {share:.0f}%", (right, share), xytext=(4, now - was), textcoords="offset points", ha="left",
            va="center", fontsize=9.5, color=plot.stand_in(colour), annotation_clip=False,
        )  # fmt: skip
