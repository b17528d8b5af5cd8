"""What the program's ops were and how long each took: torch's profiler, made into a tree of calls.

Two kinds of pass see the same calls in the same order. The timing pass records names and times only (about half a
microsecond an event); the survey pass records shapes, strides, dtypes and scalars, the place in the program
(``places``) and page faults, and its times are thrown away. ``join`` puts the two together.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.autograd import profiler as autograd_profiler
from torch.autograd.profiler import profile, record_function

from kernelworks.observe.inputs import Inputs, below, inputs_of

__all__ = [
    "COMPILED",
    "Call",
    "DeviceWork",
    "Place",
    "Runtime",
    "Trace",
    "join",
    "read",
    "record",
    "without_collection",
]

OWN_PROFILER = "the program starts torch's profiler itself, which ends ours: take it out to diagnose the program"
RUN = "kernelworks run"  # the annotation around one run of the program
COMPILED = "## Call CompiledFxGraph"  # the annotation around a graph that torch.compile made
MEMORY = "[memory]"
LARGE = 128 * 1024  # bytes; malloc gives smaller blocks back to itself, not to the system
FUNCTION, BACKWARD = 0, 1  # at::RecordScope
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


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the program a call was made."""

    module: str = ""  # dotted path of the innermost module, list indices as "*"
    source: str = ""  # "file.py:123", the innermost line outside torch
    faults: int = 0  # minor page faults during the call
    path: str = ""  # the dotted path with its indices
    words: tuple[tuple[str, str], ...] = ()  # strings that an op of ours was given, which the profiler does not record


@dataclass(slots=True)
class Call:
    """One op with the ops that it called. Times in ns; shapes and the like only from a survey pass.

    After ``load``, ``shapes`` and ``strides`` hold a list of sizes per argument, a list of lists for a list of tensors,
    and [] for anything else; ``dtypes`` a torch dtype per tensor argument, else None; ``scalars`` the numbers and lists
    of numbers. The profiler's tree tells the rest (``inputs``): ``pointers`` a storage address per tensor argument,
    ``tensors`` which tensor it is, ``rooms`` the bytes of its storage; ``listed`` the dtype of the tensors in lists;
    ``made`` address and bytes of each storage that the call allocated and left behind.
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
    listed: torch.dtype | None = None
    tensors: list[Any] = field(default_factory=list)
    rooms: list[Any] = field(default_factory=list)
    made: tuple[tuple[int, int], ...] = ()
    items: list[Any] | None = None  # what ``work.Arguments`` has made of them
    node: Any = None  # an outermost op's place in the profiler's tree, until the ops below it are asked for
    children: list[Call] = field(default_factory=list)
    place: Place = Place()
    backward: bool = False
    recorded: bool = False  # a backward of it ran
    freed: int = 0  # bytes of large blocks given back since the call before
    correlation: int = 0  # by which what the device did for the call names it
    runtime: list[Runtime] = field(default_factory=list)  # calls of the device's driver made in it or below
    event: Any = None  # the profiler's own record, until it is loaded
    like: int = 0  # the same number for calls that have their shapes of one call of the survey

    def load(self) -> Call:
        """Reads shapes and the like from the profiler's record. Cost: tens of us once, so it waits."""
        if self.event is not None:
            event, self.event = self.event, None
            self.overload = event.overload_name()
            if not self.shapes and hasattr(event, "structured_input_shapes"):
                self.shapes = event.structured_input_shapes()
                self.strides = event.structured_input_strides()
            self.dtypes = [DTYPES.get(d) for d in event.dtypes()]
            self.scalars = event.concrete_inputs()
        return self

    def look_below(self) -> None:
        """Reads which tensors the ops below were given. Only what is counted by its parts needs it."""
        if self.node is not None:
            inputs, self.node = below(self.node), None
            for call in self.everything:
                its = inputs.get(call.correlation)
                if its is not None:
                    call.pointers, call.tensors, call.listed = its.pointers, its.tensors, its.listed or call.listed
                    call.made, call.items = its.made, None

    @property
    def events(self) -> int:
        """How many events the profiler recorded for this call, itself included."""
        return 1 + sum(child.events for child in self.children)

    @property
    def everything(self) -> Iterator[Call]:
        """The call and all below it, in the order in which they start."""
        yield self
        for child in self.children:
            yield from child.everything

    @property
    def correlations(self) -> list[int]:
        return [call.correlation for call in self.everything]

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the call and of those under it: what two passes are matched by."""
        return (self.name, *(name for child in self.children for name in child.key))


@dataclass(slots=True)
class DeviceWork:
    """A kernel, copy or fill that a GPU did. Times in ns, on the host's clock."""

    name: str
    start: int
    end: int
    stream: int

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / 1e9


