"""The diagnosis of a trace that somebody else recorded: as much of one as a trace can tell, and what it cannot.

Nothing is run, verified or predicted: a trace holds times and names, no values. Peaks are those that were measured on
this machine, and they are held against a trace only if it names the same GPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kernelworks.measure.peaks import cached_peaks
from kernelworks.measure.roofline.bound import Bound, bottleneck_of, bound
from kernelworks.profile.cost import Work
from kernelworks.profile.foreign.breakdown import (
    COMPUTE_PARTS,
    KERNELS,
    Window,
    device_breakdown,
    find_window,
    host_breakdown,
)
from kernelworks.profile.foreign.events import COPY, FILL, KERNEL, OP, PYTHON, RUNTIME, Events, TraceError
from kernelworks.profile.foreign.formats import KernelSums, read_trace_file
from kernelworks.profile.foreign.nesting import FRAME, MODULE, Nesting, nest
from kernelworks.profile.foreign.work import shapes_text, work_of
from kernelworks.profile.replay import short
from kernelworks.records import GpuPeaks
from kernelworks.records.trace import TraceDiagnosis, TraceHotspot, TraceKernel

__all__ = ["TraceError", "bound_on_gpu", "diagnose_trace", "peaks_of_devices", "tops_of_work", "window_events"]

OUTSIDE = "kernels outside any op"
GRAPH_LAUNCH = "GraphLaunch"
MOST_WORK = 200  # hotspots whose work is counted
MOST_KERNELS = 500  # kept in the record, longest first
MOST_HOTSPOTS = 500
MOST_SHAPES = 64  # of one hotspot, whose work is counted


def diagnose_trace(path: str | Path) -> TraceDiagnosis:
    """What a trace tells: torch.profiler's Chrome trace (``.json``, ``.json.gz``), an SQLite export or CSV report of
    Nsight Systems, or a CSV export of Nsight Compute. What it is, is told by its content.

    Returns a record whose ``unknown`` says what the file cannot tell. Raises TraceError (a ValueError) with one
    sentence if the file is no trace, OSError if it cannot be read.
    """
    found = read_trace_file(Path(path))
    if isinstance(found.content, KernelSums):
        return _of_sums(str(path), found.format, found.content)
    return _of_timeline(str(path), found.format, found.content.finish())


# ---------------------------------------------------------------- a timeline


@dataclass
class _Group:
    calls: int = 0
    host_us: float = 0.0
    device_us: float = 0.0
    shapes: dict[int, list[int]] = field(default_factory=dict)  # number of arguments -> a call with them, how many
    kernels: dict[str, float] = field(default_factory=lambda: defaultdict(float))


def _of_timeline(path: str, format: str, events: Events) -> TraceDiagnosis:
    window = find_window(events)
    events = window_events(events, window)
    nesting = nest(events)
    on_device = bool(events.of(KERNEL, COPY, FILL).any())
    remarks = list(events.table.remarks)
    if on_device:
        parts = device_breakdown(events, window)
    elif events.of(OP).any():
        parts, lane = host_breakdown(events, nesting, window)
        others = len({*events.lane[events.of(OP)].tolist()}) - 1
        if others:
            remarks.append(f"the breakdown is that of thread {lane}; ops ran on {others} more")
    else:
        raise TraceError("a trace with neither kernels nor ops in its steps")
    tops = tops_of_work(events, nesting)
    peaks = peaks_of_devices(events.table.devices)
    spots = _hotspots(events, nesting, tops, window, peaks, on_device=on_device)
    kernels = _kernels(events, nesting, tops)
    if events.table.skipped:
        remarks.append(
            f"{events.table.skipped} events made no sense and were left out: no name, no time or a negative one"
        )
    return TraceDiagnosis(
        file=path, format=format, sentence=_sentence(window, parts, spots, on_device=on_device),
        wall_s=window.seconds, time_breakdown=_summing_to(parts, window.seconds), hotspots=spots, kernels=kernels,
        steps=window.steps, devices=tuple(dict.fromkeys(events.table.devices)), findings=tuple(remarks),
        unknown=_unknown(events, window, peaks, on_device=on_device),
        events=len(events), skipped=events.table.skipped, versions=events.table.versions,
    )  # fmt: skip


def window_events(events: Events, window: Window) -> Events:
    """The window's events. What runs on a GPU after the last step's end is that step's, and outside the clock."""
    return events.within(window.start, window.end) if window.has_steps else events


def tops_of_work(events: Events, nesting: Nesting) -> dict[int, int]:
    """Of each kernel, copy and fill the op that it was launched for, or the launch of a CUDA graph; -1 if there is
    neither: by the launch's number."""
    launches = np.nonzero(events.of(RUNTIME) & (events.link >= 0))[0]
    graphs = np.array([GRAPH_LAUNCH in text for text in events.table.names.texts], bool)[events.name[launches]]
    tops = np.where((nesting.top[launches] < 0) & graphs, launches, nesting.top[launches])
    by_link = dict(zip(events.link[launches].tolist(), tops.tolist(), strict=True))
    works = np.nonzero(events.of(KERNEL, COPY, FILL))[0]
    links = events.link[works].tolist()
    return {int(work): by_link.get(link, -1) if link >= 0 else -1 for work, link in zip(works, links, strict=True)}


