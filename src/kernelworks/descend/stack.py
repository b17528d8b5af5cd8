"""Runs a program, and follows its time from the module down to the loop of machine code."""

from __future__ import annotations

import bisect
import linecache
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kernelworks.descend.counters import PERIOD_US, Samples, sample_run
from kernelworks.descend.loop_sentences import explain_loop
from kernelworks.descend.machine_code import count_instructions, disassemble, hot_loop
from kernelworks.descend.symbols import CodeLocation, Mappings, demangle_names
from kernelworks.dispatch.choose import choose
from kernelworks.dispatch.op import OPS
from kernelworks.machine import machine
from kernelworks.measure.peaks import cached_peaks
from kernelworks.measure.roofline.bound import applicable_bound, bottleneck_of, bound
from kernelworks.profile.calls import Call
from kernelworks.profile.cost import Work
from kernelworks.profile.cost.calls import op_request, work
from kernelworks.profile.cost.operands import Arguments
from kernelworks.profile.on_gpu import uses_gpu
from kernelworks.profile.program import Program
from kernelworks.profile.recording import record
from kernelworks.profile.timeline import survey_run
from kernelworks.profile.trace import Trace, join
from kernelworks.records.descent import Descent, FunctionTime, HotLoop, OperatorTime

__all__ = ["OnGpu", "descend"]

SAMPLES = 2000  # in all, after which no other run begins
MOST_S, MOST_RUNS = 8.0, 200  # by default; runs, however short they are
MOST_CALLS = 20_000.0  # that the survey looks at
MOST_SHOWN = 5  # operators, if none is asked for
FUNCTIONS = 3  # of an operator
LEAST_SHARE = 0.05  # of an operator's samples: functions with less are left out
LEAST_SAMPLES = 8  # of a function, for its loop to be told
BARRIERS = ("libgomp", "libiomp", "libomp")
VECTOR_BITS = {"avx512f": 512, "avx2": 256}
PACKAGE = Path(__file__).resolve().parents[1]


class OnGpu(ValueError):
    """The program's time is the GPU's; program counters of the CPU say nothing of its kernels."""


@dataclass
class _Group:
    """Calls of one operator from one place, with one set of shapes."""

    typical: Call
    calls: int = 0
    nanoseconds: int = 0
    addresses: list[int] = field(default_factory=list)


def descend(
    program: Program, *, op: str = "", most: int = MOST_SHOWN, seconds: float = MOST_S,
    say: Callable[[str], None] = lambda line: None,
) -> Descent:  # fmt: skip
    """The ``most`` operators with the most time, or all whose name has ``op`` in it, each down to its hot loop.

    The program runs twice to warm up, once to survey shapes and places, and under the profiler until there are 2,000
    samples, for so many seconds at the most. Raises what the program raises, OnGpu, BuildError without a C++ compiler,
    and LookupError if no operator's name has ``op`` in it.
    """
    say("warming up: the program's first run")
    program.run()
    program.run()
    if uses_gpu(program.run):
        raise OnGpu("the program runs on a GPU: `kernelworks diagnose` has its kernels")
    say("surveying shapes and places: one run")
    survey, _ = survey_run(program.run, MOST_CALLS)
    traces, samples = _sampled(program.run, seconds, say)
    groups = _grouped(traces, samples, survey)
    whole = sum(trace.end - trace.start for trace in traces)
    named = {key: group for key, group in groups.items() if op.lower() in key[0].lower()}
    if not named:
        seen = ", ".join(sorted({key[0].removeprefix("aten::") for key in groups})[:20])
        raise LookupError(f"no operator that the program calls has {op!r} in its name; it calls {seen}")
    order = sorted(named.values(), key=lambda group: -group.nanoseconds)[:most]
    say("reading the machine code of its functions")
    mappings = Mappings()
    found = [_operator(group, len(traces), whole, mappings) for group in order]
    lost = sum(one.lost for one in samples)
    return Descent(
        program=program.name, machine=machine().name, wall_s=whole / len(traces) / 1e9, runs=len(traces),
        samples=sum(len(one.at) for one in samples), period_ms=_period_ms(samples), operators=tuple(found),
        whole=len(groups), notes=tuple(_notes(lost)),
    )  # fmt: skip


