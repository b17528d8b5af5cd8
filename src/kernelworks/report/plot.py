"""Pictures as SVG text that takes its colours from the page around it.

matplotlib draws with stand-in colours, and each is then replaced by a CSS variable (``var(--ink)``), so one picture
serves light and dark. Text stays text. Every dot of a hotspot is a group ``<g id="dot-N">`` with a ``<title>``, which
is its tooltip; N, from 1, is the hotspot's number in the table.
"""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kernelworks.records import GpuPeaks, Hotspot, Peaks
from kernelworks.report import quantity, roofs
from kernelworks.report.hotspots import op_label
from kernelworks.report.optional_pictures import optional_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "CAUSES",
    "MARKS",
    "SERIES",
    "bandwidths",
    "canvas",
    "cause",
    "draw_roofs",
    "memory_hierarchy",
    "roofline",
    "stand_in",
    "svg_text",
]

# One CSS variable for one cause, and for nothing else: in the bar, in the tables, in the roofline. The first word here
# that a name holds decides.
CAUSES = {
    "at peak": "useful", "in ops": "unmeasured", "fusion": "fusion", "memory": "memory", "compute": "compute",
    "transcendental": "transcendental", "dispatch": "dispatch", "launch": "dispatch", "attributed": "unattributed",
    "cause unknown": "unknown", "latency": "unknown", "host": "host", "allocation": "allocation", "sync": "sync",
    "its own": "custom", "native": "native", "input": "input", "communication": "communication",
    "compiling": "compiling", "waiting": "waiting", "threads": "threads", "contention": "contention",
    "ridge": "compute", "unexplained": "unexplained", "unmodelled": "unexplained", "ambiguous": "unexplained",
}  # fmt: skip
SERIES = ("series1", "series2", "series3", "series4", "accent", "good", "bad")  # of what is no cause
_VARIABLES = ("ink", "muted", "line", "paper", *SERIES, *dict.fromkeys(CAUSES.values()))
MOST_LABELS = 8
MOST_DECADES = 4.5  # of GFLOP/s, downwards from the highest roof
LEAST_INTENSITY = 1 / 32


def cause(name: str) -> str:
    """The colour variable of a part of the time breakdown or a regime."""
    lowered = name.lower()
    return next((variable for word, variable in CAUSES.items() if word in lowered), "unexplained")


def stand_in(variable: str) -> str:
    return f"#0b5e{_VARIABLES.index(variable):02x}"


