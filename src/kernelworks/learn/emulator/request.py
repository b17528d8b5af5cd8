"""One run of the emulator: cases and orders of threads go into a file, faults, traffic and outputs come back."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernelworks.learn.emulator.compilation import LINES, build_program, build_sources, source_lines
from kernelworks.machine import environment

__all__ = [
    "Argument", "Emulation", "EmulatorError", "Fault", "Launch", "OrderOutput", "Place", "Role", "ThreadOrder",
    "Traffic", "emulate", "run_library", "thread_orders",
]  # fmt: skip

Array = npt.NDArray[Any]

CPU_SECONDS = 6  # of one order, which takes 0.05 s at most: a thread that waits for what never comes would run on
WALL_SECONDS = 120.0
CASE_MARK, MOST_PRINTED = "\x1e", 2000  # as in `printing.hpp`


class Role(IntEnum):
    """What a parameter of the host function is for; ``runtime.cpp`` has the same list."""

    INPUT = 0
    OUTPUT = 1
    IN_OUT = 2
    SCALAR = 3


@dataclass(frozen=True)
class Argument:
    """One argument: an array, or an array of one element for a scalar. An output's elements are not handed over."""

    name: str
    role: Role
    data: Array


@dataclass(frozen=True)
class ThreadOrder:
    """An order in which the threads of a block run. ``thread`` is the one that a sentence is about."""

    kind: int
    thread: int
    seed: int
    text: str


@dataclass(frozen=True)
class Place:
    """A thread at a line of the source. ``access``: 0 none, 1 reads, 2 writes, 3 updates atomically."""

    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    line: int
    access: int


@dataclass(frozen=True)
class Fault:
    """What the emulator saw, the same fault of the same lines once. ``threads``: how many threads did it."""

    kind: str
    array: str
    index: int
    indices: str  # as the source writes them: ``[3][4]``
    first: Place
    second: Place
    count: int
    threads: int
    length: int
    shared: bool
    order: int
    case: int
    value: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    bytes: int
    elements: int = 1  # that one access takes


@dataclass(frozen=True)
class Launch:
    """``count`` launches of one line and configuration, in the first order of a case."""

    case: int
    line: int
    count: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]


@dataclass(frozen=True)
class Traffic:
    """The requests of one line for one array. ``cost``, ``least``: sectors of 32 bytes; of shared memory, passes."""

    line: int
    array: str
    shared: bool
    access: int
    case: int
    requests: int
    accesses: int
    cost: int
    least: int
    worst: int
    bytes: int


@dataclass(frozen=True)
class OrderOutput:
    """One array that an order of threads left, and which of its elements nobody has written."""

    array: str
    case: int
    order: int
    values: Array
    missing: int
    first: int
    last: int


@dataclass
class Emulation:
    """All that a run said."""

    faults: list[Fault] = field(default_factory=list)
    traffic: list[Traffic] = field(default_factory=list)
    outputs: list[OrderOutput] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)  # by the first order of each case


class EmulatorError(RuntimeError):
    """The emulator itself did not run."""


def thread_orders(count: int, seed: int = 1) -> list[ThreadOrder]:
    """``count`` orders, the simple ones first: by index, backwards, in step, one thread ahead or behind, by seed."""
    simple = [
        (0, 0, "the threads run by their index"),
        (1, 0, "the threads run backwards"),
        (2, 0, "the threads run in step"),
        (3, 0, "the threads run in step, the last one first"),
        (6, 0, "the last warp runs first"),
    ]
    for thread in (31, 0, 32, 1, 63, 2, 255, 16):
        simple.append((4, thread, f"thread {thread} runs ahead of the others"))
        simple.append((5, thread, f"thread {thread} runs behind the others"))
    orders = [ThreadOrder(kind, thread, seed, text) for kind, thread, text in simple[:count]]
    draws = random.Random(seed)
    while len(orders) < count:
        number = draws.randrange(1, 1 << 40)
        orders.append(ThreadOrder(7, 0, number, f"the threads run in a random order (seed {number})"))
    return orders


def _number(value: int) -> bytes:
    return struct.pack("<Q", value)


def _request(
    cases: Sequence[Sequence[Argument]], orders: Sequence[Sequence[ThreadOrder]], cpu_seconds: int, stops: bool
) -> bytes:
    parts = [_number(cpu_seconds), _number(stops), _number(len(cases))]
    for arguments, of_case in zip(cases, orders, strict=True):
        parts.append(_number(len(arguments)))
        for argument in arguments:
            name, data = argument.name.encode(), np.ascontiguousarray(argument.data)
            parts += [_number(len(name)), name, _number(argument.role), _number(data.itemsize)]
            parts += [_number(data.nbytes), data.tobytes()]
        parts.append(_number(len(of_case)))
        for order in of_case:
            parts += [_number(order.kind), _number(order.thread), _number(order.seed)]
    return b"".join(parts)


