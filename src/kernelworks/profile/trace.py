"""What the program's ops were and how long each took: torch's profiler, made into a tree of calls.

Two kinds of pass see the same calls in the same order. The timing pass records names and times only (about half a
microsecond an event); the survey pass records shapes, strides, dtypes and scalars, the place in the program
(``places``) and page faults, and its times are thrown away. ``join`` puts the two together.
"""

from __future__ import annotations

import contextlib
import gc
import marshal
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from kernelworks.profile.calls import FUNCTION, Call, DeviceWork, Place, Runtime
from kernelworks.profile.inductor.compiled_graphs import CompiledGraph, compiled_of, name_calls
from kernelworks.profile.inductor.graph_kernels import assign_calls
from kernelworks.profile.inputs import Inputs
from kernelworks.profile.non_compute import COMPILES, call_name

__all__ = [
    "GRAPH_ANNOTATION",
    "Call",
    "DeviceWork",
    "Place",
    "Runtime",
    "Trace",
    "event_of_run",
    "is_device_work",
    "is_on_device",
    "join",
    "read_trace",
    "without_collection",
]

RUN_ANNOTATION = "kernelworks run"  # This annotation surrounds one run of the program.
GRAPH_LAUNCH = "GraphLaunch"  # of the driver's call that runs one of CUDA's graphs
GRAPH_ANNOTATION = "## Call CompiledFxGraph"  # This annotation surrounds a graph that torch.compile made.
MEMORY = "[memory]"
LARGE = 128 * 1024  # bytes; malloc gives smaller blocks back to itself, not to the system
BACKWARD = 1  # at::RecordScope
RUNTIME = re.compile("cu(da)?[A-Z]")  # cudaLaunchKernel, cuLaunchKernelEx
WAITS_OF_STREAMS = frozenset({"Context Sync", "Stream Sync", "Event Sync", "Stream Wait Event"})  # not work

# The profiler's C++ names of dtypes.
DTYPES = {
    "float": torch.float32, "double": torch.float64, "c10::BFloat16": torch.bfloat16, "c10::Half": torch.float16,
    "long int": torch.int64, "long": torch.int64, "int": torch.int32, "short": torch.int16, "short int": torch.int16,
    "unsigned char": torch.uint8, "signed char": torch.int8, "bool": torch.bool,
    "c10::complex<float>": torch.complex64, "c10::complex<double>": torch.complex128,
    "c10::complex<c10::Half>": torch.complex32, "c10::Float8_e4m3fn": torch.float8_e4m3fn,
    "c10::Float8_e5m2": torch.float8_e5m2, "unsigned short": torch.uint16, "unsigned int": torch.uint32,
    "unsigned long": torch.uint64,
}  # fmt: skip


@dataclass(slots=True)
class Trace:
    """One run under the profiler. ``calls`` are the outermost ops on the thread that ran the program, in order.

    Autograd's thread, which it has for a GPU, counts too (the program's waits for it). ``between`` are the driver's
    calls outside any op.
    """

    start: int
    end: int
    calls: list[Call]
    events: int
    elsewhere: int  # events of ops on other threads: not on the critical path
    output: Any
    freed: int = 0  # bytes of large blocks given back after the last call
    between: list[Runtime] = field(default_factory=list)
    lost: float = 0.0  # seconds of device work that no call of the driver was found for
    others: dict[str, tuple[int, float]] = field(default_factory=dict)  # ops of other threads -> calls, seconds
    cut: bool = False  # a survey that ended before the program did
    compiled: tuple[CompiledGraph, ...] = ()  # the graphs that inductor made of it
    broken: tuple[tuple[str, str], ...] = ()  # where they broke
    recompiled: tuple[tuple[str, str, int, float], ...] = ()

    @property
    def device_seconds(self) -> float:
        """Seconds of device work, of several streams added."""
        runtime = [r for call in self.calls for r in call.runtime] + self.between
        return sum(work.seconds for r in runtime for work in r.works) + self.lost


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


