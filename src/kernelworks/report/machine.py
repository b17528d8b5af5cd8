"""A machine's peaks on the terminal: the memory hierarchy, the rates, the floors and the roofline with its ridges."""

from __future__ import annotations

import math
from collections.abc import Callable

from rich import box
from rich.console import Group, RenderableType
from rich.text import Text

from kernelworks.records import GpuPeaks, Peaks
from kernelworks.report import quantity, roofs
from kernelworks.report.inferred_figures import inference_notes, mark_inferred
from kernelworks.report.table import Table

__all__ = ["peaks", "roofline"]

LEVEL_STYLES = {"L1": "green", "L2": "cyan", "L3": "yellow", "DRAM": "red", "HBM": "red"}
KINDS = (("read", "read"), ("copy", "copy"), ("copy_nt", "copy, non-temporal"))
TIER_WIDTH = 34
PLOT_COLUMNS, PLOT_ROWS = 68, 15


BUSY_SHARE = 0.1  # of the cores, from which figures are rough


def peaks(record: Peaks, width: int) -> RenderableType:
    """Everything that ``kernelworks machine`` prints."""
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    context = (f"{record.cores} cores", record.kind, versions, f"measured {record.date}")
    share = f"other processes took {quantity.percent(record.foreign_share)} of the cores meanwhile"
    if record.foreign_share > BUSY_SHARE:
        share = f"rough: {share}, so every figure here may be too low"
    if record.unknown:
        return _without_figures(record)
    return Group(
        Text(record.name, style="bold"),
        Text(" · ".join(p for p in (*context, share) if p), style="dim"),
        Text(),
        _memory_hierarchy(record),
        Text(),
        Text("arithmetic", style="bold"),
        _rates(record),
        Text(),
        _floors(record),
        *(Text(line, style="yellow") for line in inference_notes(record)),
        Text(),
        roofline(record, width),
    )


def _without_figures(record: Peaks) -> RenderableType:
    """What is known of a machine whose peaks could not be measured."""
    caches = ", ".join(f"{level} {quantity.size(size)}" for level, size in record.cache_bytes.items())
    dispatch = f"torch dispatch {quantity.seconds(record.dispatch_us / 1e6)}"
    return Group(
        Text(record.name, style="bold"),
        Text(" · ".join(p for p in (f"{record.cores} cores", record.kind, caches, dispatch) if p), style="dim"),
        Text(),
        Text(f"bandwidths, rates and floors are unknown: {record.unknown}", style="yellow"),
    )