def svg_text(figure: Figure, label: str) -> str:
    """The figure's ``<svg>`` element, without prologue, metadata or fixed size, its colours turned into variables."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    head, rest = text.split(">", 1)
    box = re.search(r'viewBox="[^"]+"', head)
    assert box is not None, "matplotlib writes a viewBox"
    name = html.escape(label, quote=True)
    text = f'<svg xmlns="http://www.w3.org/2000/svg" {box[0]} role="img" aria-label="{name}">{rest}'
    for variable in _VARIABLES:
        text = text.replace(stand_in(variable), f"var(--{variable})")
    # matplotlib numbers its groups from 1 in every picture; only what is referred to keeps its id
    text = re.sub(
        r' id="(?:figure|axes|patch|line2d|text|legend|matplotlib\.axis|[xy]tick|\w*Collection)_\d+"', "", text
    )
    text = re.sub(r"font(-family)?: ([^;\"]*)'DejaVu Sans'[^;\"]*", r"font\1: \2var(--font)", text)
    return re.sub(r"\s*\n\s*", " ", text).strip()


def canvas(width: float, height: float, salt: str) -> tuple[Figure, Axes]:
    import matplotlib
    from matplotlib.figure import Figure

    # The salt keeps the ids of two pictures on one page apart, and the same picture the same from run to run.
    matplotlib.rcParams.update(
        {"svg.fonttype": "none", "svg.hashsalt": salt, "font.family": "DejaVu Sans", "font.size": 11}
    )
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("bottom", "left"):
        axes.spines[side].set_color(stand_in("line"))
    axes.tick_params(colors=stand_in("muted"), which="both")
    return figure, axes


# ---------------------------------------------------------------- roofline


WIDE_INCHES, NARROW_INCHES = 10.5, 4.6  # inches: a picture beside a table, and one on a telephone


@optional_picture
def roofline(peaks: roofs.MachinePeaks, threads: int, found: Sequence[Hotspot] = (), width: float = WIDE_INCHES) -> str:
    """The roofline with its ridge points, and a dot for each hotspot that has flop and bytes. With hotspots, only the
    roofs of the dtypes and the slopes of the memory levels that occur in them are drawn.

    A dot lies at the hotspot's flop per byte of compulsory traffic and at the rate it ran at; its area goes with the
    time it took. Returns an empty string where a bandwidth or a rate is missing.
    """
    slopes, tops = roofs.slopes(peaks, threads), roofs.best_flops(peaks, threads)
    if not slopes or not tops:
        return ""
    slopes, tops = roofs.slopes_in_use(slopes, found), roofs.roofs_in_use(tops, found)
    dots = [
        (index, r.flop / r.bytes, r.flop / r.seconds / 1e9)
        for index, r in enumerate(found)
        if r.flop > 0 and r.bytes > 0 and r.seconds > 0
    ]
    narrow = "-narrow" if width < WIDE_INCHES else ""
    figure, axes = canvas(width, 5.6, f"roofline{narrow}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10)
    widest = 8192.0 if isinstance(peaks, GpuPeaks) else 512.0
    left, right = LEAST_INTENSITY, max([widest, *(x * 2 for _, x, _ in dots)])
    top = tops[-1].gflops * 2.2
    bottom = max(min([min(slopes.values()) / 12, *(y / 2 for _, _, y in dots)]), top / 10**MOST_DECADES)
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    # What lies outside is drawn on the edge; its tooltip has the true figures.
    drawn = [(i, max(x, left * 1.15), max(y, bottom * 1.4)) for i, x, y in dots]
    radii = {i: math.sqrt(size) / 2 for i, size in _sizes(found, drawn).items()}
    axes.set_xlabel("flop per byte of compulsory traffic", color=stand_in("muted"))
    axes.set_ylabel("FLOP/s" if top > 1e5 else "GFLOP/s", color=stand_in("muted"))
    axes.xaxis.set_major_formatter(lambda x, _: f"1/{round(1 / x)}" if x < 1 else f"{x:g}")
    axes.yaxis.set_major_formatter(lambda y, _: quantity.short_flops(y) if top > 1e5 else f"{y:g}")
    draw_roofs(axes, slopes, tops, left, right, [(x, y, radii[i]) for i, x, y in drawn])
    _dots(axes, found, drawn)
    axes.grid(which="major", color=stand_in("line"), linewidth=0.5, alpha=0.5)
    axes.set_axisbelow(True)
    at = "" if isinstance(peaks, GpuPeaks) else f" at {threads} thread{'s' * (threads != 1)}"
    text = svg_text(figure, f"Roofline of this machine{at}")
    for index, intensity, rate in dots:
        title = html.escape(_tooltip(found[index], intensity, rate))
        its = f'<g id="dot{narrow}-{index + 1}" class="dot"><title>{title}</title>'
        text = text.replace(f'<g id="mark-{index}">', its, 1)
    return text


def draw_roofs(
    axes: Axes,
    slopes: dict[str, float],
    tops: list[roofs.Roof],
    left: float,
    right: float,
    dots: Sequence[tuple[float, float, float]] = (),
) -> None:
    """The slopes and roofs with their names. ``dots`` (flop per byte, GFLOP/s, radius in points) are kept clear of."""
    highest = tops[-1]
    figure: Any = axes.figure
    for gbs in slopes.values():
        axes.plot(
            [left, highest.gflops / gbs], [left * gbs, highest.gflops], color=stand_in("muted"), linewidth=1.6, zorder=2
        )
    outermost = min(slopes.values())
    for roof in tops:
        start = roof.gflops / max(slopes.values())
        axes.plot([start, right], [roof.gflops] * 2, color=stand_in("ink"), linewidth=1.4, zorder=2)
        axes.plot(
            [roof.gflops / outermost], [roof.gflops], "o", ms=5, mfc=stand_in("paper"), mec=stand_in("ink"), zorder=3
        )
    if dots:
        figure.draw_without_rendering()  # the constrained layout has its final size only then
    for height, label in roofs.labels(tops):
        axes.annotate(
            label, (_clear_of(axes, label, height, right, dots), height), xytext=(-4, 3), textcoords="offset points",
            ha="right", va="bottom", fontsize=9.5, color=stand_in("ink"),
        )  # fmt: skip
    _slope_labels(axes, slopes, dots)


def _clear_of(axes: Axes, label: str, height: float, right: float, dots: Sequence[tuple[float, float, float]]) -> float:
    """Where a roof's name may end so that no dot lies on it: at the right, or as little to the left as can be."""
    if not dots:
        return right
    figure: Any = axes.figure
    unit, length = 72 / figure.dpi, LETTER * len(label) + 8
    places = [(*axes.transData.transform((x, y)) * unit, radius) for x, y, radius in dots]
    edge, level = axes.transData.transform((right, height)) * unit
    least = axes.transData.transform((axes.get_xlim()[0], height))[0] * unit + length
    end = edge
    while end > least:
        beside = [(x, r) for x, y, r in places if level - 2 < y + r and y - r < level + LINE]
        hit = [x - r for x, r in beside if end - length < x + r and x - r < end]
        if not hit:
            return float(axes.transData.inverted().transform((end / unit, level / unit))[0])
        end = min(hit) - 1
    return right