def read_trace(
    events: Iterable[Any],
    places: list[Place],
    output: Any,
    inputs: dict[int, Inputs] | None,
    *,
    cut: bool = False,
    compiled: Sequence[CompiledGraph] = (),
) -> Trace:
    """The trace of one run from the profiler's events, or from recorded ones. ``inputs`` only of a survey, which may
    have been ``cut``: the run goes to its last event then. ``compiled`` are the graphs that inductor made of it."""
    events = list(events)
    run = event_of_run(events)
    if run is None:
        raise RuntimeError("torch's profiler recorded nothing: is another profiler running in this process?")
    start, end, thread = run.start_ns(), run.end_ns(), run.start_thread_id()
    if cut:
        end = max(event.end_ns() for event in events) + 1
    surveyed = inputs is not None
    flat: dict[int, list[Call]] = defaultdict(list)  # by thread
    told: dict[int, Any] = {}  # the profiler's own records of a survey, by ``id`` of the call
    frees: list[tuple[int, int]] = []
    device: list[Any] = []
    runtime: list[Any] = []
    for event in events:
        name, begun = event.name(), event.start_ns()
        if begun < start or (name == RUN_ANNOTATION):
            continue
        if name == MEMORY:
            if event.nbytes() <= -LARGE and not is_on_device(event) and begun < end:
                frees.append((begun, -event.nbytes()))
        elif is_on_device(event):
            if is_device_work(event):
                device.append(event)
        elif begun >= end:
            continue
        elif RUNTIME.match(name):
            runtime.append(event)
        else:
            scope, number = event.scope(), event.correlation_id()
            call = Call(name, begun, event.end_ns(), scope, correlation=number)
            if surveyed or scope == BACKWARD:
                call.sequence = event.sequence_nr()
            if surveyed:
                told[id(call)] = event
            flat[event.start_thread_id()].append(call)
    threads = [thread, *(t for t in flat if t != thread and _backward(flat[t]))]
    seen = [call for t in threads for call in flat[t]]
    seen.sort(key=lambda c: (c.start, -c.end))
    graphs: dict[int, Call] = {}
    calls = _outermost([root for t in threads for root in _nest(flat[t])], places, graphs)
    if inputs is not None:
        shared: dict[bytes, OpDetails] = {}
        for call in calls:
            for each in call.everything:
                each.overload, each.shapes, each.strides, each.dtypes, each.scalars = _told(told[id(each)], shared)
                _know(each, inputs)
                each.listed = each.listed or call.listed  # the tree may have been asked about the outermost op alone
        name_calls(calls, compiled)
    aside = [found for t, found in flat.items() if t not in threads]
    trace = Trace(start, end, calls, len(seen), sum(map(len, aside)), output, cut=cut)
    trace.compiled = tuple(graph for graph in compiled if graph.has_run(calls))
    for found in aside:
        for call in _outermost(_nest(found), places):
            count, seconds = trace.others.get(call.name, (0, 0.0))
            trace.others[call.name] = (count + 1, seconds + (call.end - call.start) / 1e9)
    _free(trace, sorted(frees))
    if device or runtime:
        _link(trace, device, runtime, graphs)
        _tell_apart(trace, compiled)
    return trace


def _know(call: Call, inputs: dict[int, Inputs]) -> None:
    its = inputs.get(call.correlation)
    if its is not None:
        call.pointers, call.listed, call.tensors, call.storage_bytes = (
            its.pointers,
            its.listed,
            its.tensors,
            its.storage_bytes,
        )
        call.shapes, call.strides, call.made = its.shapes or call.shapes, its.strides or call.strides, its.made


OpDetails = tuple[str, list[Any], list[Any], list[torch.dtype | None], list[Any]]


def _told(event: Any, shared: dict[bytes, OpDetails]) -> OpDetails:
    """What the profiler's record of an op says of its overload, shapes, strides, dtypes and scalars: the same lists for
    ops that are alike. It is read at once, since records that are held, some ten thousands, scatter malloc's free
    memory, and pybind11 has each in its table of objects: a compiled call then took 28 us instead of 25."""
    structured = hasattr(event, "structured_input_shapes")
    shapes = event.structured_input_shapes() if structured else []
    strides = event.structured_input_strides() if structured else []
    found = event.overload_name(), shapes, strides, event.dtypes(), event.concrete_inputs()
    try:
        key = marshal.dumps(found, 2)  # of this version equal values are equal bytes
    except ValueError:  # a scalar that is no plain value
        key = b""
    if key not in shared:
        made = (*found[:3], [DTYPES.get(name) for name in found[3]], found[4])
        if not key:
            return made
        shared[key] = made
    return shared[key]


def event_of_run(events: Iterable[Any]) -> Any:
    """The host's event that surrounds the run; None if there is none."""
    return next((e for e in events if e.name() == RUN_ANNOTATION and not is_on_device(e)), None)


def is_device_work(event: Any) -> bool:
    """Whether a device's event is a kernel or a copy: not what waits for them, nor a name that was given to some."""
    name = event.name()
    return not event.is_user_annotation() and name not in WAITS_OF_STREAMS and not name.startswith(PLACE)


def is_on_device(event: Any) -> bool:
    return str(event.device_type()).endswith("CUDA")


def _backward(calls: list[Call]) -> bool:
    """Whether a thread is autograd's: the program's thread waits while it works."""
    return any(call.scope == BACKWARD for call in calls)


