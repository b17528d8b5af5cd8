"""Exports of Nsight Systems: its SQLite database, which is a timeline, and the CSV reports of ``nsys stats``, of which
``cuda_gpu_trace`` is a timeline and the summaries are sums."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kernelworks.profile.foreign.events import (
    ANNOTATION,
    COPY,
    FILL,
    KERNEL,
    MOST_EVENTS,
    OP,
    RUNTIME,
    EventTable,
    TraceError,
)
from kernelworks.profile.foreign.sums import UNITS, KernelSums, Totals, figure, seconds_of

__all__ = ["read_systems_csv", "read_systems_sqlite"]

HEADER = 100  # bytes of an SQLite file; it holds the size of a page and how many there are
COPIES = {1: "Memcpy HtoD", 2: "Memcpy DtoH", 8: "Memcpy DtoD", 10: "Memcpy PtoP"}
NVTX_RANGES = (59, 60, 70, 71)  # pushed and started ranges, of NVTX 3 and of torch's
UNKNOWN = (
    "the time between kernels, why the GPU was idle, and the program's wall clock: these are sums; export the timeline "
    "with `nsys export --type sqlite`",
    "the ops and the lines of the program that launched them",
    "recoverable time and the distance from the roofline: a summary has no shapes",
    "whether any optimization would be right or gain time: a trace holds no values and cannot be run again",
)


# ---------------------------------------------------------------- SQLite


def read_systems_sqlite(path: Path) -> EventTable:
    """Kernels, copies, fills, calls of CUDA's API and NVTX ranges. Raises TraceError if there are none."""
    table = EventTable()
    with path.open("rb") as file:
        head = file.read(HEADER)
    size = int.from_bytes(head[16:18], "big")
    if int.from_bytes(head[28:32], "big") * (65536 if size == 1 else size) > path.stat().st_size:
        table.remarks.append("the file ends in the middle: what is there was read")
    try:
        database = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)
        try:
            _read_database(database, table)
        finally:
            database.close()
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
        if not len(table):
            raise TraceError(f"an SQLite file that cannot be read: {str(error)[:100]}") from None
        table.remarks.append(f"the file is damaged ({str(error)[:100]}): {len(table)} events before that were read")
    if not len(table):
        raise TraceError(
            "an SQLite file without CUDA events of Nsight Systems: record with `nsys profile -t cuda,nvtx`"
        )
    return table


def _read_database(database: sqlite3.Connection, table: EventTable) -> None:
    database.execute("PRAGMA trusted_schema = OFF")
    known = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    columns = {name: {row[1] for row in database.execute(f'PRAGMA table_info("{name}")')} for name in known & TABLES}
    if columns.get("TARGET_INFO_GPU", set()) >= {"name"}:
        table.devices = tuple(str(n)[:100] for (n,) in database.execute("SELECT name FROM TARGET_INFO_GPU LIMIT 64"))
    texts = _texts(database) if columns.get("StringIds", set()) >= {"id", "value"} else {}
    for name, (add, wanted) in READERS.items():
        held = columns.get(name, set())
        if not {"start", "end"} <= held:
            continue
        shown = [column if column in held else f"NULL AS {column}" for column in ("start", "end", *wanted)]
        for row in database.execute(f'SELECT {", ".join(shown)} FROM "{name}"'):
            if table.full:
                table.remarks.append(f"the file has more than {MOST_EVENTS} events: the rest was not read")
                return
            add(table, texts, *row)


def _texts(database: sqlite3.Connection) -> dict[int, str]:
    rows = database.execute("SELECT id, substr(value, 1, 500) FROM StringIds LIMIT 2000000")
    return {number: text for number, text in rows if isinstance(number, int) and isinstance(text, str)}


def _put(table: EventTable, kind: int, name: Any, lane: str, start: Any, end: Any, link: Any = None) -> None:
    """An event in nanoseconds."""
    if not isinstance(start, (int, float)) or not isinstance(end, (int, float)):
        table.skipped += 1
        return
    table.add(kind, name, lane, start / 1e3, (end - start) / 1e3, link)


def _add_kernel(
    table: EventTable, texts: dict[int, str], start: Any, end: Any, device: Any, stream: Any, link: Any, *names: Any
) -> None:
    name = next((texts[n] for n in names if isinstance(n, int) and n in texts), "kernel without a name")
    _put(table, KERNEL, name, f"device {device} stream {stream}", start, end, link)


def _add_copy(
    table: EventTable, texts: dict[int, str], start: Any, end: Any, device: Any, stream: Any, link: Any, kind: Any
) -> None:
    name = COPIES.get(kind, "Memcpy") if isinstance(kind, int) else "Memcpy"
    _put(table, COPY, name, f"device {device} stream {stream}", start, end, link)


def _add_fill(
    table: EventTable, texts: dict[int, str], start: Any, end: Any, device: Any, stream: Any, link: Any
) -> None:
    _put(table, FILL, "Memset", f"device {device} stream {stream}", start, end, link)


def _add_call(
    table: EventTable, texts: dict[int, str], start: Any, end: Any, thread: Any, link: Any, name: Any
) -> None:
    text = texts.get(name, "call without a name") if isinstance(name, int) else "call without a name"
    _put(table, RUNTIME, re.sub(r"_v\d+$", "", text), f"thread {thread}", start, end, link)