def _hotspots(
    events: Events, nesting: Nesting, tops: dict[int, int], window: Window, peaks: GpuPeaks | None, *, on_device: bool
) -> tuple[TraceHotspot, ...]:  # fmt: skip
    groups: dict[tuple[str, str, str], _Group] = defaultdict(_Group)
    keys: dict[int, tuple[str, str, str]] = {}
    outermost = np.nonzero((nesting.top == np.arange(len(events))) | _is_stand_in(events, tops))[0]
    for index in outermost.tolist():
        key = keys[index] = (events.text(index), *_place(events, nesting, index))
        length = float(events.end[index] - events.start[index])
        group = groups[key]
        group.calls += 1
        group.host_us += length
        seen = group.shapes.setdefault(int(events.detail[index]), [index, 0])
        seen[1] += 1
    for index, top in tops.items():
        key = keys.get(top, (OUTSIDE, "", ""))
        group, length = groups[key], float(events.end[index] - events.start[index])
        group.device_us += length
        group.kernels[events.text(index)] += length
        group.calls += top < 0

    def time(group: _Group) -> float:
        return group.device_us if on_device else group.host_us

    ordered = sorted(groups.items(), key=lambda item: -time(item[1]))
    ordered = [item for item in ordered if time(item[1]) > 0][:MOST_HOTSPOTS]
    return tuple(
        _hotspot(events, key, group, time(group) / 1e6, window, peaks if number < MOST_WORK else None,
                 count=number < MOST_WORK)
        for number, (key, group) in enumerate(ordered)
    )  # fmt: skip


