"""What the program's ops were and how long each took: torch's profiler, made into a tree of calls.

Two kinds of pass see the same calls in the same order. The timing pass records names and times only (about half a
microsecond an event); the survey pass records shapes, strides, dtypes and scalars, the place in the program
(``places``) and page faults, and its times are thrown away. ``join`` puts the two together.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.autograd.profiler import profile, record_function

__all__ = ["Call", "Place", "Trace", "join", "record", "without_collection"]

RUN = "kernelworks run"  # the annotation around one run of the program
COMPILED = "## Call CompiledFxGraph"  # the annotation around a graph that torch.compile made
MEMORY = "[memory]"
LARGE = 128 * 1024  # bytes; malloc gives smaller blocks back to itself, not to the system
FUNCTION, BACKWARD = 0, 1  # at::RecordScope

# The profiler's C++ names of dtypes.
DTYPES = {
    "float": torch.float32, "double": torch.float64, "c10::BFloat16": torch.bfloat16, "c10::Half": torch.float16,
    "long int": torch.int64, "long": torch.int64, "int": torch.int32, "short": torch.int16, "short int": torch.int16,
    "unsigned char": torch.uint8, "signed char": torch.int8, "bool": torch.bool,
    "c10::complex<float>": torch.complex64, "c10::complex<double>": torch.complex128,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the program a call was made."""

    module: str = ""  # dotted path of the innermost module, list indices as "*"
    source: str = ""  # "file.py:123", the innermost line outside torch
    faults: int = 0  # minor page faults during the call
    path: str = ""  # the dotted path with its indices


@dataclass(slots=True)
class Call:
    """One op with the ops that it called. Times in ns; shapes and the like only from a survey pass.

    After ``load``, ``shapes`` and ``strides`` hold a list of sizes per argument, a list of lists for a list of tensors,
    and [] for anything else; ``dtypes`` a torch dtype per tensor argument, else None; ``scalars`` the numbers and lists
    of numbers; ``pointers`` a storage address per tensor argument.
    """

    name: str
    start: int
    end: int
    scope: int = FUNCTION
    overload: str = ""
    sequence: int = -1
    shapes: list[Any] = field(default_factory=list)
    strides: list[Any] = field(default_factory=list)
    dtypes: list[torch.dtype | None] = field(default_factory=list)
    scalars: list[Any] = field(default_factory=list)
    pointers: list[Any] = field(default_factory=list)
    children: list[Call] = field(default_factory=list)
    place: Place = Place()
    backward: bool = False
    freed: int = 0  # bytes of large blocks given back since the call before
    event: Any = None  # the profiler's own record, until it is loaded

    def load(self) -> Call:
        """Reads shapes and the like from the profiler's record. Cost: tens of us once, so it waits."""
        if self.event is not None:
            event, self.event = self.event, None
            self.overload = event.overload_name()
            self.shapes = event.structured_input_shapes()
            self.strides = event.structured_input_strides()
            self.dtypes = [DTYPES.get(d) for d in event.dtypes()]
            self.scalars = event.concrete_inputs()
        return self

    @property
    def events(self) -> int:
        """How many events the profiler recorded for this call, itself included."""
        return 1 + sum(child.events for child in self.children)

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the call and of those under it: what two passes are matched by."""
        return (self.name, *(name for child in self.children for name in child.key))


@dataclass(slots=True)
class Trace:
    """One run under the profiler. ``calls`` are the outermost ops on the thread that ran the program, in order."""

    start: int
    end: int
    calls: list[Call]
    events: int
    elsewhere: int  # ops on other threads: not on the critical path
    output: Any
    freed: int = 0  # bytes of large blocks given back after the last call


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the profiler's own lines (torch 2.13 has no switch for them) out of the user's terminal."""
    sys.stderr.flush()
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


def record(run: Callable[[], Any], *, survey: contextlib.AbstractContextManager[list[Place]] | None = None) -> Trace:
    """Runs the program once under the profiler. With ``survey`` (a ``places.Survey``) shapes and places are recorded.

    Raises what the program raises.
    """
    survey_too = survey is not None
    profiler = profile(
        use_cpu=True,
        record_shapes=survey_too,
        profile_memory=survey_too,
        experimental_config=_ExperimentalConfig(capture_overload_names=survey_too),
    )
    places: list[Place] = []
    with contextlib.ExitStack() as whole:
        if survey is not None:
            whole.enter_context(_quiet())  # the memory profiler warns of every block that is older than it
        with _quiet():
            profiler.__enter__()  # type: ignore[no-untyped-call]
        try:
            with survey or contextlib.nullcontext(places) as places, record_function(RUN):
                output = run()
        finally:
            with _quiet():
                profiler.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    with without_collection():
        return _trace(profiler.kineto_results, places, output, surveyed=survey is not None)


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Without the garbage collector, which would walk over all calls made so far again and again (2.4 s to 0.75 s)."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def _trace(results: Any, places: list[Place], output: Any, *, surveyed: bool) -> Trace:
    events = results.events()
    run = next((e for e in events if e.name() == RUN), None)
    if run is None:
        raise RuntimeError("torch's profiler recorded nothing: is another profiler running in this process?")
    start, end, thread = run.start_ns(), run.end_ns(), run.start_thread_id()
    flat: list[Call] = []
    frees: list[tuple[int, int]] = []
    elsewhere = 0
    for event in events:
        name, begun = event.name(), event.start_ns()
        if begun < start or begun >= end or name == RUN:
            continue
        if name == MEMORY:
            if event.nbytes() <= -LARGE:
                frees.append((begun, -event.nbytes()))
        elif event.start_thread_id() != thread:
            elsewhere += 1
        elif surveyed:
            flat.append(Call(name, begun, event.end_ns(), event.scope(), sequence=event.sequence_nr(), event=event))
        else:
            flat.append(Call(name, begun, event.end_ns(), event.scope()))
    flat.sort(key=lambda c: (c.start, -c.end))
    calls = _outermost(_nest(flat), places)
    if surveyed:
        pointers = _pointers(results)
        for call in calls:
            call.pointers = pointers.get((call.start, call.name), [])
    trace = Trace(start, end, calls, len(flat), elsewhere, output)
    _free(trace, sorted(frees))
    return trace


