"""Chrome traces, as torch.profiler exports them: one event at a time, however long the file is.

The document is an object with ``traceEvents``, or the list alone. A file that ends in the middle, or is damaged there,
is read up to that place, and that is said.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any

from kernelworks.profile.foreign.events import (
    ANNOTATION,
    COPY,
    FILL,
    KERNEL,
    MOST_EVENTS,
    OP,
    PYTHON,
    RUNTIME,
    STEP,
    EventTable,
    TraceError,
)

__all__ = ["read_chrome_trace"]

CHUNK = 1 << 18  # characters
MOST_VALUE = 32 << 20  # characters of one event, or of one field of the head
MOST_CHARACTERS = 64 << 30  # of a whole file, unpacked
MOST_PATH = 1000  # characters
STRAY = 64  # characters at the end of what was read, in which an error may only be the missing rest
STEP_NAME = "ProfilerStep#"
SPACE = " \t\r\n"

# By category, with the names that older versions and other devices use.
KINDS = {
    "cpu_op": OP, "operator": OP, "cuda_runtime": RUNTIME, "cuda_driver": RUNTIME, "runtime": RUNTIME,
    "hip_runtime": RUNTIME, "xpu_runtime": RUNTIME, "xpu_driver": RUNTIME, "privateuse1_runtime": RUNTIME,
    "kernel": KERNEL, "concurrent_kernel": KERNEL, "gpu_memcpy": COPY, "memcpy": COPY, "gpu_memset": FILL,
    "memset": FILL, "user_annotation": ANNOTATION, "python_function": PYTHON,
}  # fmt: skip
ARGUMENTS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
LAUNCH = ("grid", "block", "registers per thread", "shared memory", "est. achieved occupancy %")
WRITTEN_KERNEL = ("kernel_file", "kernel_backend")  # of one that a compiler wrote
OLD_ARGUMENTS = {"Input dims": "Input Dims", "Input dtypes": "Input type"}
VERSIONS = ("schemaVersion", "cuda_runtime_version", "cuda_driver_version", "cupti_version", "roctracer_version")


class Damage(Exception):
    """The text cannot be read on from here; the words say why."""


class JsonReader:
    """Values of a JSON text that is read piece by piece."""

    def __init__(self, file: IO[str]) -> None:
        self.file, self.buffer, self.at, self.taken, self.ended = file, "", 0, 0, False
        self.decode = json.JSONDecoder(strict=False).raw_decode

    def more(self, characters: int = CHUNK) -> bool:
        """Reads on. False at the end of the file."""
        if self.ended:
            return False
        piece = self.file.read(characters)
        self.ended = not piece
        self.taken += len(piece)
        if self.taken > MOST_CHARACTERS:
            raise Damage(f"it is longer than {MOST_CHARACTERS >> 30} GiB unpacked")
        self.buffer, self.at = self.buffer[self.at :] + piece, 0
        return not self.ended

    def peek(self) -> str:
        """The next character that is no space, "" at the end."""
        while True:
            while self.at < len(self.buffer) and self.buffer[self.at] in SPACE:
                self.at += 1
            if self.at < len(self.buffer):
                return self.buffer[self.at]
            if not self.more():
                return ""

    def skip(self, character: str) -> bool:
        if self.peek() != character:
            return False
        self.at += 1
        return True

    def value(self) -> Any:
        if not self.peek():
            raise Damage("the file ends in the middle")
        while True:
            try:
                found, end = self.decode(self.buffer, self.at)
            except RecursionError:
                raise Damage("it is nested too deep") from None
            except json.JSONDecodeError as error:
                far = error.pos < len(self.buffer) - STRAY and not error.msg.startswith("Unterminated string")
                if far:
                    raise Damage(
                        f"it is no JSON from character {self.taken - len(self.buffer) + error.pos} on"
                    ) from None
                if len(self.buffer) - self.at > MOST_VALUE:
                    raise Damage("one value of it is too long") from None
                if not self.more(max(CHUNK, len(self.buffer) - self.at)):
                    raise Damage("the file ends in the middle") from None
                continue
            except ValueError:  # a number of thousands of digits
                raise Damage("it holds a number that is too long") from None
            if end == len(self.buffer) and not self.ended and self.more():  # a number may go on
                continue
            self.at = end
            return found

    def items(self) -> Iterator[Any]:
        """Those of the list that begins here."""
        self.skip("[")
        if self.skip("]"):
            return
        while True:
            if self.peek() == "]":  # after a comma: tools write one too many
                self.at += 1
                return
            yield self.value()
            if self.skip("]"):
                return
            if not self.skip(","):
                raise Damage("the file ends in the middle" if not self.peek() else "an event is followed by no comma")


def read_chrome_trace(file: IO[str]) -> EventTable:
    """The events of a Chrome trace. Raises TraceError if it holds none that are torch.profiler's."""
    table, reader, seen = EventTable(), JsonReader(file), 0
    try:
        for event in _events(reader, table):
            seen += 1
            _add(table, event)
            if table.full:
                table.remarks.append(f"the file has more than {MOST_EVENTS} events: the rest was not read")
                break
    except Damage as damage:
        if not len(table):
            raise TraceError(f"no trace: {damage}") from None
        table.remarks.append(f"{damage}: the {seen} events before that were read")
    if not len(table):
        raise TraceError(
            f"a trace without ops or kernels ({seen} events, {table.skipped} of them without sense): export one with "
            "torch.profiler.profile(...).export_chrome_trace"
        )
    return table