def _slope_labels(axes: Axes, slopes: dict[str, float], dots: Sequence[tuple[float, float, float]] = ()) -> None:
    """Each level's name along its own line, low on the left where dots are rare, each a step further to the right.

    The lines are parallel, so two names lie on each other where their lines are nearer than a line of text is high and
    they begin within a name's length of each other: then the later one begins where the earlier one ends. A name that
    would lie on a dot begins behind it. It stands above its line, or below it where the line above is nearer.
    """
    left, bottom = axes.get_xlim()[0], axes.get_ylim()[0]
    placed: list[tuple[float, float, float]] = []  # along the lines, across them, length; in points
    for index, (level, gbs) in enumerate(slopes.items()):
        text = f"{level} {quantity.gbs(gbs)}"
        angle, length = _angle(axes, gbs), LETTER * len(text)
        place = max(left * 1.2, bottom / gbs * 1.2) * 2 ** (0.5 * index)
        beside = [(*_turned(axes, x, y, angle), radius) for x, y, radius in dots]
        for _ in range(len(placed) + len(dots)):
            along, across = _turned(axes, place, place * gbs, angle)
            ends = [u + w for u, v, w in placed if abs(v - across) < LINE and u - length < along < u + w + LETTER]
            ends += [
                u + r - LETTER for u, v, r in beside if -r < v - across < LINE + r and u - r - length < along < u + r
            ]
            if not ends:
                break
            step, _ = _turned(axes, 2 * place, 2 * place * gbs, angle)
            place *= 2 ** ((max(ends) + 2 * LETTER - along) / (step - along))
        placed.append((*_turned(axes, place, place * gbs, angle), length))
        own = placed[-1][1]
        gaps = [_turned(axes, place, place * other, angle)[1] - own for other in slopes.values() if other != gbs]
        above, below = min((g for g in gaps if g > 0), default=LINE), min((-g for g in gaps if g < 0), default=LINE)
        is_under = above < LINE and below > above
        aside = (0, 4) if angle < STEEP_DEGREES else (-5, 1)
        axes.annotate(
            text, (place, place * gbs), xytext=(-aside[0], -aside[1]) if is_under else aside,
            textcoords="offset points", rotation=angle, rotation_mode="anchor", ha="left",
            va="top" if is_under else "bottom", fontsize=9.5,
            color=stand_in("muted"),
        )  # fmt: skip


STEEP_DEGREES = 50.0  # degrees, from which a name is moved off its line sideways
LETTER, LINE = 5.6, 14.0  # points: a letter's width and a line's height, with room


def _turned(axes: Axes, x: float, y: float, degrees: float) -> tuple[float, float]:
    """Where a point lies along a direction and across it, in points."""
    figure: Any = axes.figure
    across, up = axes.transData.transform((x, y)) * 72 / figure.dpi
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return across * cosine + up * sine, up * cosine - across * sine


def _angle(axes: Axes, gbs: float) -> float:
    """How steep a slope is drawn, in degrees."""
    figure: Any = axes.figure
    figure.draw_without_rendering()  # the names before it may have moved what the layout has room for
    (x0, y0), (x1, y1) = axes.transData.transform([(1.0, gbs), (2.0, 2 * gbs)])
    return math.degrees(math.atan2(y1 - y0, x1 - x0))