def _notes(lost: int) -> Iterable[str]:
    if lost:
        yield f"{lost} samples found no room"
    if platform.machine() != "x86_64":
        yield f"instructions are counted on x86-64 alone, not on {platform.machine()}"


def _sampled(run: Callable[[], Any], seconds: float, say: Callable[[str], None]) -> tuple[list[Trace], list[Samples]]:
    traces: list[Trace] = []
    samples: list[Samples] = []
    begin = time.perf_counter()
    while not traces or (
        sum(len(one.at) for one in samples) < SAMPLES
        and time.perf_counter() - begin < seconds
        and len(traces) < MOST_RUNS
    ):
        say(f"sampling program counters, run {len(traces) + 1}")
        taken: list[Samples] = []
        trace = record(lambda taken=taken: taken.append(sample_run(run)))  # type: ignore[misc]
        trace.output = None
        traces.append(trace)
        samples += taken
    return traces, samples


def _grouped(traces: Sequence[Trace], samples: Sequence[Samples], survey: Trace) -> dict[tuple[str, ...], _Group]:
    groups: dict[tuple[str, ...], _Group] = {}
    for trace, taken in zip(traces, samples, strict=True):
        calls = sorted(join(trace, survey), key=lambda call: call.start)
        its = []
        for call in calls:
            key = (call.name, call.place.module, call.place.source, _shapes(call))
            group = groups.setdefault(key, _Group(call))
            group.calls += 1
            group.nanoseconds += call.end - call.start
            its.append(group)
        starts = [call.start for call in calls]
        shift = _profiler_shift(trace, taken)
        for at, address in zip(taken.at.tolist(), taken.addresses.tolist(), strict=True):
            place = bisect.bisect_right(starts, at + shift) - 1
            if place >= 0 and at + shift < calls[place].end:
                its[place].addresses.append(address)
    return groups


def _profiler_shift(trace: Trace, taken: Samples) -> int:
    """From the samples' clock to the profiler's: both saw the middle of the run."""
    return (trace.start + trace.end) // 2 - (taken.begun + taken.ended) // 2


def _period_ms(samples: Sequence[Samples]) -> float:
    """Of CPU time; the kernel's tick may make it longer than what was asked for."""
    count = sum(len(one.at) for one in samples)
    return PERIOD_US / 1e3 if not count else max(PERIOD_US / 1e3, _spacing_ms(samples))


