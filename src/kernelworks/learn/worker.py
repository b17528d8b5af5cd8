"""The process in which a learner's function runs: one that crashes takes this one down and not the command.

``python -m kernelworks.learn.worker FD`` reads a task as JSON from its input and writes lines of JSON to the file
descriptor: ``{"attempt": n}`` when one begins, ``{"call": ...}`` before each call with the arrays' addresses,
``{"signal": ...}`` where a call ended the process (by ``signals.cpp``), ``{"so_far": ...}`` after a case that failed,
``{"verdict": ...}``, ``{"times": ...}`` and ``{"error": words}``. Each attempt runs in a fork, so that the references
are computed once.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kernelworks.learn.buffers import PATTERNS, Buffer, place_case
from kernelworks.learn.case import Array, Case, Output, Reference, State, exact_arguments, load_reference
from kernelworks.learn.exercise import Exercise, load_exercise
from kernelworks.learn.faults import Observation, describe_elements, judge, with_verb
from kernelworks.learn.timing import time_calls
from kernelworks.learn.worker_process import PRINT_MARK

__all__ = ["Runner", "call_arguments", "close_buffers", "differing_bits", "observe"]

TYPES: dict[str, Any] = {
    "float": ctypes.c_float, "double": ctypes.c_double, "int": ctypes.c_int, "long": ctypes.c_long,
    "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "int8_t": ctypes.c_int8, "uint8_t": ctypes.c_uint8,
    "uint16_t": ctypes.c_uint16, "bool": ctypes.c_bool,
}  # fmt: skip
BLOCK_ROWS = 8  # more than its share that one slice may do: it may cut the work in blocks
CALL_S = 2.0  # of the processor that one call may use: each takes microseconds
SLICES = (1, 2, 3, 5)  # into how many the work is cut

Call = Callable[..., Any]
Say = Callable[..., None]


def call_arguments(exercise: Exercise, case: Case, buffers: dict[str, Buffer], *slices: int) -> list[Any]:
    """The arguments in the declaration's order."""
    own = dict(zip((p.name for p in exercise.parameters[-2:]), slices, strict=True)) if slices else {}
    found: list[Any] = []
    for p in exercise.parameters:
        if p.is_pointer:
            found.append(ctypes.c_void_p(buffers[p.name].address))
        else:
            found.append(TYPES[p.type](own.get(p.name, case.arguments.get(p.name))))
    return found


def _function(library: str, symbol: str) -> Call:
    found = getattr(ctypes.CDLL(library), symbol)
    found.restype = None
    return found  # type: ignore[no-any-return]


class Runner(Protocol):
    """What calls a function on a case. ``changed``: inputs that are not as they were; ``gaps``: arrays between whose
    rows something was written."""

    changed: set[str]
    gaps: set[str]

    def call(self, case: Case, order: Sequence[tuple[int, ...]], **placed: Any) -> dict[str, Array]: ...


class _Runner:
    """Calls of one attempt."""

    def __init__(self, exercise: Exercise, function: Call, say: Say, limit: Call) -> None:
        self.exercise, self.function, self.say, self.limit = exercise, function, say, limit
        self.changed: set[str] = set()
        self.gaps: set[str] = set()

    def call(self, case: Case, order: Sequence[tuple[int, ...]], **placed: Any) -> dict[str, Array]:
        """The outputs of one call, or of one for each slice in this order."""
        buffers = place_case(case, **placed)
        os.write(1, f"\n{PRINT_MARK}{case.about}\n".encode())
        for slices in order:
            said = [buffer.describe() for buffer in buffers.values()]
            self.say(call={"case": case.about, "buffers": said, "slices": list(slices)})
            arguments = call_arguments(self.exercise, case, buffers, *slices)
            self.limit(ctypes.c_double(CALL_S))
            self.function(*arguments)
            self.limit(ctypes.c_double(0.0))
        return close_buffers(buffers, self)