def _is_stand_in(events: Events, tops: dict[int, int]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """What kernels were launched for, if it is no op of torch's: a compiled region, an annotation."""
    found = np.zeros(len(events), bool)
    found[[top for top in set(tops.values()) if top >= 0]] = True
    return found


def _place(events: Events, nesting: Nesting, index: int) -> tuple[str, str]:
    """Module and line that an op was called from."""
    module, source = int(nesting.module[index]), int(nesting.frame[index])
    named = events.text(module).removeprefix(MODULE) if module >= 0 else ""
    match = FRAME.fullmatch(events.text(source)) if source >= 0 else None
    return named, f"{Path(match['file']).name}:{match['line']}" if match else ""


def _hotspot(
    events: Events, key: tuple[str, str, str], group: _Group, seconds: float, window: Window, peaks: GpuPeaks | None,
    *, count: bool,
) -> TraceHotspot:  # fmt: skip
    names = sorted(group.kernels, key=lambda name: -group.kernels[name])
    works = _works(events, group) if count else None
    achieved, bottleneck, peak = None, "", ""
    if works and peaks is not None and seconds:
        bounds = [(bound_on_gpu(work, peaks, names), runs) for work, runs in works]
        least, most = sum(one.seconds * runs for one, runs in bounds), max(bounds, key=lambda b: b[0].seconds * b[1])[0]
        achieved, peak = min(1.0, least / seconds), most.peak
        bottleneck = bottleneck_of(most, most.seconds * seconds / least) if least else ""
    example = max(group.shapes.values(), key=lambda seen: seen[1])[0] if group.shapes else -1
    return TraceHotspot(
        op=key[0].removeprefix("aten::"), module=key[1], source=key[2],
        shapes=_shapes(events, group, example), calls=group.calls, seconds=seconds,
        host_s=group.host_us / 1e6, share=seconds / window.seconds if window.seconds else 0.0,
        kernels=tuple(dict.fromkeys(short(name) for name in names[:8])),
        flop=None if works is None else sum(work.flop * runs for work, runs in works),
        bytes=None if works is None else sum((work.read + work.written) * runs for work, runs in works),
        bottleneck=bottleneck, peak=peak, achieved=achieved,
    )  # fmt: skip


def _works(events: Events, group: _Group) -> list[tuple[Work, int]] | None:
    """The work of a call for each of the group's shapes, with how many had them; None if one is not known."""
    if not 0 < len(group.shapes) <= MOST_SHAPES:
        return None
    found = [(work_of(events, index), calls) for index, calls in group.shapes.values()]
    return [(work, calls) for work, calls in found if work is not None] if all(work for work, _ in found) else None


def _shapes(events: Events, group: _Group, example: int) -> str:
    shown = shapes_text(events, example) if example >= 0 else ""
    more = len(group.shapes) - 1
    return f"{shown}; {more} other shape{'s' if more > 1 else ''}" if shown and more else shown


def bound_on_gpu(work: Work, peaks: GpuPeaks, kernels: Iterable[str]) -> Bound:
    total = work.read + work.written
    tf32 = work.dtype == "float32" and any("tf32" in name for name in kernels)
    return bound(
        work.flop, work.transcendental, total, total, "tf32" if tf32 else work.dtype, 1, peaks,
        written_bytes=work.written, function=work.function,
    )  # fmt: skip


def _kernels(events: Events, nesting: Nesting, tops: dict[int, int]) -> tuple[TraceKernel, ...]:
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for index, top in tops.items():
        op = events.text(top).removeprefix("aten::") if top >= 0 else OUTSIDE
        found[events.text(index), op].append(float(events.end[index] - events.start[index]))
    ordered = sorted(found.items(), key=lambda item: -sum(item[1]))[:MOST_KERNELS]
    return tuple(TraceKernel(short(name), op, len(times), sum(times) / 1e6) for (name, op), times in ordered)


def peaks_of_devices(devices: tuple[str, ...]) -> GpuPeaks | None:
    """This machine's, if the trace names its GPU."""
    known = cached_peaks("cuda") if devices else None
    return known if known is not None and known.name in devices else None


# ---------------------------------------------------------------- in words


def _summing_to(parts: dict[str, float], wall_s: float) -> dict[str, float]:
    """Without what is nothing; rounding goes to the largest."""
    kept = {name: seconds for name, seconds in parts.items() if seconds > 0}
    if kept:
        largest = max(kept, key=lambda name: kept[name])
        kept[largest] += wall_s - sum(kept.values())
    return kept


def _sentence(window: Window, parts: dict[str, float], spots: tuple[TraceHotspot, ...], *, on_device: bool) -> str:
    wall = window.seconds
    if not wall:
        return "the trace covers no time"
    steps = len(window.steps)
    what = f"{steps} step{'s' if steps > 1 else ''} of {1e3 * wall / steps:.3g} ms" if steps else f"{1e3 * wall:.3g} ms"
    busy = sum(spot.seconds for spot in spots)
    part = 100 * spots[0].seconds / busy if busy else 0.0
    if not on_device:
        share = 100 * sum(parts.get(name, 0.0) for name in COMPUTE_PARTS) / wall
        return f"{what} on the CPU, {share:.0f}% of it in ops" + (
            f", most in {spots[0].op} ({part:.0f}%)" if busy else ""
        )
    idle = {name: seconds for name, seconds in parts.items() if name.startswith("GPU idle")}
    total, worst = sum(idle.values()), max(idle, key=lambda name: idle[name])
    why = f", mostly {worst.removeprefix('GPU idle: ')}" if total else ""
    first = f"; {part:.0f}% of its work is for {spots[0].op}" if busy else ""
    ran, waited = 100 * parts[KERNELS] / wall, 100 * total / wall
    return f"{what}; the GPU ran kernels for {ran:.0f}%, idle for {waited:.0f}%{why}{first}"


def _unknown(events: Events, window: Window, peaks: GpuPeaks | None, *, on_device: bool) -> tuple[str, ...]:
    lines = ["whether any optimization would be right or gain time: a trace holds no values and cannot be run again"]
    if peaks is None:
        machine = (
            events.table.devices[0] if events.table.devices and on_device else "the machine that it was recorded on"
        )
        lines.append(
            f"recoverable time and the distance from the roofline: the measured peaks of {machine} are not here"
        )
    if not events.table.has_shapes and events.of(OP).any():
        lines.append("flop and bytes of ops: record it with record_shapes=True")
    if not events.of(PYTHON).any() and events.of(OP).any():
        lines.append("the lines that ops were called from: record it with with_stack=True")
    if not window.has_steps:
        lines.append("where a step begins: mark steps with prof.step(); warming up may be in these times")
    if on_device and not events.of(RUNTIME).any():
        lines.append("why the GPU was idle: the trace holds no launches")
    lines.append("how much of these times is the profiler's own, and what other programs took of the machine")
    return tuple(lines)


# ---------------------------------------------------------------- sums alone


def _of_sums(path: str, format: str, found: KernelSums) -> TraceDiagnosis:
    total = sum(kernel.seconds for kernel in found.kernels)
    ordered = tuple(sorted(found.kernels, key=lambda kernel: -kernel.seconds)[:MOST_KERNELS])
    first = ordered[0]
    share = 100 * first.seconds / total if total else 0.0
    bound_by = f", bound by {first.bottleneck}" if first.bottleneck else ""
    runs = sum(kernel.runs for kernel in found.kernels)
    return TraceDiagnosis(
        file=path, format=format,
        sentence=f"{runs} kernels, {1e3 * total:.3g} ms together; {share:.0f}% of it in {first.name}{bound_by}",
        wall_s=total, time_breakdown={}, hotspots=(), kernels=ordered, devices=found.devices,
        findings=tuple(found.remarks), unknown=found.unknown, events=runs, skipped=found.skipped,
    )  # fmt: skip
