"""The trace file of a run, read as the format of trace events demands it."""

from __future__ import annotations

import dataclasses
import json

from trace_events import read_trace

from kernelworks.records import Diagnosis
from kernelworks.records.program_run import DeviceSpans, OperatorSpans
from kernelworks.report.diagnosis_page.perfetto_trace import BETWEEN_OPERATORS, trace_events

SPANS = OperatorSpans(starts_ns=(0, 5_000, 12_000, 40_000), lengths_ns=(5_000, 6_900, 20_000, 1), hotspots=(0, 1, 0, 2))
DEVICE = DeviceSpans(
    starts_ns=(3_000, 9_000, 9_500), lengths_ns=(5_000, 700, 90_000), streams=(7, 7, 13), names=(0, 1, 0),
    texts=("gemm", "copy"), hotspots=(0, -1, 2),
)  # fmt: skip


def test_every_operator_is_a_slice_on_its_track(diagnosis: Diagnosis) -> None:
    found = read_trace(trace_events(dataclasses.replace(diagnosis, spans=SPANS)))
    assert set(found) == {diagnosis.program, "bound by"}
    operators = found[diagnosis.program]["operators"]
    assert [(e["name"], e["ts"], e["dur"]) for e in operators] == [
        ("linear", 0.0, 5.0), ("attention", 5.0, 6.9), ("linear", 12.0, 20.0), ("gelu", 40.0, 0.001),
    ]  # fmt: skip
    assert operators[0]["args"]["hotspot"] == 1
    assert operators[0]["args"]["module"] == diagnosis.hotspots[0].module
    assert operators[0]["args"]["source"] == "model.py:123"
    by = {name: [e["name"] for e in events] for name, events in found["bound by"].items()}
    assert by == {
        "compute": ["linear", "linear"], "memory": ["attention"], "transcendental": ["gelu"],
        BETWEEN_OPERATORS: [BETWEEN_OPERATORS],
    }  # fmt: skip
    (gap,) = found["bound by"][BETWEEN_OPERATORS]  # 100 ns after the second operator are the profiler's own
    assert (gap["ts"], gap["dur"]) == (32.0, 8.0)


def test_a_gpus_streams_are_tracks(diagnosis: Diagnosis) -> None:
    spans = dataclasses.replace(SPANS, device=DEVICE)
    found = read_trace(trace_events(dataclasses.replace(diagnosis, spans=spans)))
    device = found[diagnosis.peaks.name]
    assert [e["name"] for e in device["stream 7"]] == ["gemm", "copy"]
    assert device["stream 7"][1]["args"] == {}
    assert device["stream 13"][0]["args"]["hotspot"] == 3


def test_operators_that_overlap_get_tracks_of_their_own(diagnosis: Diagnosis) -> None:
    spans = dataclasses.replace(SPANS, starts_ns=(0, 1_000, 2_000, 3_000), lengths_ns=(9_000, 500, 4_000, 50))
    found = read_trace(trace_events(dataclasses.replace(diagnosis, spans=spans)))
    assert len(found[diagnosis.program]["operators"]) == 4


def test_a_record_without_spans_gives_an_empty_trace(diagnosis: Diagnosis) -> None:
    assert read_trace(trace_events(dataclasses.replace(diagnosis, spans=None))) == {}


def test_what_was_left_out_is_said(diagnosis: Diagnosis) -> None:
    text = trace_events(dataclasses.replace(diagnosis, spans=dataclasses.replace(SPANS, left_out=7)))
    assert json.loads(text)["otherData"]["spans left out at the end"] == "7"
