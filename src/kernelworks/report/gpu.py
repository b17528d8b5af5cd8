"""A GPU's peaks on the terminal: memory at every size, matrix and other rates, floors and the roofline."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.text import Text

from kernelworks.records import GpuPeaks
from kernelworks.report import quantity
from kernelworks.report.inferred_figures import inference_notes, mark_inferred
from kernelworks.report.machine import BUSY_SHARE, roofline
from kernelworks.report.table import Table

__all__ = ["MEMORY", "cards", "floor_rows", "function_rows", "gpu", "memory_rows", "rate_rows"]

# The columns of the memory table: what, whether from L2 or from memory, heading.
MEMORY = (
    ("read", "cold", "read"), ("write", "cold", "write"), ("copy", "cold", "copy"), ("memcpy", "cold", "torch copy_"),
    ("read", "warm", "read"), ("write", "warm", "write"), ("copy", "warm", "copy"),
)  # fmt: skip
FLOORS = (
    ("launch_us", "launch", "one more empty kernel in a full stream"),
    ("isolated_us", "isolated launch", "an empty kernel between two events, the GPU idle before"),
    ("graph_us", "graph replay", "one more empty kernel in a graph"),
    ("host_launch_us", "host, our launch", "host time of a launch by kernelworks"),
    ("dispatch_us", "host, torch dispatch", "host time of torch's add(out=) of one element"),
    ("round_trip_us", "round trip", "an empty kernel and the wait for it"),
)

HOST = (
    ("to_device_gbs", "to the GPU", "from pinned memory of the host"),
    ("to_host_gbs", "from the GPU", "to pinned memory of the host"),
)


def cards(record: GpuPeaks) -> tuple[str, ...]:
    """What the card says of itself, and when it was measured."""
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    return (
        record.kind,
        f"{record.multiprocessors} multiprocessors",
        f"{quantity.size(record.l2_bytes)} L2",
        f"{quantity.size(record.memory_bytes)} memory",
        f"driver {record.driver}" if record.driver else "",
        f"power limit {record.power_limit_w:.0f} W" if record.power_limit_w else "",
        versions,
        f"measured {record.date} in {quantity.seconds(record.seconds)}",
    )


def memory_rows(record: GpuPeaks) -> list[tuple[str, ...]]:
    """A line a size: the size, then GB/s in the columns of ``MEMORY``."""
    found = {(b.kind, b.cache, b.bytes): mark_inferred(record, b.name, f"{b.gbs:.0f}") for b in record.bandwidth}
    rows = []
    for size in sorted({b.bytes for b in record.bandwidth}):
        rows.append((quantity.size(size), *(found.get((kind, cache, size), "-") for kind, cache, _ in MEMORY)))
    return rows


def rate_rows(record: GpuPeaks) -> list[tuple[str, str, str, str]]:
    """dtype, unit, burst, sustained."""
    return [
        (
            r.dtype, r.unit, mark_inferred(record, f"{r.name} burst", quantity.gflops(r.burst_tflops * 1e3)),
            mark_inferred(record, f"{r.name} sustained", quantity.gflops(r.sustained_tflops * 1e3)),
        )
        for r in record.rates
    ]  # fmt: skip


def floor_rows(record: GpuPeaks) -> list[tuple[str, str, str]]:
    """What, how long, and what is meant; then what is copied from and to the host."""
    rows = [
        (title, mark_inferred(record, name, quantity.seconds(getattr(record, name) / 1e6)), words)
        for name, title, words in FLOORS
    ]
    return rows + [
        (title, mark_inferred(record, name, quantity.gbs(getattr(record, name))), words) for name, title, words in HOST
    ]


def function_rows(record: GpuPeaks) -> list[tuple[str, str]]:
    """Elementary functions, and their results a second."""
    return [
        (f"{name}, float32", mark_inferred(record, name, f"{quantity.figures(rate)} G/s"))
        for name, rate in record.functions.items()
    ]


def gpu(record: GpuPeaks, width: int) -> RenderableType:
    """Everything that ``kernelworks machine`` prints of a GPU."""
    if record.unknown:
        said = Text(f"bandwidths, rates and floors are unknown: {record.unknown}", style="yellow")
        return Group(Text(record.name, style="bold"), said)
    share = f"rough: other processes had this GPU for {quantity.percent(record.foreign_share)} of the time"
    return Group(
        Text(record.name, style="bold"),
        *([Text(share, style="yellow")] if record.foreign_share > BUSY_SHARE else []),
        Text(" · ".join(p for p in cards(record) if p), style="dim"),
        Text(),
        Text("memory, GB/s of the bytes read and written", style="bold"),
        _memory(record),
        Text(),
        Text("arithmetic", style="bold"),
        _rates(record),
        Text(),
        Text("floors", style="bold"),
        _floors(record),
        *(Text(line, style="yellow") for line in inference_notes(record)),
        Text(),
        roofline(record, width),
    )


def _memory(record: GpuPeaks) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("bytes\nmoved", justify="right", no_wrap=True)
    for _, cache, title in MEMORY:
        table.add_column(f"{'one launch' if cache == 'cold' else 'in place'}\n{title}", justify="right", no_wrap=True)
    for size, *cells in memory_rows(record):
        table.add_row(size, *cells)
    table.caption = (
        "one launch: L2 emptied before, less an empty launch's time; in place: the same bytes again and again, from L2 "
        "where they fit"
    )
    table.caption_justify = "left"
    return table


def _rates(record: GpuPeaks) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in ("what", "by"):
        table.add_column(title)
    for title in ("burst", "sustained, after 1 s"):
        table.add_column(title, justify="right")
    for row in rate_rows(record):
        table.add_row(*row)
    for name, rate in function_rows(record):
        table.add_row(name, "a kernel of ours", rate, "")
    return table


def _floors(record: GpuPeaks) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    for row in floor_rows(record):
        table.add_row(*row)
    return table