@dataclass(slots=True)
class Runtime:
    """A call of the GPU's driver or runtime (``cudaLaunchKernel``), with what the device did for it.

    ``inner`` is the place of the innermost op that made it among the outermost op and all below it, in the order in
    which they start (the outermost is 0).
    """

    name: str
    start: int
    end: int
    works: list[DeviceWork] = field(default_factory=list)
    inner: int = 0


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

    @property
    def device_seconds(self) -> float:
        """Seconds of device work, of several streams added."""
        runtime = [r for call in self.calls for r in call.runtime] + self.between
        return sum(work.seconds for r in runtime for work in r.works) + self.lost


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


def record(
    run: Callable[[], Any],
    *,
    survey: Any = None,
    gpu: bool = False,
    raw: Callable[[Any, list[Place]], None] | None = None,
    every_thread: bool = False,
) -> Trace:
    """Runs the program once under the profiler. With ``survey`` (a ``places.Survey``) shapes and places are recorded,
    with ``gpu`` what the device did too; the program is then to wait for the device before it returns. ``raw`` is
    given the profiler's own results and the places. Ops that the program's other threads run are seen with
    ``every_thread`` alone. A survey that has seen enough ends the profiler before the program ends.

    Raises what the program raises.
    """
    survey_too = survey is not None
    profiler = profile(
        use_cpu=True,
        use_device="cuda" if gpu else None,
        use_kineto=gpu,  # else the device is timed by events, not traced
        record_shapes=survey_too,
        profile_memory=survey_too,
        experimental_config=_ExperimentalConfig(capture_overload_names=survey_too, profile_all_threads=every_thread),
    )
    places: list[Place] = []
    with contextlib.ExitStack() as whole:
        if survey is not None:
            whole.enter_context(_quiet())  # the memory profiler warns of every block that is older than it
        with _quiet():
            profiler.__enter__()
        ended = False

        def end() -> None:
            nonlocal ended
            if not ended:
                ended = True
                with _quiet():
                    profiler.__exit__(None, None, None)

        if survey is not None:
            survey.full = end
        try:
            with survey or contextlib.nullcontext(places) as places, record_function(RUN):
                output = run()
                if not (ended or autograd_profiler._is_profiler_enabled):
                    raise RuntimeError(OWN_PROFILER)
        except RuntimeError as error:
            if "rofiler is already enabled" in str(error):
                raise RuntimeError(OWN_PROFILER) from error
            raise
        finally:
            end()
    results: Any = profiler.kineto_results
    if raw is not None:
        raw(results, places)
    with without_collection():
        cut = survey is not None and survey.cut
        return read(results.events(), places, output, inputs_of(results) if survey_too else None, cut=cut)


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