def close_buffers(buffers: dict[str, Buffer], runner: Runner) -> dict[str, Array]:
    """The outputs of a call; what it changed that it may not is noted in the runner."""
    for name, buffer in buffers.items():
        before = None if buffer.is_output else buffer.before
        if before is not None and np.ascontiguousarray(buffer.view).tobytes() != before.tobytes():
            runner.changed.add(name)
        if buffer.gap and not buffer.has_kept_gaps():
            runner.gaps.add(name)
    outputs = {name: np.array(buffer.view) for name, buffer in buffers.items() if buffer.is_output}
    for buffer in buffers.values():
        buffer.close()
    return outputs


def differing_bits(one: Array, other: Array) -> Array:
    """Which elements of two arrays differ in any bit."""
    return np.asarray(_bits(one) != _bits(other))


def _bits(values: Array) -> Array:
    return np.ascontiguousarray(values).view(np.dtype(f"u{values.itemsize}"))


def _filled(values: Array, pattern: int) -> Array:
    """Which elements hold nothing but the pattern."""
    return np.asarray(_bits(values) == int.from_bytes(bytes([pattern]) * values.itemsize, "little"))


def _overlap(runner: Runner, case: Case, count: int) -> str:
    """Which elements two slices write, each run alone. On real threads whoever is last wins."""
    if any(isinstance(value, State) for value in case.arguments.values()):
        return ""
    owners: dict[str, Array] = {}
    for index in range(count):
        both = [runner.call(case, [(index, count)], at_end=True, pattern=pattern) for pattern in PATTERNS]
        for name in both[0]:
            mask = ~(_filled(both[0][name], PATTERNS[0]) & _filled(both[1][name], PATTERNS[1]))
            twice = mask & (owners[name] >= 0) if name in owners else np.zeros_like(mask)
            if twice.any():
                other = int(owners[name][tuple(np.argwhere(twice)[0])])
                said = f"written by slice {other} and by slice {index} of {count}: on two threads that is a race"
                return with_verb(describe_elements(name, twice), "is", "are", said)
            owners[name] = np.where(mask, index, owners.get(name, np.full(mask.shape, -1)))
    return next(filter(None, (_imbalance(name, mask, count) for name, mask in owners.items())), "")


