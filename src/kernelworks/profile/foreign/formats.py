"""Which kind of trace a file is, told by its content, and the file opened so that nothing in it can hold us up."""

from __future__ import annotations

import csv
import functools
import gzip
import io
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from kernelworks.profile.foreign.chrome import read_chrome_trace
from kernelworks.profile.foreign.events import EventTable, TraceError
from kernelworks.profile.foreign.nsight_compute import read_compute_csv
from kernelworks.profile.foreign.nsight_systems import read_systems_csv, read_systems_sqlite
from kernelworks.profile.foreign.sums import KernelSums

__all__ = ["KernelSums", "TraceFile", "read_trace_file"]

HEAD = 1 << 16  # bytes that are looked at
MOST_LINES = 2000  # before the head of a table
# The first bytes of what is no trace that can be read here, and what to do about it.
OTHER_FORMATS = (
    (b"PK\x03\x04", "a zip archive: unpack it"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd: unpack it with zstd -d"),
    (b"\xfd7zXZ", "compressed with xz: unpack it with xz -d"),
    (b"BZh", "compressed with bzip2: unpack it with bzip2 -d"),
    (b"NVR\x00", "a report of Nsight Compute: export it with `ncu --import FILE --csv --page raw`"),
)
BY_ENDING = {
    ".nsys-rep": "a report of Nsight Systems: export it with `nsys export --type sqlite FILE`",
    ".qdrep": "a report of Nsight Systems: export it with `nsys export --type sqlite FILE`",
    ".ncu-rep": "a report of Nsight Compute: export it with `ncu --import FILE --csv --page raw`",
    ".pftrace": "a trace of Perfetto's own format: export Chrome JSON",
}


@dataclass(frozen=True)
class TraceFile:
    format: str
    content: EventTable | KernelSums


def read_trace_file(path: Path) -> TraceFile:
    """Raises TraceError with one sentence, or OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise TraceError(f"{path} is no regular file")
        head = file.read(HEAD)
        file.seek(0)
        if not head:
            raise TraceError(f"{path} is empty")
        if head.startswith(b"SQLite format 3\x00"):
            return TraceFile("Nsight Systems", _said(path, lambda: read_systems_sqlite(path)))
        ending = BY_ENDING.get(path.suffix.lower())
        other = next((said for first, said in OTHER_FORMATS if head.startswith(first)), ending)
        if other is not None:
            raise TraceError(f"{path} is {other}")
        packed: io.BufferedReader = file
        if head.startswith(b"\x1f\x8b"):
            packed = io.BufferedReader(UnpackedFile(file), HEAD)
            head = packed.peek(HEAD)
            if not head:
                raise TraceError(f"{path} is a gzip file that is empty, damaged or ends in the middle")
        text = io.TextIOWrapper(packed, encoding=_encoding(head, path), errors="replace", newline="")
        return _read_text(path, text, head)


class UnpackedFile(io.RawIOBase):
    """The bytes of a gzip file as far as it is whole: where it is damaged or cut they end."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = gzip.GzipFile(fileobj=file)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            piece = self._file.read1(len(buffer))
        except (EOFError, OSError, zlib.error):
            return 0
        buffer[: len(piece)] = piece
        return len(piece)


def _encoding(head: bytes, path: Path) -> str:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"  # as PowerShell writes what a program prints
    if b"\x00" in head:
        raise TraceError(f"{path} is a binary file of no kind that is known here")
    return "utf-8-sig"


def _read_text(path: Path, text: IO[str], head: bytes) -> TraceFile:
    first = head.decode("utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8", "replace")
    if first.lstrip("\ufeff \t\r\n")[:1] in ("{", "["):
        return TraceFile("torch.profiler", _said(path, lambda: read_chrome_trace(text)))
    lines = _lines(text)
    rows = csv.reader(lines)
    try:
        for number, row in enumerate(rows):
            names = {name.strip() for name in row}
            if "Kernel Name" in names and len(names) > 2:
                return TraceFile("Nsight Compute", _said(path, functools.partial(read_compute_csv, row, rows)))
            if {"Name", "Operation"} & names and any(name.startswith(("Total Time", "Duration")) for name in names):
                return TraceFile("Nsight Systems", _said(path, functools.partial(read_systems_csv, row, rows)))
            if number > MOST_LINES:
                break
    except csv.Error as error:
        raise TraceError(f"{path} is no trace: {error}") from None
    raise TraceError(
        f"{path} is no trace: neither Chrome JSON (torch.profiler), nor an export of Nsight Systems (SQLite, CSV), nor "
        "one of Nsight Compute (CSV)"
    )


def _lines(text: IO[str]) -> Iterator[str]:
    """Lines of bounded length."""
    while line := text.readline(1 << 17):
        yield line.replace("\x00", "")


def _said(path: Path, read: Callable[[], EventTable | KernelSums]) -> EventTable | KernelSums:
    """What a reader gives; its complaint names the file."""
    try:
        return read()
    except TraceError as error:
        raise TraceError(f"{path} is {error}") from None
    except csv.Error as error:
        raise TraceError(f"{path} is no trace: {error}") from None
