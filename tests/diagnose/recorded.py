"""Recorded traces: the profiler's events of one run, with what the survey knew, as compressed JSON.

``kernelworks.profile.trace.read_trace`` takes the profiler's own events or these, so what needs a GPU to happen needs
none to be read. ``python tests/diagnose/record.py`` makes the files.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kernelworks.profile.inductor.compiled_graphs import CompiledGraph
from kernelworks.profile.inputs import Inputs
from kernelworks.profile.trace import Place, Trace, read_trace

__all__ = ["Event", "Recorded", "keep", "load", "save"]

CPU, CUDA = "CPU", "CUDA"
# What is kept of an event, in the order of its list in the file; each is a method of the profiler's event.
FIELDS = (
    "name", "start_ns", "end_ns", "start_thread_id", "scope", "sequence_nr", "correlation_id", "linked_correlation_id",
    "device_resource_id", "nbytes", "is_user_annotation", "overload_name", "dtypes", "concrete_inputs",
)  # fmt: skip
DEFAULTS: tuple[Any, ...] = ("", 0, 0, 0, 0, -1, 0, 0, 0, 0, False, "", [], [])


class Event:
    """One event of a file, with the methods of the profiler's own."""

    def __init__(self, device: str, values: Sequence[Any]) -> None:
        self._device, self._values = device, (*values, *DEFAULTS[len(values) :])

    def device_type(self) -> str:
        return self._device

    def __getattr__(self, name: str) -> Any:
        try:
            value = self._values[FIELDS.index(name)]
        except ValueError:
            raise AttributeError(name) from None
        return lambda: value


@dataclass
class Recorded:
    """What one profiled run left behind. ``wall`` is the plain run's, in seconds, where it was timed."""

    events: list[Any]
    inputs: list[Any] = field(default_factory=list)  # (correlation, addresses, shapes, strides)
    places: list[Place] = field(default_factory=list)
    persistent: dict[int, int] = field(default_factory=dict)

    def trace(self, compiled: Sequence[CompiledGraph] = ()) -> Trace:
        """The events as a trace; places, shapes and addresses where it was a survey. ``compiled``: the graphs that
        torch.compile made of the program."""
        inputs = {number: Inputs(*its) for number, *its in self.inputs}
        return read_trace(self.events, self.places, None, inputs if self.inputs else None, compiled=compiled)


def keep(events: Iterable[Any], *, since: int, until: int) -> list[list[Any]]:
    """The profiler's events between two times as plain lists, the device first, defaults at the end left out."""
    kept = []
    for event in events:
        if not since <= event.start_ns() <= until:
            continue
        device = CUDA if str(event.device_type()).endswith(CUDA) else CPU
        values = [_plain(getattr(event, name)()) if hasattr(event, name) else default for name, default in _FIELDS]
        while values and values[-1] == DEFAULTS[len(values) - 1]:
            values.pop()
        kept.append([device, *values])
    return kept


_FIELDS = tuple(zip(FIELDS, DEFAULTS, strict=True))


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def save(path: Path, runs: dict[str, Recorded], facts: dict[str, Any]) -> None:
    """Writes named runs of one program and what else is known of it (wall clocks, versions) to one compressed file."""
    plain = {
        name: {
            "events": run.events,
            "inputs": run.inputs,
            "places": [asdict(place) for place in run.places],
            "persistent": run.persistent,
        }
        for name, run in runs.items()
    }
    text = json.dumps({"facts": facts, "runs": plain}, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def load(path: Path) -> tuple[dict[str, Recorded], dict[str, Any]]:
    """What ``save`` wrote. Raises OSError, or ValueError where it is no such file."""
    found = json.loads(gzip.decompress(path.read_bytes()))
    runs = {
        name: Recorded(
            [Event(item[0], item[1:]) for item in run["events"]],
            run["inputs"],
            [Place(**place) for place in run["places"]],
            {int(address): size for address, size in run["persistent"].items()},
        )
        for name, run in found["runs"].items()
    }
    return runs, found["facts"]