def _memory_hierarchy(record: Peaks) -> RenderableType:
    """Each level a tier, wider as it holds more, with its measured bandwidths beside it."""
    counts = roofs.thread_counts(record)
    present = [lv for lv in roofs.LEVELS if any(b.level == lv for b in record.bandwidth)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", justify="center", width=TIER_WIDTH)
    table.add_column("tried with\n(a thread)", justify="right")
    for kind, title in KINDS:
        for threads in counts:
            if any(b.kind == kind and b.threads == threads for b in record.bandwidth):
                table.add_column(f"{title}\n{_threads(threads)}", justify="right")
    for index, level in enumerate(present):
        tier = max(8, round(TIER_WIDTH * (index + 1) / len(present)))
        first = next(b for b in record.bandwidth if b.level == level)
        cells = []
        for kind, _ in KINDS:
            for threads in counts:
                if any(b.kind == kind and b.threads == threads for b in record.bandwidth):
                    found = roofs.bandwidth(record, level, kind, threads)
                    cells.append(mark_inferred(record, found.name, quantity.figures(found.gbs)) if found else "-")
        block = Text(f" {level} ".center(tier, "█"), style=LEVEL_STYLES.get(level, "white"))
        table.add_row(block, quantity.size(first.working_set_bytes), *cells)
    return Group(Text("memory hierarchy, GB/s", style="bold"), table)


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


def _rates(record: Peaks) -> Table:
    counts = sorted({r.threads for r in record.flops} | {r.threads for r in record.functions})
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("what")
    table.add_column("instruction set")
    for threads in counts:
        table.add_column(_threads(threads), justify="right")
    for dtype, isa in dict.fromkeys((r.dtype, r.isa) for r in record.flops):
        flop = {r.threads: r for r in record.flops if (r.dtype, r.isa) == (dtype, isa)}
        rates = (
            mark_inferred(record, flop[t].name, _rate(dtype, flop[t].gflops)) if t in flop else "-" for t in counts
        )
        table.add_row(f"{dtype} multiply-add", isa, *rates)
    for name, isa in dict.fromkeys((r.function, r.isa) for r in record.functions):
        calls = {r.threads: r for r in record.functions if (r.function, r.isa) == (name, isa)}
        cells = (
            mark_inferred(record, calls[t].name, f"{quantity.figures(calls[t].gops)} G/s") if t in calls else "-"
            for t in counts
        )
        table.add_row(f"{name}, float32", isa, *cells)
    return table


def _rate(dtype: str, value: float) -> str:
    return quantity.gflops(value).replace("FLOP", "op" if dtype.startswith("int") else "FLOP")


def _floors(record: Peaks) -> RenderableType:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    table.add_row("torch dispatch", quantity.seconds(record.dispatch_us / 1e6), "add(out=) of one element")
    table.add_row("fork-join", quantity.seconds(record.fork_join_us / 1e6), "an empty parallel region, all threads")
    fault = record.page_fault_us / 1e6
    rate = f"first touch of a fresh 4 KiB page, so {quantity.gbs(4096 / fault / 1e9)}" if fault > 0 else ""
    table.add_row("page fault", quantity.seconds(fault), rate)
    return Group(Text("floors", style="bold"), table)


# ---------------------------------------------------------------- the roofline in characters


class _Canvas:
    """A picture of braille dots, two across and four down in each character, each character in one colour."""

    BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._bits = [[0] * columns for _ in range(rows)]
        self._styles = [[""] * columns for _ in range(rows)]
        self._letters: dict[tuple[int, int], str] = {}

    def dot(self, x: float, y: float, style: str) -> None:
        """``x`` and ``y`` from 0 to 1, from the lower left."""
        across, down = round(x * (2 * self.columns - 1)), round((1 - y) * (4 * self.rows - 1))
        if 0 <= across < 2 * self.columns and 0 <= down < 4 * self.rows:
            self._bits[down // 4][across // 2] |= self.BITS[down % 4][across % 2]
            self._styles[down // 4][across // 2] = style

    def write(self, x: float, y: float, text: str, style: str) -> None:
        row, first = round((1 - y) * (self.rows - 1)), round(x * (self.columns - 1))
        row = max(0, min(row, self.rows - 1))  # rates of a busy machine may lie anywhere
        first = max(0, min(first, self.columns - len(text)))
        for offset, letter in enumerate(text[: self.columns]):
            self._letters[(row, first + offset)] = letter
            self._styles[row][first + offset] = style

    def lines(self) -> list[Text]:
        drawn = []
        for row in range(self.rows):
            line = Text()
            for column in range(self.columns):
                bits = self._bits[row][column]
                letter = self._letters.get((row, column), chr(0x2800 + bits) if bits else " ")
                line.append(letter, style=self._styles[row][column])
            drawn.append(line)
        return drawn


def roofline(record: Peaks | GpuPeaks, width: int) -> RenderableType:
    """Attainable rate over flop per byte, both axes logarithmic; one slope a level, one roof a dtype."""
    counts = roofs.thread_counts(record)
    slopes = roofs.slopes(record, counts[-1]) if counts else {}
    tops = roofs.best_flops(record, counts[-1]) if counts else []
    if not slopes or not tops:
        return Text("no roofline: a bandwidth or a rate is missing", style="dim")
    canvas = _Canvas(min(PLOT_COLUMNS, max(30, width - 12)), PLOT_ROWS)
    low_x, high_x = math.log2(1 / 16), math.log2(512 if isinstance(record, Peaks) else 2048)
    low_y = math.log2(min(slopes.values()) / 16)
    high_y = math.log2(tops[-1].gflops * 1.4)

    def across(intensity: float) -> float:
        return (math.log2(intensity) - low_x) / (high_x - low_x)

    def up(rate: float) -> float:
        return (math.log2(rate) - low_y) / (high_y - low_y)

    _draw_lines(canvas, slopes, tops, (low_x, high_x), up)
    row = 1 + 1 / PLOT_ROWS
    for height, text in reversed(roofs.labels(tops)):
        row = min(up(height), row - 1 / (PLOT_ROWS - 1))  # a line lower where the last one is taken
        canvas.write(1.0, row, f" {text}", "bold")
    for level, gbs in slopes.items():
        middle = tops[0].gflops / gbs / 3
        canvas.write(across(middle) + 0.01, up(middle * gbs) - 0.5 / PLOT_ROWS, level, LEVEL_STYLES.get(level, "white"))
    unit = "roofline" if isinstance(record, GpuPeaks) else f"roofline, {_threads(counts[-1])}"
    title = f"{unit}: FLOP/s that can be reached over flop per byte (both logarithmic)"
    ticks = [0.125, 1, 8, 64, 512]
    axis = [" "] * (canvas.columns + 4)
    for tick in ticks:
        text = f"{tick:g}"
        start = max(0, round(across(tick) * (canvas.columns - 1)) - len(text) // 2)
        axis[start : start + len(text)] = text
    return Group(Text(title, style="bold"), *canvas.lines(), Text("".join(axis), style="dim"), Text(), *_ridges(record))


def _draw_lines(
    canvas: _Canvas,
    slopes: dict[str, float],
    tops: list[roofs.Roof],
    span: tuple[float, float],
    up: Callable[[float], float],
) -> None:
    steps = 2 * canvas.columns
    for step in range(steps):
        x = step / (steps - 1)
        intensity = 2 ** (span[0] + x * (span[1] - span[0]))
        for level, gbs in slopes.items():
            if intensity * gbs <= tops[-1].gflops:
                canvas.dot(x, up(intensity * gbs), LEVEL_STYLES.get(level, "white"))
        for roof in tops:
            if intensity * max(slopes.values()) >= roof.gflops:
                canvas.dot(x, up(roof.gflops), "white")


def _ridges(record: Peaks | GpuPeaks) -> list[RenderableType]:
    """The ridge points: more flop per byte than this, and compute is what limits."""
    counts = roofs.thread_counts(record)
    found = roofs.ridges(record, counts[-1])
    levels = list(dict.fromkeys(r.level for r in found))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("dtype")
    for level in levels:
        table.add_column(level, justify="right")
    for dtype in dict.fromkeys(r.dtype for r in found):
        row = {r.level: r.flop_per_byte for r in found if r.dtype == dtype}
        table.add_row(dtype, *(quantity.figures(row[level]) for level in levels))
    title = "ridge points, flop per byte: above one, compute limits; below it, that level of memory"
    return [Text(title, style="bold"), table]
