"""One run of a program as a trace of Chrome's event format, which ui.perfetto.dev and chrome://tracing open.

Three groups of tracks: the operators one after the other; the same operators on one track for each bottleneck, with the
gaps between them on a track of their own; and what a GPU did on each of its streams.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kernelworks.records import Diagnosis, Hotspot
from kernelworks.records.program_run import DeviceSpans, OperatorSpans
from kernelworks.report import quantity

__all__ = ["BETWEEN_OPERATORS", "MIN_GAP_NS", "trace_events"]

OPERATORS, BOTTLENECKS, DEVICE = 1, 2, 3  # the numbers of the groups: processes, in the format's words
BETWEEN_OPERATORS = "between operators"
MIN_GAP_NS = 1000  # shorter gaps are the profiler's own

Span = tuple[int, int, str, dict[str, Any]]  # start, length, name, what is said of it
Event = dict[str, Any]


def trace_events(record: Diagnosis) -> str:
    """The text of the trace file. A record without spans gives a trace without slices."""
    events: list[Event] = []
    spans = record.spans
    if spans is not None:
        events += _group(OPERATORS, record.program, [("operators", _operators(record, spans))])
        events += _group(BOTTLENECKS, "bound by", _by_bottleneck(record, spans))
        if spans.device is not None:
            events += _group(DEVICE, record.peaks.name, _by_stream(record, spans.device))
    about = {
        "program": record.program, "machine": record.peaks.name, "date": record.date,
        "wall clock without the profiler": quantity.seconds(record.wall_s),
        **{f"version of {name}": version for name, version in record.versions.items()},
    }  # fmt: skip
    if spans is not None and spans.left_out:
        about["spans left out at the end"] = str(spans.left_out)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}, allow_nan=False) + "\n"


def _operators(record: Diagnosis, spans: OperatorSpans) -> list[Span]:
    return [
        (start, length, record.hotspots[number].op, _about(record.hotspots[number], number))
        for start, length, number in zip(spans.starts_ns, spans.lengths_ns, spans.hotspots, strict=True)
    ]


def _by_bottleneck(record: Diagnosis, spans: OperatorSpans) -> list[tuple[str, list[Span]]]:
    """Each bottleneck with its operators, and the gaps."""
    tracks: dict[str, list[Span]] = {}
    for span, number in zip(_operators(record, spans), spans.hotspots, strict=True):
        tracks.setdefault(record.hotspots[number].bottleneck, []).append(span)
    gaps: list[Span] = []
    end = spans.starts_ns[0] if spans.starts_ns else 0
    for start, length in zip(spans.starts_ns, spans.lengths_ns, strict=True):
        if start - end >= MIN_GAP_NS:
            gaps.append((end, start - end, BETWEEN_OPERATORS, {}))
        end = max(end, start + length)
    ordered = sorted(tracks.items(), key=lambda track: -sum(length for _, length, _, _ in track[1]))
    return [*ordered, (BETWEEN_OPERATORS, gaps)]


def _by_stream(record: Diagnosis, device: DeviceSpans) -> list[tuple[str, list[Span]]]:
    tracks: dict[str, list[Span]] = {}
    columns = (device.starts_ns, device.lengths_ns, device.streams, device.names, device.hotspots)
    for start, length, stream, name, number in zip(*columns, strict=True):
        said = _about(record.hotspots[number], number) if number >= 0 else {}
        tracks.setdefault(f"stream {stream}", []).append((start, length, device.texts[name], said))
    return sorted(tracks.items())


def _about(hotspot: Hotspot, number: int) -> dict[str, Any]:
    """What a click on a slice shows."""
    said: dict[str, Any] = {
        "hotspot": number + 1,
        "module": hotspot.module,
        "source": hotspot.source,
        "shapes": hotspot.shapes,
        "bound by": hotspot.bottleneck,
        "peak": hotspot.peak,
        "achieved": quantity.percent(hotspot.achieved) if hotspot.achieved is not None else "",
    }
    return {name: value for name, value in said.items() if value}


def _group(process: int, name: str, tracks: Sequence[tuple[str, list[Span]]]) -> Iterator[Event]:
    """A group of tracks: its name and theirs, then their slices."""
    yield _metadata("process_name", process, 0, {"name": name})
    yield _metadata("process_sort_index", process, 0, {"sort_index": process})
    thread = 0
    for title, spans in tracks:
        for lane in _lanes(spans):
            thread += 1
            yield _metadata("thread_name", process, thread, {"name": title})
            yield _metadata("thread_sort_index", process, thread, {"sort_index": thread})
            for start, length, slice_name, said in lane:
                yield {
                    "name": slice_name, "cat": title, "ph": "X", "ts": start / 1e3, "dur": length / 1e3, "pid": process,
                    "tid": thread, "args": said,
                }  # fmt: skip


def _lanes(spans: Iterable[Span]) -> list[list[Span]]:
    """The spans on as many tracks as it takes: two that overlap cannot lie on one."""
    lanes: list[list[Span]] = []
    for span in sorted(spans, key=lambda s: s[:2]):
        free = next((lane for lane in lanes if lane[-1][0] + lane[-1][1] <= span[0]), None)
        if free is None:
            lanes.append([span])
        else:
            free.append(span)
    return lanes


def _metadata(kind: str, process: int, thread: int, said: dict[str, Any]) -> Event:
    return {"name": kind, "ph": "M", "ts": 0, "pid": process, "tid": thread, "args": said}