def _free(trace: Trace, frees: list[tuple[int, int]]) -> None:
    """Charges a large block given back between two calls to the later one. Inside a call it is that call's affair."""
    at = 0
    for call in trace.calls:
        while at < len(frees) and frees[at][0] < call.end:
            call.freed += frees[at][1] if frees[at][0] < call.start else 0
            at += 1
    trace.freed = sum(size for _, size in frees[at:])


def _pointers(results: Any) -> dict[tuple[int, str], list[Any]]:
    """Storage addresses of the tensor arguments of outermost ops; only the profiler's tree has them."""
    found: dict[tuple[int, str], list[Any]] = {}
    waiting = list(results.experimental_event_tree())
    while waiting:
        node = waiting.pop()
        fields = node.extra_fields
        inputs = getattr(fields, "inputs", None)
        if inputs and "::" in node.name:
            found[node.start_time_ns, node.name] = [_address(item) for item in inputs]
        else:
            waiting.extend(node.children)
    return found


def _address(item: Any) -> Any:
    if isinstance(item, list):
        return [_address(inner) for inner in item]
    return getattr(item, "storage_data_ptr", None)


def _nest(flat: list[Call]) -> list[Call]:
    roots: list[Call] = []
    open_: list[Call] = []
    for call in flat:
        while open_ and open_[-1].end <= call.start:
            open_.pop()
        (open_[-1].children if open_ else roots).append(call)
        open_.append(call)
    return roots


def _is_op(call: Call) -> bool:
    if call.name.startswith(COMPILED):
        return True
    return call.scope == FUNCTION and "::" in call.name and not call.name.startswith(("autograd::", "torch::"))


def _outermost(roots: list[Call], places: list[Place]) -> list[Call]:
    """The outermost ops with their places; annotations and autograd's nodes are looked through.

    A backward op gets the place of the forward op with the same sequence number.
    """
    calls: list[Call] = []
    forward: dict[int, Place] = {}

    def visit(call: Call, place: Place, backward: Place | None) -> None:
        if call.name.startswith(PLACE):
            place = places[int(call.name[len(PLACE) :])]
        elif call.scope == BACKWARD and call.sequence >= 0:
            known = forward.get(call.sequence)
            backward = replace(known, faults=0) if known else backward
        elif _is_op(call):
            call.place, call.backward = (backward, True) if backward else (place, False)
            calls.append(call)
            for number in _sequences(call) if not backward else ():
                forward.setdefault(number, place)
            _prune(call)
            return
        for child in call.children:
            visit(child, place, backward)

    for root in roots:
        visit(root, Place(), None)
    return calls


PLACE = "kernelworks place "  # the annotation that a survey puts round each call; its number follows


def _sequences(call: Call) -> Iterator[int]:
    if call.sequence >= 0:
        yield call.sequence
    for child in call.children:
        yield from _sequences(child)


def _prune(call: Call) -> None:
    """Takes annotations out from below an op, so that both kinds of pass see the same tree."""
    children: list[Call] = []
    for child in call.children:
        _prune(child)
        if child.name.startswith(PLACE):
            children.extend(child.children)
        else:
            children.append(child)
    call.children = children


def join(timed: Trace, survey: Trace) -> list[Call]:
    """The timed calls, each with the shapes and place of the survey's call of the same name and turn.

    A timed call that the survey never saw keeps empty shapes: it ends up unmodelled, never dropped.
    """
    same = len(timed.calls) == len(survey.calls) and all(
        a.name == b.name for a, b in zip(timed.calls, survey.calls, strict=True)
    )
    if same:
        return [_dressed(a, b) for a, b in zip(timed.calls, survey.calls, strict=True)]
    seen: dict[tuple[str, ...], deque[Call]] = defaultdict(deque)
    for call in survey.calls:
        seen[call.key].append(call)
    joined: list[Call] = []
    for call in timed.calls:
        queue = seen.get(call.key)
        if not queue:
            joined.append(call)
            continue
        known = queue.popleft()
        if not queue:
            queue.append(known)  # more calls than the survey saw: the last one stands for the rest
        joined.append(_dressed(call, known))
    return joined


def _dressed(timed: Call, known: Call) -> Call:
    return replace(known.load(), start=timed.start, end=timed.end)