def _sizes(found: Sequence[Hotspot], dots: Sequence[tuple[int, float, float]]) -> dict[int, float]:
    """A dot's area in square points goes with its hotspot's time."""
    longest = max((found[index].seconds for index, _, _ in dots), default=1.0) or 1.0
    return {index: 30 + 420 * found[index].seconds / longest for index, _, _ in dots}


def _dots(axes: Axes, found: Sequence[Hotspot], dots: list[tuple[int, float, float]]) -> None:
    sizes = _sizes(found, dots)
    for index, intensity, rate in dots:
        marks = axes.scatter(
            [intensity], [rate], s=sizes[index], color=stand_in(cause(found[index].bottleneck)), alpha=0.75,
            edgecolors=stand_in("paper"), linewidths=1.2, zorder=4,
        )  # fmt: skip
        marks.set_gid(f"mark-{index}")
    radii = {index: math.sqrt(size) / 2 for index, size in sizes.items()}
    _dot_labels(axes, [(op_label(found[i]), x, y, radii[i]) for i, x, y in sorted(dots, key=lambda d: -sizes[d[0]])])


def _dot_labels(axes: Axes, dots: list[tuple[str, float, float, float]]) -> None:
    """Names beside the biggest dots, each moved about until it lies on no other name and no dot, else left out.

    ``dots`` are (name, flop per byte, GFLOP/s, radius in points), biggest first. A name that is there already is not
    written again.
    """
    figure: Any = axes.figure
    figure.draw_without_rendering()
    unit = figure.dpi / 72  # pixels a point
    inside = axes.get_window_extent()
    taken, written = [], set[str]()
    for text in axes.texts:  # the names of roofs and slopes
        extent = text.get_window_extent()
        taken.append((extent.x0 / unit, extent.y0 / unit, extent.x1 / unit, extent.y1 / unit))
    for _, intensity, rate, radius in dots:
        x, y = axes.transData.transform((intensity, rate)) / unit
        taken.append((x - radius, y - radius, x + radius, y + radius))
    for name, intensity, rate, radius in dots[:MOST_LABELS]:
        if name in written:
            continue
        x, y = axes.transData.transform((intensity, rate)) / unit
        width, height, gap = LETTER * len(name), 12.0, radius + 4
        for across, down in _offsets(gap, width, height):
            box = (x + across, y + down - height / 2, x + across + width, y + down + height / 2)
            free = all(box[2] < t[0] or box[0] > t[2] or box[3] < t[1] or box[1] > t[3] for t in taken)
            fits = inside.x0 < box[0] * unit and box[2] * unit < inside.x1 and inside.y0 < box[1] * unit
            if free and fits:
                taken.append(box)
                written.add(name)
                axes.annotate(
                    name, (intensity, rate), xytext=(across, down), textcoords="offset points", ha="left",
                    va="center", fontsize=10, color=stand_in("ink"), zorder=5,
                )  # fmt: skip
                break


def _offsets(gap: float, width: float, height: float) -> list[tuple[float, float]]:
    """Where a name may stand, best first: right, left, below, above, then the corners."""
    return [
        (gap, 0), (-gap - width, 0), (-width / 2, -gap - height / 2), (-width / 2, gap + height / 2),
        (gap * 0.7, -gap * 0.7 - height / 2), (gap * 0.7, gap * 0.7 + height / 2),
        (-gap * 0.7 - width, -gap * 0.7 - height / 2), (-gap * 0.7 - width, gap * 0.7 + height / 2),
    ]  # fmt: skip


def _tooltip(hotspot: Hotspot, intensity: float, rate: float) -> str:
    place = hotspot.module or hotspot.source
    return (
        f"{op_label(hotspot)}{f' in {place}' if place else ''}: "
        f"{quantity.seconds(hotspot.seconds)} in {hotspot.calls} calls, "
        f"{quantity.figures(intensity)} flop/byte, {quantity.gflops(rate)}, "
        f"{quantity.percent(hotspot.achieved)} of {hotspot.peak or 'its peak'}"
    )


# ---------------------------------------------------------------- a GPU's memory

CURVES = {"read": "series1", "write": "series2", "copy": "series3", "memcpy": "series4"}
CURVE_NAMES = {"memcpy": "torch copy_"}