def _events(reader: JsonReader, table: EventTable) -> Iterator[Any]:
    first = reader.peek()
    if first == "[":
        yield from reader.items()
        return
    if not reader.skip("{"):
        raise TraceError("no trace: it begins with neither { nor [")
    known = False
    while not reader.skip("}"):
        name = reader.value()
        if not isinstance(name, str) or not reader.skip(":"):
            raise Damage("the file ends in the middle" if not reader.peek() else "a field has no name")
        if name == "traceEvents" and reader.peek() == "[":
            known = True
            yield from reader.items()
        else:
            _head(table, name, reader.value())
        if not reader.skip(",") and reader.peek() != "}":
            raise Damage("the file ends in the middle" if not reader.peek() else "a field is followed by no comma")
    if not known:
        raise TraceError("no trace: a JSON file without traceEvents")


def _head(table: EventTable, name: str, value: Any) -> None:
    if name == "deviceProperties" and isinstance(value, list):
        named = [one.get("name") for one in value if isinstance(one, dict)]
        table.devices = tuple(str(one)[:100] for one in named[:64] if one)
        table.capability, table.multiprocessors = _device_figures(value)
    elif name in VERSIONS and isinstance(value, (int, str)) and not isinstance(value, bool):
        table.versions[name] = str(value)[:40]
    elif name == "distributedInfo" and isinstance(value, dict):
        rank, world = value.get("rank"), value.get("world_size")
        if isinstance(rank, int) and isinstance(world, int) and world > 1:
            table.remarks.append(f"it is rank {rank} of {world}: the other ranks are not in it")


def _device_figures(devices: list[Any]) -> tuple[tuple[int, int], int]:
    """Compute capability and number of multiprocessors of the first device; zeros where the trace does not say."""
    first = devices[0] if devices and isinstance(devices[0], dict) else {}
    figures = [first.get(key) for key in ("computeMajor", "computeMinor", "numSms")]
    major, minor, many = (one if isinstance(one, int) and 0 <= one < 10_000 else 0 for one in figures)
    return (major, minor), many


def _add(table: EventTable, event: Any) -> None:
    if not isinstance(event, dict):
        table.skipped += 1
        return
    if event.get("ph") != "X":
        return
    category = event.get("cat")
    kind = KINDS.get(category.lower()) if isinstance(category, str) else None
    if kind is None:
        return
    given = event.get("args")
    arguments: dict[str, Any] = given if isinstance(given, dict) else {}
    name, detail = event.get("name"), None
    if kind == ANNOTATION and isinstance(name, str) and name.startswith(STEP_NAME):
        kind = STEP
    if kind == OP:
        held = {OLD_ARGUMENTS.get(key, key): value for key, value in arguments.items()}
        detail = {key: held[key] for key in ARGUMENTS if isinstance(held.get(key), list)}
        table.has_shapes = table.has_shapes or "Input Dims" in detail
        detail |= {key: held[key][:MOST_PATH] for key in WRITTEN_KERNEL if isinstance(held.get(key), str)}
    if kind == KERNEL:
        detail = {key: arguments[key] for key in LAUNCH if isinstance(arguments.get(key), (int, float, list))}
    lane = f"{event.get('pid')}/{event.get('tid')}"
    if kind in (KERNEL, COPY, FILL):
        lane = f"device {arguments.get('device', event.get('pid'))} stream {arguments.get('stream', event.get('tid'))}"
    table.add(kind, name, lane[:80], event.get("ts"), event.get("dur", 0), arguments.get("correlation"), detail)
