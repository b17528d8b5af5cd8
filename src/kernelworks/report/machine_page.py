"""What stands on the page of a machine: what it was measured to do, in pictures and tables."""

from __future__ import annotations

from html import escape

from kernelworks.records import GpuPeaks, Peaks
from kernelworks.report import gpu, plot, quantity, roofs
from kernelworks.report.document import context_line, figure_both, table, versions_text
from kernelworks.report.inferred_figures import inference_notes, mark_inferred

__all__ = ["machine_parts"]


def machine_parts(*records: Peaks | GpuPeaks) -> list[str]:
    """What stands on that page."""
    parts: list[str] = ["<h1>What this machine was measured to do</h1>"]
    for record in records:
        parts += _gpu(record) if isinstance(record, GpuPeaks) else _cpu(record)
    return parts


def _cpu(record: Peaks) -> list[str]:
    counts = roofs.thread_counts(record)
    picture = figure_both(lambda width: plot.roofline(record, counts[-1], (), width)) if counts else ""
    share = f"other processes took {quantity.percent(record.foreign_share)} of the cores meanwhile"
    context = (f"{record.cores} cores", record.kind, versions_text(record.versions), f"measured {record.date}", share)
    return [
        f'<p class="sentence">{escape(record.name)}</p>',
        context_line(context),
        _not_as_measured(record),
        '<h2>Memory hierarchy</h2>\n<div class="picture" id="memory-hierarchy">'
        f"{figure_both(lambda width: plot.memory_hierarchy(record, width))}</div>",
        f'<h2>Roofline</h2>\n<div class="picture" id="roofline">{picture}</div>' if picture else "",
        _machine_tables(record, counts),
    ]


def _not_as_measured(record: Peaks | GpuPeaks) -> str:
    """Why some figures are marked; nothing where none is."""
    return "".join(f'<p class="note">{escape(line)}</p>\n' for line in inference_notes(record))


def _gpu(record: GpuPeaks) -> list[str]:
    picture = figure_both(lambda width: plot.roofline(record, 1, (), width))
    points = roofs.ridges(record, 1)
    levels = list(dict.fromkeys(r.level for r in points))
    found = {(r.dtype, r.level): quantity.figures(r.flop_per_byte) for r in points}
    meeting = [(dtype, *(found[dtype, level] for level in levels)) for dtype in dict.fromkeys(r.dtype for r in points)]
    columns = [f"{title}, {'one launch' if cache == 'cold' else 'in place'}" for _, cache, title in gpu.MEMORY]
    floors = [(f"{title}: {words}", figure) for title, figure, words in gpu.floor_rows(record)]
    rates = [(f"{dtype}, {unit}", *pair) for dtype, unit, *pair in gpu.rate_rows(record)]
    return [
        _not_as_measured(record),
        f'<p class="sentence">{escape(record.name)}</p>',
        context_line(gpu.cards(record)),
        "<h2>Memory</h2>\n"
        '<p class="note">Solid: one launch, L2 emptied before it, less the time of an empty launch. Dashed: a launch '
        "that walks the same bytes again and again, which come from L2 where they fit.</p>\n"
        f'<div class="picture" id="gpu-memory">{figure_both(lambda width: plot.bandwidths(record, width))}</div>',
        f'<h2>Roofline</h2>\n<div class="picture" id="gpu-roofline">{picture}</div>' if picture else "",
        '<div class="columns wide">'
        + table("Arithmetic", ("dtype, by", "burst", "sustained, after 1 s"), rates)
        + table("Elementary functions", ("function", "results a second"), gpu.function_rows(record))
        + table("Ridge points, flop per byte", ("dtype", *levels), meeting)
        + table("Floors", ("what", "figure"), floors)
        + "</div>",
        table("Memory, GB/s", ("bytes moved", *columns), gpu.memory_rows(record)),
    ]


def _machine_tables(record: Peaks, counts: list[int]) -> str:
    threads = [f"{t} thread{'s' if t > 1 else ''}" for t in counts]
    flops = {(r.dtype, r.isa, r.threads): mark_inferred(record, r.name, _rate(r.dtype, r.gflops)) for r in record.flops}
    rates = [
        (f"{dtype}, {isa}", *(flops.get((dtype, isa, t), "-") for t in counts))
        for dtype, isa in dict.fromkeys((r.dtype, r.isa) for r in record.flops)
    ]
    calls = {(r.function, r.isa, r.threads): mark_inferred(record, r.name, _billions(r.gops)) for r in record.functions}
    functions = [
        (f"{name}, {isa}", *(calls.get((name, isa, t), "-") for t in counts))
        for name, isa in dict.fromkeys((r.function, r.isa) for r in record.functions)
    ]
    ridges = roofs.ridges(record, counts[-1]) if counts else []
    levels = list(dict.fromkeys(r.level for r in ridges))
    points = {(r.dtype, r.level): quantity.figures(r.flop_per_byte) for r in ridges}
    meeting = [(dtype, *(points[dtype, level] for level in levels)) for dtype in dict.fromkeys(r.dtype for r in ridges)]
    floors = [
        ("torch dispatch: add(out=) of one element", quantity.seconds(record.dispatch_us / 1e6)),
        ("fork-join: an empty parallel region on all threads", quantity.seconds(record.fork_join_us / 1e6)),
        ("page fault: first touch of a fresh 4 KiB page", quantity.seconds(record.page_fault_us / 1e6)),
    ]
    return (
        _memory_table(record, threads, counts)
        + '<div class="columns wide">'
        + table("Arithmetic: multiply-adds", ("dtype, instruction set", *threads), rates)
        + table("Elementary functions: float32 results", ("function, instruction set", *threads), functions)
        + table("Ridge points, flop per byte", ("dtype", *levels), meeting)
        + table("Floors", ("what", "time"), floors)
        + "</div>"
    )


def _memory_table(record: Peaks, threads: list[str], counts: list[int]) -> str:
    """The figures of the picture: a row for each level, read and copied with so many threads."""
    kinds = [kind for kind in plot.MARKS if any(b.kind == kind for b in record.bandwidth)]
    found = {
        (b.level, b.kind, b.threads): mark_inferred(record, b.name, quantity.figures(b.gbs)) for b in record.bandwidth
    }
    sizes = {b.level: b.working_set_bytes for b in record.bandwidth}
    columns = [(kind, count) for kind in kinds for count in counts]
    rows = [
        (f"{level}, {quantity.size(sizes[level])} a thread", *(found.get((level, *column), "-") for column in columns))
        for level in roofs.LEVELS
        if level in sizes
    ]
    names = [f"{plot.MARKS[kind][0]}, {said}" for kind in kinds for said in threads]
    return table("Memory, GB/s", ("level", *names), rows)


def _rate(dtype: str, value: float) -> str:
    return quantity.gflops(value).replace("FLOP", "op" if dtype.startswith("int") else "FLOP")


def _billions(value: float) -> str:
    return f"{quantity.figures(value)} G/s"