@optional_picture
def bandwidths(peaks: GpuPeaks, width: float = WIDE_INCHES) -> str:
    """Bandwidth over bytes moved: solid where one launch begins with an empty L2, dashed where it walks in place."""
    narrow = width < WIDE_INCHES
    figure, axes = canvas(width, 6.4 if narrow else 4.6, f"bandwidths{'-narrow' if narrow else ''}")
    axes.set_xscale("log", base=2)
    highest = max((b.gbs for b in peaks.bandwidth), default=1.0)
    for kind, variable in CURVES.items():
        for cache, dash in (("cold", "-"), ("warm", "--")):
            points = sorted((b.bytes, b.gbs) for b in peaks.bandwidth if (b.kind, b.cache) == (kind, cache))
            if points:
                label = f"{CURVE_NAMES.get(kind, kind)}, {'one launch' if cache == 'cold' else 'in place'}"
                sizes, rates = zip(*points, strict=True)
                axes.plot(sizes, rates, dash, color=stand_in(variable), linewidth=1.8, marker="o", ms=3, label=label)
    axes.axvline(peaks.l2_bytes, color=stand_in("muted"), linewidth=1.0, linestyle=":")
    axes.annotate(
        f"L2 {quantity.size(peaks.l2_bytes)}", (peaks.l2_bytes, highest), xytext=(4, 0),
        textcoords="offset points", va="top", fontsize=9.5, color=stand_in("muted"),
    )  # fmt: skip
    axes.set_ylim(0, highest * 1.08)
    axes.set_xlabel("bytes read and written", color=stand_in("muted"))
    axes.set_ylabel("GB/s", color=stand_in("muted"))
    axes.xaxis.set_major_formatter(lambda x, _: quantity.size(x))
    axes.grid(which="major", color=stand_in("line"), linewidth=0.5, alpha=0.5)
    if narrow:
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.45, -0.14), ncols=2, fontsize=9, frameon=False,
            labelcolor=stand_in("ink"),
        )  # fmt: skip
    else:
        axes.legend(loc="upper right", fontsize=9, frameon=False, labelcolor=stand_in("ink"))
    return svg_text(figure, "Bandwidth of this GPU over bytes moved")


# ---------------------------------------------------------------- memory hierarchy


MARKS = {
    "read": ("read", "o", "series1"),
    "copy": ("copy", "s", "series2"),
    "copy_nt": ("non-temporal copy", "^", "series4"),
}


@optional_picture
def memory_hierarchy(peaks: Peaks, width: float = WIDE_INCHES) -> str:
    """The bandwidth of each memory level as dots on a log axis: filled with the most threads, open with one; a narrow
    picture has those with the most threads alone."""
    narrow = width < WIDE_INCHES
    counts = roofs.thread_counts(peaks)[-1 if narrow else 0 :]
    levels = [lv for lv in roofs.LEVELS if any(b.level == lv for b in peaks.bandwidth)]
    if not levels:
        return ""
    figure, axes = canvas(
        width, 0.62 * len(levels) + (1.9 if narrow else 1.3), f"memory-hierarchy{'-narrow' if narrow else ''}"
    )
    axes.set_xscale("log", base=2)
    for kind, (name, shape, variable) in MARKS.items():
        for threads in counts:
            at = [(levels.index(b.level), b.gbs) for b in peaks.bandwidth if (b.kind, b.threads) == (kind, threads)]
            if not at:
                continue
            face = stand_in(variable) if threads == counts[-1] else stand_in("paper")
            label = name if narrow else f"{name}, {threads} thread{'s' if threads > 1 else ''}"
            axes.scatter(
                [gbs for _, gbs in at], [-level for level, _ in at], s=62, marker=shape, facecolors=face,
                edgecolors=stand_in(variable), linewidths=1.6, zorder=3, label=label,
            )  # fmt: skip
    sizes = [next(b.working_set_bytes for b in peaks.bandwidth if b.level == level) for level in levels]
    axes.set_yticks(
        [-i for i in range(len(levels))],
        [f"{level}\n{quantity.size(size)} a thread" for level, size in zip(levels, sizes, strict=True)],
    )
    axes.tick_params(axis="y", length=0, labelcolor=stand_in("ink"))
    axes.set_ylim(-len(levels) + 0.4, 0.6)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.set_xlabel("GB/s", color=stand_in("muted"))
    axes.grid(which="major", color=stand_in("line"), linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=3, fontsize=9, frameon=False,
        labelcolor=stand_in("ink"), borderpad=0, handletextpad=0.1, columnspacing=1.2,
    )  # fmt: skip
    return svg_text(figure, "Bandwidth of each memory level of this machine")