def read(
    events: Iterable[Any], places: list[Place], output: Any, inputs: dict[int, Inputs] | None, *, cut: bool = False
) -> Trace:
    """The trace of one run from the profiler's events, or from recorded ones. ``inputs`` only of a survey, which may
    have been ``cut``: the run goes to its last event then."""
    events = list(events)
    run = next((e for e in events if e.name() == RUN and not _on_device(e)), None)
    if run is None:
        raise RuntimeError("torch's profiler recorded nothing: is another profiler running in this process?")
    start, end, thread = run.start_ns(), run.end_ns(), run.start_thread_id()
    if cut:
        end = max(event.end_ns() for event in events) + 1
    surveyed = inputs is not None
    flat: dict[int, list[Call]] = defaultdict(list)  # by thread
    frees: list[tuple[int, int]] = []
    device: list[Any] = []
    runtime: list[Any] = []
    for event in events:
        name, begun = event.name(), event.start_ns()
        if begun < start or (name == RUN):
            continue
        if name == MEMORY:
            if event.nbytes() <= -LARGE and not _on_device(event) and begun < end:
                frees.append((begun, -event.nbytes()))
        elif _on_device(event):
            if not event.is_user_annotation() and name not in WAITS_OF_STREAMS and not name.startswith(PLACE):
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
            call.event = event if surveyed else None
            flat[event.start_thread_id()].append(call)
    threads = [thread, *(t for t in flat if t != thread and _backward(flat[t]))]
    seen = [call for t in threads for call in flat[t]]
    seen.sort(key=lambda c: (c.start, -c.end))
    calls = _outermost([root for t in threads for root in _nest(flat[t])], places)
    if inputs is not None:
        for call in calls:
            for each in call.everything:
                _know(each, inputs)
                each.listed = each.listed or call.listed  # the tree may have been asked about the outermost op alone
    aside = [found for t, found in flat.items() if t not in threads]
    trace = Trace(start, end, calls, len(seen), sum(map(len, aside)), output, cut=cut)
    for found in aside:
        for call in _outermost(_nest(found), places):
            count, seconds = trace.others.get(call.name, (0, 0.0))
            trace.others[call.name] = (count + 1, seconds + (call.end - call.start) / 1e9)
    _free(trace, sorted(frees))
    if device or runtime:
        _link(trace, device, runtime)
    return trace


def _know(call: Call, inputs: dict[int, Inputs]) -> None:
    its = inputs.get(call.correlation)
    if its is not None:
        call.pointers, call.shapes, call.strides, call.listed = its.pointers, its.shapes, its.strides, its.listed
        call.tensors, call.rooms, call.made, call.node = its.tensors, its.rooms, its.made, its.node


def _on_device(event: Any) -> bool:
    return str(event.device_type()).endswith("CUDA")


def _backward(calls: list[Call]) -> bool:
    """Whether a thread is autograd's: the program's thread waits while it works."""
    return any(call.scope == BACKWARD for call in calls)


def _link(trace: Trace, device: list[Any], runtime: list[Any]) -> None:
    """Puts the driver's calls to the ops that made them, and what the device did to the driver's calls."""
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
        else:
            trace.between.append(made)
    trace.lost = sum(work.seconds for left in works.values() for work in left)


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
    if call.name.startswith(COMPILED):
        return True
    return call.scope == FUNCTION and "::" in call.name and not call.name.startswith(("autograd::", "torch::"))


def _outermost(roots: list[Call], places: list[Place]) -> list[Call]:
    """The outermost ops with their places; annotations and autograd's nodes are looked through.

    A backward op gets the place of the forward op with the same sequence number.
    """
    calls: list[Call] = []
    forward: dict[int, Place] = {}
    latest: dict[int, Call] = {}  # what is not recorded has the number of what is recorded next

    def visit(call: Call, place: Place, backward: Place | None) -> None:
        if call.name.startswith(PLACE):
            place = places[int(call.name[len(PLACE) :])]
        elif call.scope == BACKWARD and call.sequence >= 0:
            known = forward.get(call.sequence)
            if call.sequence in latest:
                latest[call.sequence].recorded = True
            backward = replace(known, faults=0) if known else backward or Place()
        elif _is_op(call):
            call.place, call.backward = (backward, True) if backward else (place, False)
            calls.append(call)
            for number in _sequences(call) if not backward else ():
                forward.setdefault(number, place)
                latest[number] = call
            _prune(call)
            return
        for child in call.children:
            visit(child, place, backward)

    for root in roots:
        visit(root, Place(), None)
    return sorted(calls, key=lambda c: c.start)


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

    A timed call that the survey never saw keeps empty shapes: it ends up unmodelled, never dropped. Where the program
    made more calls of a name than the survey saw, the last stands for the rest; where the survey was cut, all of them
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
    return replace(known.load(), start=timed.start, end=timed.end, runtime=timed.runtime, like=id(known))