def _indices(index: int, inner: int, innermost: int, length: int) -> str:
    """A flat index as the source writes it, where the array has several dimensions and the index is in it."""
    if inner <= 1 or not 0 <= index < length:
        return f"[{index}]"
    if innermost <= 1:
        return f"[{index // inner}][{index % inner}]"
    return f"[{index // inner}][{index % inner // innermost}][{index % innermost}]"


def _place(said: dict[str, Any], lines: dict[int, int]) -> Place:
    return Place(
        tuple(said["block"]), tuple(said["thread"]), said["line"] % LINES or lines.get(said["pc"], 0), said["access"]
    )


def _fault(said: dict[str, Any], lines: dict[int, int]) -> Fault:
    return Fault(
        said["kind"], said["array"], said["index"],
        _indices(said["index"], said["inner"], said["innermost"], said["length"]),
        _place(said["first"], lines), _place(said["second"], lines), said["count"], said["threads"], said["length"],
        said["shared"], said["order"], said["case"], said["value"], tuple(said["grid"]), tuple(said["block"]),
        said["bytes"], said["bytes"] // max(said["element"], 1),
    )  # fmt: skip


def _traffic(records: Iterable[dict[str, Any]], lines: dict[int, int]) -> list[Traffic]:
    """Several places in the compiled code that stand for one line and array are one entry."""
    sums: dict[tuple[Any, ...], list[int]] = {}
    for said in records:
        key = (lines.get(said["pc"], 0), said["array"], said["shared"], said["access"], said["case"])
        counts = sums.setdefault(key, [0] * 6)
        for i, name in enumerate(("requests", "accesses", "cost", "least", "worst", "bytes")):
            counts[i] = max(counts[i], said[name]) if name == "worst" else counts[i] + said[name]
    return [Traffic(*key, *counts) for key, counts in sorted(sums.items())]


def _answer(
    records: list[dict[str, Any]], raw: bytes, cases: Sequence[Sequence[Argument]], library: Path, name: str
) -> Emulation:
    faults = [said for said in records if said["what"] == "fault"]
    traffic = [said for said in records if said["what"] == "traffic"]
    counters = [said[place]["pc"] for said in faults for place in ("first", "second")] + [
        said["pc"] for said in traffic
    ]
    lines = source_lines(library, counters, name)
    emulation = Emulation([_fault(said, lines) for said in faults], _traffic(traffic, lines))
    emulation.launches = [
        Launch(said["case"], said["line"] % LINES, said["count"], tuple(said["grid"]), tuple(said["block"]))
        for said in records
        if said["what"] == "launch"
    ]
    for said in records:
        if said["what"] != "output":
            continue
        like = next(a.data for a in cases[said["case"]] if a.name == said["array"])
        values = np.frombuffer(raw, like.dtype, like.size, said["offset"]).reshape(like.shape)
        emulation.outputs.append(
            OrderOutput(
                said["array"], said["case"], said["order"], values, said["missing"], said["first"], said["last"]
            )
        )
    return emulation


def emulate(
    text: str,
    name: str,
    declaration: str,
    types: Sequence[str],
    cases: Sequence[Sequence[Argument]],
    orders: Sequence[Sequence[ThreadOrder]],
    cpu_seconds: int = CPU_SECONDS,
) -> Emulation:
    """Runs the host function ``declaration`` of a CUDA source on each case, once for each of that case's orders.

    ``types``: of its parameters, in C. ``name``: of the source, for messages. An order that takes ``cpu_seconds`` of
    the process's own CPU time counts as endless. Cost: one run of g++ (about 0.4 s, once for a text), then some 30 ns
    for each load and store of each thread in each order.

    Raises NotTranslated, BuildError (the compiler refuses the source), EmulatorError.
    """
    return run_library(build_sources([text], name, declaration, types), 0, name, cases, orders, cpu_seconds)


def run_library(
    library: Path,
    attempt: int,
    name: str,
    cases: Sequence[Sequence[Argument]],
    orders: Sequence[Sequence[ThreadOrder]],
    cpu_seconds: int = CPU_SECONDS,
    stops: bool = False,
) -> Emulation:
    """As ``emulate``, of the ``attempt``-th text of a library of ``build_sources``.

    ``stops``: at the first order with a fault. Raises BuildError, EmulatorError.
    """
    program = build_program()
    with tempfile.TemporaryDirectory() as folder:
        request, answer, outputs = (Path(folder) / file for file in ("request", "answer", "outputs"))
        request.write_bytes(_request(cases, orders, cpu_seconds, stops))
        command = [str(program), str(library), str(attempt), str(request), str(answer), str(outputs)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=WALL_SECONDS, check=False,
                cwd=folder, env=environment.variables_without_secrets(),
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EmulatorError(f"the emulator did not end: {error}") from error
        if done.returncode not in (0, 4):
            raise EmulatorError(f"the emulator ended with {done.returncode}: {done.stderr.strip()[-500:]}")
        records = [json.loads(line) for line in answer.read_text(encoding="utf-8").splitlines()]
        emulation = _answer(records, outputs.read_bytes(), cases, library, name)
    emulation.printed = [said[:MOST_PRINTED] for said in done.stdout.split(CASE_MARK)[1:]]
    return emulation