def _spacing_ms(samples: Sequence[Samples]) -> float:
    gaps = sorted(int(b - a) for one in samples for a, b in zip(one.at.tolist(), one.at.tolist()[1:], strict=False))
    return gaps[len(gaps) // 2] / 1e6 if gaps else 0.0


def _shapes(call: Call) -> str:
    """``[2048, 512] [512, 512] float32``"""
    try:
        operands = Arguments(call).all_operands
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return ""
    dtypes = list(dict.fromkeys(str(o.dtype).removeprefix("torch.") for o in operands))
    return " ".join([*(str(list(o.shape)) for o in operands), *dtypes])


# ---------------------------------------------------------------- one operator


def _operator(group: _Group, runs: int, whole_ns: int, mappings: Mappings) -> OperatorTime:
    call = group.typical
    seconds = group.nanoseconds / runs / 1e9
    kernel, because, declined, source = _dispatched(call)
    cost = work(call)
    calls = max(1, round(group.calls / runs))
    limit, bottleneck, peak = _roofline(cost, seconds / calls, calls)
    return OperatorTime(
        operator=call.display_name if call.kernel is not None else call.name, module=call.place.module,
        source=call.place.source, code=_line(call), shapes=_shapes(call), calls=calls, seconds=seconds,
        share=group.nanoseconds / whole_ns, op=_same_op(call.name),
        capability=torch.backends.cpu.get_cpu_capability(), kernel=kernel, because=because,
        declined=declined, kernel_source=source,
        flop=None if cost is None else cost.flop * calls,
        bytes=None if cost is None else (cost.read + cost.written) * calls,
        bound_s=limit, bottleneck=bottleneck, peak=peak, samples=len(group.addresses),
        functions=_functions(group.addresses, mappings),
    )  # fmt: skip


def _line(call: Call) -> str:
    number = call.place.source.rpartition(":")[2]
    return linecache.getline(call.place.file, int(number)).strip() if number.isdecimal() and call.place.file else ""


def _same_op(operator: str) -> str:
    """The op of kernelworks that has an operator's name; torch names the kernels behind a function ``_softmax`` or
    ``native_layer_norm``."""
    plain = operator.removeprefix("aten::").removeprefix("inductor: ").removesuffix("_backward")
    names = (plain, plain.removeprefix("_"), plain.removeprefix("native_"))
    return next((name for name in names if name in OPS), "")


def _dispatched(call: Call) -> tuple[str, str, tuple[tuple[str, str], ...], str]:
    """The kernel that kernelworks' dispatcher takes for such a call, why, and why not those above it."""
    found = op_request(call)
    if found is None:
        return "", "", (), ""
    op, request = found
    choice = choose(op, request, None)
    source = choice.kernel.source
    shown = source.relative_to(PACKAGE).as_posix() if source is not None and PACKAGE in source.parents else ""
    return choice.way, choice.because, choice.declined, shown


def _roofline(cost: Work | None, seconds: float, calls: int) -> tuple[float | None, str, str]:
    known = cached_peaks("cpu")
    if cost is None or known is None:
        return None, "", ""
    moved = cost.read + cost.written
    far, near = (
        bound(
            cost.flop, cost.transcendental, moved, footprint, cost.dtype, torch.get_num_threads(), known,
            written_bytes=cost.written, function=cost.function,
        )
        for footprint in (float("inf"), 0.0)
    )  # fmt: skip
    limit = applicable_bound(far, near, seconds)
    return limit.seconds * calls, bottleneck_of(limit, seconds), limit.peak


def _functions(addresses: Sequence[int], mappings: Mappings) -> tuple[FunctionTime, ...]:
    places: dict[tuple[str, str, int], CodeLocation] = {}
    hits: dict[tuple[str, str, int], Counter[int]] = {}
    for address in addresses:
        place = mappings.locate(address)
        key = (place.file, place.function, place.begin)
        places[key] = place
        hits.setdefault(key, Counter())[place.address] += 1
    order = sorted(hits, key=lambda key: -hits[key].total())[:FUNCTIONS]
    order = [key for key in order if hits[key].total() >= LEAST_SHARE * len(addresses)]
    names = demangle_names([places[key].function for key in order])
    return tuple(
        _function(name, places[key], hits[key], len(addresses)) for name, key in zip(names, order, strict=True)
    )


def _function(name: str, place: CodeLocation, hits: Counter[int], samples: int) -> FunctionTime:
    file = Path(place.file).name if place.file.startswith("/") else ""
    waits = file.startswith(BARRIERS)
    loop = None
    if not waits and hits.total() >= LEAST_SAMPLES and platform.machine() == "x86_64":
        found = hot_loop(disassemble(place), hits)
        if found is not None:
            counts = count_instructions(found.body)
            loop = HotLoop(
                share=found.share, counts=counts, lines=tuple((one.text, hits[one.address]) for one in found.body),
                explained=explain_loop(counts, widest_bits=_widest_bits()),
            )  # fmt: skip
    return FunctionTime(name=name, file=file, share=hits.total() / samples, waits=waits, loop=loop)


def _widest_bits() -> int:
    return max((bits for name, bits in VECTOR_BITS.items() if name in machine().features), default=128)
