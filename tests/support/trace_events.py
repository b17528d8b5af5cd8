"""A reader of trace files that holds them against Chrome's event format."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any


def read_trace(text: str) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Slices by process and thread name, after every demand of the format that a viewer relies on is checked."""
    trace = json.loads(text)
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    processes: dict[int, str] = {}
    threads: dict[tuple[int, int], str] = {}
    slices: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str) and event["name"]
        assert type(event["pid"]) is int and type(event["tid"]) is int
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name", "thread_sort_index")
            if event["name"] == "process_name":
                processes[event["pid"]] = event["args"]["name"]
            if event["name"] == "thread_name":
                threads[event["pid"], event["tid"]] = event["args"]["name"]
        else:
            assert event["ph"] == "X" and isinstance(event["cat"], str)
            assert event["ts"] >= 0 and event["dur"] >= 0
            slices[event["pid"], event["tid"]].append(event)
    assert set(slices) <= set(threads) and {pid for pid, _ in threads} <= set(processes)
    found: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for (pid, tid), events in slices.items():
        ends = 0
        for event in events:  # in order; no two slices of a thread lie on each other
            start = round(event["ts"] * 1e3)
            assert start >= ends
            ends = start + round(event["dur"] * 1e3)
        found[processes[pid]][threads[pid, tid]] += events
    return found