def _add_range(
    table: EventTable, texts: dict[int, str], start: Any, end: Any, thread: Any, kind: Any, text: Any, number: Any
) -> None:
    """A range of torch's (``emit_nvtx``) is an op: ``aten::add, seq = 3, op_id = 7``."""
    if end is None or kind not in NVTX_RANGES:
        return
    name = text if isinstance(text, str) else texts.get(number, "") if isinstance(number, int) else ""
    op = re.match(r"\w+::\w+(?=,|$)", name)
    _put(table, OP if op else ANNOTATION, op[0] if op else name or "range", f"thread {thread}", start, end)


READERS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        _add_kernel, ("deviceId", "streamId", "correlationId", "demangledName", "shortName", "mangledName"),
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (_add_copy, ("deviceId", "streamId", "correlationId", "copyKind")),
    "CUPTI_ACTIVITY_KIND_MEMSET": (_add_fill, ("deviceId", "streamId", "correlationId")),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (_add_call, ("globalTid", "correlationId", "nameId")),
    "CUPTI_ACTIVITY_KIND_DRIVER": (_add_call, ("globalTid", "correlationId", "nameId")),
    "NVTX_EVENTS": (_add_range, ("globalTid", "eventType", "text", "textId")),
}  # fmt: skip
TABLES = {*READERS, "StringIds", "TARGET_INFO_GPU"}


# ---------------------------------------------------------------- CSV


def read_systems_csv(head: Sequence[str], rows: Iterable[Sequence[str]]) -> EventTable | KernelSums:
    """The reports in a file, one below the other. Raises TraceError if none is of the GPU's work."""
    names = [name.strip() for name in head]
    if any(name.startswith("Start") for name in names):
        return _timeline(names, rows)
    totals, found = Totals(), KernelSums([], UNKNOWN)
    for columns, row in _tables(names, rows):
        time = next((name for name in columns if name.startswith("Total Time")), None)
        runs = next((name for name in ("Instances", "Count", "Operations") if name in columns), None)
        label = next((name for name in ("Name", "Operation", "Kernel Name") if name in columns), None)
        if time is None or runs is None or label is None:  # of the API or the system: the host's
            continue
        seconds, count = seconds_of(row[columns[time]], _unit(time)), figure(row[columns[runs]])
        if seconds is None or count is None or not 0 <= count < 1e15 or not row[columns[label]].strip():
            found.skipped += 1
            continue
        totals.add(row[columns[label]].strip(), seconds, int(count))
    found.kernels = totals.kernels()
    if not found.kernels:
        raise TraceError(
            "a report of Nsight Systems without kernels: `nsys stats --report cuda_gpu_kern_sum --format csv`"
        )
    return found


def _unit(name: str) -> str:
    match = re.search(r"\((\w+)\)", name)
    return match[1] if match else "ns"


def _tables(names: list[str], rows: Iterable[Sequence[str]]) -> Iterator[tuple[dict[str, int], Sequence[str]]]:
    """Each row with the columns of the table that it stands in."""
    columns = {name: number for number, name in enumerate(names)}
    for row in rows:
        texts = [text.strip() for text in row]
        if {"Name", "Operation", "Range"} & set(texts) and any(text.startswith("Total Time") for text in texts):
            columns = {name: number for number, name in enumerate(texts)}
        elif len(row) == len(columns):
            yield columns, row


def _timeline(names: list[str], rows: Iterable[Sequence[str]]) -> EventTable:
    """The report ``cuda_gpu_trace``: each kernel, copy and fill."""
    table = EventTable()
    at = {re.sub(r"\s*\(\w+\)$", "", name): number for number, name in enumerate(names)}
    unit = {re.sub(r"\s*\(\w+\)$", "", name): _unit(name) for name in names}
    if not {"Start", "Duration", "Name"} <= at.keys() or unit["Start"] not in UNITS or unit["Duration"] not in UNITS:
        raise TraceError("a report of Nsight Systems without the columns Start, Duration and Name")
    for row in rows:
        if len(row) != len(names):
            continue
        if table.full:
            table.remarks.append(f"the file has more than {MOST_EVENTS} events: the rest was not read")
            break
        start, duration = seconds_of(row[at["Start"]], unit["Start"]), seconds_of(row[at["Duration"]], unit["Duration"])
        if start is None or duration is None:
            table.skipped += 1
            continue
        name = row[at["Name"]].strip()
        kind = COPY if name.startswith("[CUDA memcpy") else FILL if name.startswith("[CUDA memset") else KERNEL
        lane = f"device {row[at['Device']] if 'Device' in at else 0} stream {row[at['Strm']] if 'Strm' in at else 0}"
        table.add(kind, name, lane[:80], start * 1e6, duration * 1e6)
        if "Device" in at and row[at["Device"]] not in table.devices and len(table.devices) < 64:
            table.devices = (*table.devices, row[at["Device"]][:100])
    if not len(table):
        raise TraceError(
            "a report of Nsight Systems without kernels: `nsys stats --report cuda_gpu_trace --format csv`"
        )
    return table