def _imbalance(name: str, owners: Array, count: int) -> str:
    """What one of several slices does far beyond its share. ``owners``: the slice that writes each element."""
    rows = owners.reshape(len(owners), -1).max(axis=1)
    done = [int((rows == index).sum()) for index in range(count)]
    busiest = int(np.argmax(done))
    if done[busiest] <= -(-rows.size // count) + BLOCK_ROWS:
        return ""
    what = "rows" if owners.ndim > 1 else f"elements of {name}"
    if done[busiest] < rows.size:
        return (
            f"slice {busiest} of {count} does {done[busiest]} of {rows.size} {what}: the others wait for it, "
            "so give each about as many"
        )
    idle = "slice 0 none" if count == 2 and busiest else "the others none"
    said = f"slice {busiest} of {count} does all {rows.size} {what}, {idle}"
    return f"{said}: ith / nth is 0 for integers; multiply before you divide" if busiest == count - 1 else said


def _stale_indices(seen: Observation) -> dict[str, Array]:
    """What an output of integers may hold before a call, such as another call's indices: each element the right one of
    another place. A pattern of bytes is no index, so who reads it before it is set would not be seen by that."""
    found = {}
    for name, value in seen.case.arguments.items():
        if isinstance(value, Output) and np.dtype(value.dtype).kind in "iu":
            right = np.broadcast_to(np.asarray(seen.expected[name]), value.shape)
            found[name] = np.roll(right.ravel(), 1).reshape(right.shape)
    return found


def observe(exercise: Exercise, case: Case, reference: Reference, runner: Runner) -> Observation:
    """Three calls of one case: against the page behind and the page before, with two patterns in the outputs; a fourth
    with old indices in outputs of integers."""
    given = exact_arguments(case)
    with np.errstate(all="ignore"):
        seen = Observation(case, reference.reference(**given), reference.bound(**given))
    runner.changed, runner.gaps = set(), set()
    stale = _stale_indices(seen)
    for count in SLICES if exercise.slices else (0,):
        order: list[tuple[int, ...]] = [(index, count) for index in range(count)] if count else [()]
        first = runner.call(case, order, at_end=True, pattern=PATTERNS[0])
        second = runner.call(case, order, at_end=False, pattern=PATTERNS[1])
        third = runner.call(case, order[::-1], at_end=True, pattern=PATTERNS[1])
        other_gaps, other_numbers = {}, {}
        if stale:
            other_numbers = runner.call(case, order, at_end=True, pattern=PATTERNS[0], stale=stale)
        if any(getattr(value, "gap", 0) for value in case.arguments.values()):
            other_gaps = runner.call(case, order, at_end=True, pattern=PATTERNS[1], gap_pattern=PATTERNS[1])
        for name, got in first.items():
            is_filled = isinstance(case.arguments[name], Output)
            unwritten = _filled(got, PATTERNS[0]) & _filled(second[name], PATTERNS[1]) & is_filled
            differs = _bits(second[name]) != _bits(third[name])
            seen.outputs[name], seen.unwritten[name], seen.unsteady[name] = got, unwritten, differs
            seen.stale[name] = (_bits(got) != _bits(second[name])) & ~unwritten & ~differs
            if name in stale:
                seen.stale[name] |= (_bits(got) != _bits(other_numbers[name])) & ~unwritten & ~differs
            if other_gaps:
                seen.read_gaps[name] = (_bits(other_gaps[name]) != _bits(third[name])) & ~unwritten & ~differs
        if count > 1 and not seen.overlap:
            seen.overlap = _overlap(runner, case, count)
        seen.changed_inputs, seen.written_gaps = sorted(runner.changed), sorted(runner.gaps)
        if seen.overlap or seen.changed_inputs or seen.is_wrong:
            break
    return seen


def _attempt(exercise: Exercise, library: str, symbol: str, cases: list[Case], reference: Reference, say: Say,
             signals: ctypes.CDLL) -> None:  # fmt: skip
    runner = _Runner(exercise, _function(library, symbol), say, signals.learn_limit)
    seen: list[Observation] = []
    for case in cases:
        seen.append(observe(exercise, case, reference, runner))
        verdict = judge(seen, reference)
        if not verdict.right:  # the next case may end the process, and this one comes first
            say(so_far=dataclasses.asdict(verdict))
    say(verdict=dataclasses.asdict(verdict))


def _timed(exercise: Exercise, libraries: dict[str, str], reference: Reference, say: Say) -> None:
    functions = {name: _function(library, exercise.symbol) for name, library in libraries.items()}
    say(times=time_calls(exercise, reference, functions, call_arguments))


def print_at_once() -> None:
    """What a function prints is there also if the call ends the process."""
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, 2, 0)  # _IONBF


def main() -> None:
    descriptor = int(sys.argv[1])
    out = os.fdopen(descriptor, "w", buffering=1, encoding="utf-8")

    def say(**what: Any) -> None:
        out.write(json.dumps(what) + "\n")

    task = json.loads(sys.stdin.read())
    try:
        exercise = load_exercise(Path(task["folder"]))
        reference = load_reference(exercise.folder)
        signals = ctypes.CDLL(task["signals"], mode=ctypes.RTLD_GLOBAL)  # a learner's library calls it too
        print_at_once()
        cases = sorted(reference.cases(), key=lambda case: case.is_empty)  # ordinary ones come first
        for index, (library, symbol) in enumerate(task["attempts"]):
            say(attempt=index)
            child = os.fork()
            if not child:
                code = 1
                try:
                    signals.learn_watch(descriptor)
                    _attempt(exercise, library, symbol, cases, reference, say, signals)
                    code = 0
                except Exception as error:
                    say(error=f"{type(error).__name__}: {error}")
                os._exit(code)
            os.waitpid(child, 0)
        if task["timed"]:
            say(attempt=len(task["attempts"]))
            signals.learn_watch(descriptor)
            _timed(exercise, task["timed"], reference, say)
    except Exception as error:
        say(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
