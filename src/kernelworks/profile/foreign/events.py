"""One table of events for every kind of trace: columns of numbers, each name once.

A trace may hold millions of events, and anything at all in them. What makes no sense (a time that is no number, a
negative duration) is counted and left out. Memory: 41 bytes an event, some times that while they are sorted; of
``MOST_EVENTS`` at most, and ``MOST_NAMES`` names.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ANNOTATION", "COPY", "FILL", "KERNEL", "OP", "PYTHON", "RUNTIME", "STEP", "EventTable", "Events", "TraceError",
]  # fmt: skip

OP, RUNTIME, KERNEL, COPY, FILL, STEP, ANNOTATION, PYTHON = range(8)
MOST_EVENTS = 4_000_000
MOST_NAMES = 200_000
MOST_NAME = 500  # characters
MOST_DETAILS = 50_000  # different sets of arguments
OTHER_NAMES = "(more names than are kept)"
LATEST_US = 1e18  # of a time stamp: 30 thousand years
NO_NUMBER = -1
COLUMNS: dict[str, Any] = {
    "kind": np.int8, "name": np.int32, "lane": np.int32, "start": np.float64, "end": np.float64, "link": np.int64,
    "detail": np.int32,
}  # fmt: skip


class TraceError(ValueError):
    """A file that cannot be read as a trace; the text says why, in one sentence."""


@dataclass
class Names:
    """Texts by number."""

    texts: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> int:
        text = text[:MOST_NAME]
        found = self.numbers.get(text)
        if found is None:
            if len(self.texts) >= MOST_NAMES:
                return self.number(OTHER_NAMES) if OTHER_NAMES in self.numbers else self._keep(OTHER_NAMES)
            found = self._keep(text)
        return found

    def _keep(self, text: str) -> int:
        self.numbers[text] = len(self.texts)
        self.texts.append(text)
        return len(self.texts) - 1


@dataclass
class EventTable:
    """What a reader puts in."""

    names: Names = field(default_factory=Names)
    lanes: Names = field(default_factory=Names)
    details: list[Any] = field(default_factory=list)  # arguments of ops, launches of kernels
    devices: tuple[str, ...] = ()
    capability: tuple[int, int] = (0, 0)  # of the first device; 0 where the trace does not say
    multiprocessors: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)  # what a reader must know of the file itself
    skipped: int = 0
    has_shapes: bool = False

    def __post_init__(self) -> None:
        self._kind, self._name, self._lane = array("b"), array("i"), array("i")
        self._start, self._end, self._link, self._detail = array("d"), array("d"), array("q"), array("i")
        self._known: dict[str, int] = {}
        self._origin: float | None = None  # times are kept from here on: a nanosecond is lost in 10^12 us

    def __len__(self) -> int:
        return len(self._kind)

    @property
    def full(self) -> bool:
        return len(self._kind) >= MOST_EVENTS

    def add(
        self,
        kind: int,
        name: object,
        lane: str,
        start: object,
        duration: object,
        link: object = None,
        detail: Any = None,
    ) -> bool:
        """Keeps an event, times in microseconds. False if it makes no sense."""
        begin, length = _number(start), _number(duration)
        if begin is None or length is None or length < 0 or abs(begin) > LATEST_US or length > LATEST_US:
            self.skipped += 1
            return False
        if not isinstance(name, str) or not name:
            self.skipped += 1
            return False
        if self._origin is None:
            self._origin = begin
        begin -= self._origin
        self._kind.append(kind)
        self._name.append(self.names.number(name))
        self._lane.append(self.lanes.number(lane))
        self._start.append(begin)
        self._end.append(begin + length)
        whole = isinstance(link, int) and not isinstance(link, bool) and 0 <= link < 1 << 62
        self._link.append(link if whole else NO_NUMBER)  # type: ignore[arg-type]
        self._detail.append(self._number_of(detail))
        return True

    def _number_of(self, detail: Any) -> int:
        if not detail:
            return NO_NUMBER
        key = repr(detail)
        found = self._known.get(key)
        if found is None:
            if len(self.details) >= MOST_DETAILS or len(key) > 20_000:
                return NO_NUMBER
            found = self._known[key] = len(self.details)
            self.details.append(detail)
        return found

    def finish(self) -> Events:
        """The columns, sorted by lane and time, an outer event before an inner one."""
        kind, name, lane = (
            self._column("kind", self._kind), self._column("name", self._name), self._column("lane", self._lane),
        )  # fmt: skip
        start, end = self._column("start", self._start), self._column("end", self._end)
        link, detail = self._column("link", self._link), self._column("detail", self._detail)
        order = np.lexsort((kind, -end, start, lane))
        return Events(
            self, kind[order], name[order], lane[order], start[order], end[order], link[order], detail[order]
        )  # fmt: skip

    @staticmethod
    def _column(name: str, values: array[Any]) -> NDArray[Any]:
        return np.array(values, COLUMNS[name])


@dataclass
class Events:
    """Sorted columns. Times in microseconds."""

    table: EventTable
    kind: NDArray[np.int8]
    name: NDArray[np.int32]
    lane: NDArray[np.int32]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    link: NDArray[np.int64]
    detail: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.kind)

    def text(self, index: int) -> str:
        return self.table.names.texts[int(self.name[index])]

    def of(self, *kinds: int) -> NDArray[np.bool_]:
        return np.isin(self.kind, kinds)

    def within(self, start: float, end: float) -> Events:
        """Those that lie in a stretch of time, by their middle."""
        middle = (self.start + self.end) / 2
        kept = (middle >= start) & (middle <= end)
        columns = ("kind", "name", "lane", "start", "end", "link", "detail")
        return Events(self.table, **{name: getattr(self, name)[kept] for name in columns})


def _number(value: object) -> float | None:
    """A finite number, also one that is written as a text, as some tools do."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and len(value) < 40:
        try:
            value = float(value)
        except ValueError:
            return None
    if not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None