def _link(trace: Trace, device: list[Any], runtime: list[Any], graphs: dict[int, Call]) -> None:
    """Puts the driver's calls to the ops that made them, and what the device did to the driver's calls. The launch of
    one of CUDA's graphs is a call of its own if what compiled it shows other calls (copies of its inputs, say)."""
    works: dict[int, list[DeviceWork]] = defaultdict(list)
    for event in sorted(device, key=lambda e: e.start_ns()):
        work = DeviceWork(event.name(), event.start_ns(), event.end_ns(), event.device_resource_id())
        works[event.correlation_id()].append(work)
    owners = {number: (call, at) for call in trace.calls for at, number in enumerate(call.correlations) if number}
    for event in sorted(runtime, key=lambda e: e.start_ns()):
        made = Runtime(event.name(), event.start_ns(), event.end_ns(), works.pop(event.correlation_id(), []))
        owner = owners.get(event.linked_correlation_id())
        if owner is not None:
            made.inner = owner[1]
            owner[0].runtime.append(made)
        elif GRAPH_LAUNCH in made.name and event.linked_correlation_id() in graphs:
            of = graphs[event.linked_correlation_id()]
            launch = Call(of.name, made.start, made.end, place=of.place, backward=of.backward, graph=of.graph)
            launch.runtime.append(made)
            trace.calls.append(launch)
        else:
            trace.between.append(made)
    trace.calls.sort(key=lambda call: call.start)
    trace.lost = sum(work.seconds for left in works.values() for work in left)


def _tell_apart(trace: Trace, compiled: Sequence[CompiledGraph]) -> None:
    """Says of the kernels of each graph of CUDA's for what they ran."""
    runs: dict[str, list[Call]] = defaultdict(list)
    for call in trace.calls:
        if call.graph and call.name.startswith(GRAPH_ANNOTATION):
            runs[call.graph].append(call)
    for graph, calls in runs.items():
        found = compiled_of(graph, calls, compiled)
        works = [work for call in calls for made in call.runtime if GRAPH_LAUNCH in made.name for work in made.works]
        if found is not None and works:
            assign_calls(works, found, graph, backward=calls[0].backward)


def _free(trace: Trace, frees: list[tuple[int, int]]) -> None:
    """Charges a large block given back between two calls to the later one. Inside a call it is that call's affair."""
    at = 0
    for call in trace.calls:
        while at < len(frees) and frees[at][0] < call.end:
            call.freed += frees[at][1] if frees[at][0] < call.start else 0
            at += 1
    trace.freed = sum(size for _, size in frees[at:])


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
    namespace, colons, _ = call.name.partition("::")
    return call.scope == FUNCTION and bool(colons) and namespace not in ("autograd", "torch") and "." not in namespace


def _outermost(roots: list[Call], places: list[Place], graphs: dict[int, Call] | None = None) -> list[Call]:
    """The outermost ops with their places; annotations and autograd's nodes are looked through. ``graphs`` is given the
    annotations of compiled graphs by their correlations.

    A backward op gets the place of the forward op with the same sequence number.
    """
    calls: list[Call] = []
    forward: dict[int, Place] = {}
    latest: dict[int, Call] = {}  # what is not recorded has the number of what is recorded next

    def visit(call: Call, place: Place, backward: Place | None, graph: str = "") -> None:
        if call.name.startswith(PLACE):
            place = places[int(call.name[len(PLACE) :])]
        elif call_name(call.name):
            call.name = call_name(call.name)
            call.place, call.backward = (backward, True) if backward else (place, False)
            if call.name == COMPILES:  # of which no two are alike
                call.children = []
            calls.append(call)
            _prune(call)
            return
        elif call.name.startswith(GRAPH_ANNOTATION):
            graph, before = f"{call.name} {call.start}", len(calls)
            call.place, call.backward, call.graph = (backward, True, graph) if backward else (place, False, graph)
            if graphs is not None:
                graphs[call.correlation] = call
            for child in call.children:
                visit(child, place, backward, graph)
            if len(calls) > before:
                return
            calls.append(call)  # a graph that shows none of its ops: one of CUDA's, or run by a wrapper in C++
            return
        elif call.scope == BACKWARD and call.sequence >= 0:
            known = forward.get(call.sequence)
            if call.sequence in latest:
                latest[call.sequence].recorded = True
            backward = replace(known, faults=0) if known else backward or Place()
        elif _is_op(call):
            call.place, call.backward = (backward, True) if backward else (place, False)
            call.graph = graph
            calls.append(call)
            for number in _sequences(call) if not backward else ():
                forward.setdefault(number, place)
                latest[number] = call
            _prune(call)
            return
        for child in call.children:
            visit(child, place, backward, graph)

    for root in roots:
        visit(root, Place(), None)
    return sorted(calls, key=lambda c: c.start)


PLACE = "kernelworks place "  # A survey puts this annotation round each call; its number follows.


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

    A timed call that the survey never saw keeps empty shapes: it ends up unmodelled, never dropped. If the program
    made more calls of a name than the survey saw, the last stands for the rest; if the survey was cut, all of them
    in turn do, as in a loop.
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
        if survey.cut or not queue:
            queue.append(known)
        joined.append(_dressed(call, known))
    return joined


def _dressed(timed: Call, known: Call) -> Call:
    return replace(known, start=timed.start, end=timed.end, runtime=timed.runtime, like=id(known))
