"""A GPU under diagnosis: what the parts of a wall clock on it are called, and what its account and its forecasts ask.

The parts beside everyone's (``account``), in the order of the time breakdown:

- **traffic that fusion would remove**: the share of the time at peak that writes a tensor and reads it again in the
  very next kernel, if neither kernel is a product;
- **launch**: what a kernel takes to start and end (all of it if the kernel does less work than that), and gaps from
  a launch to its start;
- **Python and framework (host)**: gaps in which the host ran Python or torch's dispatch;
- **synchronisation**: gaps after the device had done all it was given, until the host that waited for it went on;
- **allocation (cudaMalloc)**: gaps in which the host asked the driver for memory or gave it back;
- **kernels of its own**: kernels that no op of torch's launched, and the program's own operators': not modelled;
- **input (DataLoader)**, **communication**, **compiling (torch.compile)**: what torch says is that (``apart``).
"""

from __future__ import annotations

import dataclasses
import gc
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from kernelworks.diagnose.account.account import (
    COMPUTE,
    FUSION,
    MEMORY,
    UNEXPLAINED,
    UNKNOWN_BOUND,
    USEFUL,
    WITHOUT_PEAKS,
)
from kernelworks.diagnose.forecast.device import REACHED_SHARE, Device
from kernelworks.diagnose.forecast.isolated_costs import IsolatedCosts
from kernelworks.diagnose.forecast.isolated_on_gpu import Words, time_isolated
from kernelworks.diagnose.forecast.races import Races
from kernelworks.dispatch.choose import choose
from kernelworks.measure.roofline.bound import Bound, applicable_bound, bound
from kernelworks.measure.roofline.kernel_time import estimate_kernel_time
from kernelworks.profile import on_gpu, replay
from kernelworks.profile.cost import Work
from kernelworks.profile.cost.calls import ARGUMENT_ERRORS, op_and_pass, op_request, work
from kernelworks.profile.cost.operands import Arguments, Operand
from kernelworks.profile.non_compute import COMMUNICATION, COMPILING, CUSTOM_KERNELS, INPUT
from kernelworks.profile.on_gpu import GpuTimeline
from kernelworks.profile.replay import ALLOCATION, DISPATCH, LAUNCH, PYTHON, SYNC, short
from kernelworks.profile.timeline import CallRun, Cost, Timeline
from kernelworks.profile.trace import Call
from kernelworks.records import GpuPeaks, GpuTime, KernelTime

__all__ = ["HOST", "PARTS", "SYNCHRONISATION", "Gpu", "innermost", "is_product", "kernels"]

LAUNCHES, HOST = "launch", "Python and framework (host)"
SYNCHRONISATION, CUDA_MALLOC = "synchronisation", "allocation (cudaMalloc)"
PARTS = (
    USEFUL, FUSION, MEMORY, COMPUTE, WITHOUT_PEAKS, LAUNCHES, HOST, SYNCHRONISATION, CUDA_MALLOC, CUSTOM_KERNELS, INPUT,
    COMMUNICATION, COMPILING, UNEXPLAINED,
)  # fmt: skip

GAPS = {
    PYTHON: ("python", HOST, "host"), DISPATCH: ("torch's dispatch", HOST, "host"),
    LAUNCH: ("launch latency", LAUNCHES, "launch"), SYNC: ("synchronisation", SYNCHRONISATION, "synchronisation"),
    ALLOCATION: ("cudaMalloc", CUDA_MALLOC, "allocation"), INPUT: (INPUT, INPUT, "input"),
    COMMUNICATION: (COMMUNICATION, COMMUNICATION, "communication"), COMPILING: (COMPILING, COMPILING, "compiling"),
}  # fmt: skip
MOST_KERNELS = 200
NOTABLE = 0.02  # a finding takes at least this share of the wall clock

MATRIX = frozenset({
    "linear", "mm", "bmm", "addmm", "baddbmm", "matmul", "mv", "addmv", "dot", "convolution", "convolution_backward",
    "conv1d", "conv2d", "scaled_dot_product_attention", "_addmm_activation",
})  # fmt: skip


TEMPLATES = ("triton_tem_", "triton_mm_")  # inductor's own products begin so


@dataclass(frozen=True)
class Gpu(Device):
    """One GPU, and the host that gives it work."""

    peaks: GpuPeaks

    parts: ClassVar[tuple[str, ...]] = PARTS
    overhead: ClassVar[str] = LAUNCHES
    gaps: ClassVar[Mapping[str, tuple[str, str, str]]] = GAPS
    most_rounds: ClassVar[int] = 15
    fixing: ClassVar[float] = 1.0
    unseen: ClassVar[frozenset[str]] = frozenset({INPUT, COMMUNICATION, COMPILING})

    @property
    def told_parts(self) -> tuple[str, ...]:
        """Without measured peaks there is no part above or below them: what is unknown is not 0."""
        absent = (USEFUL, FUSION, MEMORY, COMPUTE) if self.peaks.unknown else (WITHOUT_PEAKS,)
        return tuple(part for part in self.parts if part not in absent)

    @property
    def cache_bytes(self) -> int:
        return self.peaks.l2_bytes

    @property
    def floor(self) -> float:
        return self.peaks.launch_us * 1e-6

    def unit(self, its: Work) -> Work:
        return _unit(its)

    def limit(self, ran: CallRun, its: Work, far: float) -> Bound | None:
        return None if self.peaks.unknown else _limit(ran, its, far, self.peaks)

    def bare(self, ran: CallRun) -> str:
        """Reading a number takes a copy to the host, which waits for it: that is synchronisation, else a launch."""
        return SYNCHRONISATION if any("DtoH" in job.name for job in ran.jobs) else LAUNCHES

    def overheads(self, ran: CallRun, its: Work) -> Iterable[tuple[str, float]]:
        yield LAUNCHES, len(ran.jobs) * self.floor

    def fusible_shares(self, calls: Sequence[Call], works: Sequence[Work | None]) -> Sequence[float]:
        return _fusible(calls, works)

    def observe(self, run: Callable[[], Any], budget_s: float, say: Callable[[str], None], **more: Any) -> Timeline:
        return on_gpu.observe(run, self.floors, budget_s=budget_s, say=say)

    def races(self, budget_s: float, say: Callable[[str], None] | None) -> Races:
        """None: what was timed before is known."""
        return Races(0.0, torch.get_num_threads(), "cuda", self.peaks.kind)

    def device_findings(self, timeline: Timeline) -> tuple[GpuTime | None, tuple[str, ...]]:
        assert isinstance(timeline, GpuTimeline)
        times = _times(timeline, self.peaks)
        return times, _findings(timeline, times)

    def with_sync(self, run: Callable[[], Any]) -> Callable[[], Any]:
        return on_gpu.waiting(run)

    def peak_bytes(self, run: Callable[[], Any]) -> int | None:
        torch.cuda.reset_peak_memory_stats()
        run()
        return torch.cuda.max_memory_allocated()

    def capture(self, persistent: Mapping[int, int], budget_s: float) -> Words:
        return Words()

    def isolated_costs(self, calls: Sequence[Call], capture: Any, budget_s: float) -> IsolatedCosts:
        return time_isolated(calls, capture, self.peaks.l2_bytes, budget_s)

    def at_its_bound(self, call: Call, host: float) -> Cost:
        """One kernel; none for a call that moves no data. A call of ours takes what the model of its kernel says.
        Without measured peaks a call takes as long as it does today."""
        if self.peaks.unknown:
            return Cost(host, (max(0.0, (call.end - call.start) / 1e9),))
        ours = _expected(call, self.peaks)
        if ours is not None:
            return Cost(host, (ours,))
        its = work(call)
        if its is None:
            return Cost(host, (self.floor,))
        if its.read + its.written == 0:
            return Cost(host)
        least = bound(
            its.flop, its.transcendental, its.read + its.written, math.inf, its.dtype, 1, self.peaks,
            written_bytes=its.written, function=its.function,
        )  # fmt: skip
        return Cost(host, (least.seconds / REACHED_SHARE,))

    def give_back(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()


# ---------------------------------------------------------------- the bound


def _unit(its: Work) -> Work:
    """float32 products run on the tf32 unit if torch allows it."""
    if its.dtype == "float32" and its.flop and torch.backends.cuda.matmul.allow_tf32:
        return dataclasses.replace(its, dtype="tf32")
    return its


def _expected(call: Call, peaks: GpuPeaks) -> float | None:
    """Seconds that a call of ours takes in the middle of a program; None if torch's own function would run."""
    found = op_request(call, "cuda")
    if found is None:
        return None
    op, request = found
    try:
        op_kernel = choose(op, request, dict(call.place.words).get("op_kernel")).kernel
        return (
            None
            if op_kernel.source is None
            else estimate_kernel_time(op, request, op_kernel.name, peaks, alone=False).seconds
        )
    except ARGUMENT_ERRORS:  # arguments that were not recorded, which the kernel or its cost depends on
        return None


def _limit(ran: CallRun, its: Work, far: float, peaks: GpuPeaks) -> Bound:
    """T_min with ``far`` of the bytes from device memory, or from L2 alone if it was faster than that."""
    if its.read + its.written == 0 and its.flop == 0:
        return bound(0.0, 0.0, 0.0, 0.0, "float32", 1, peaks, launches=len(ran.jobs))
    total = its.read + its.written
    wide = 1.0 if total > 2 * peaks.l2_bytes else far
    footprints = (peaks.l2_bytes * (1 + wide), 0.0)
    distant, near = (
        bound(
            its.flop, its.transcendental, total, footprint, its.dtype, 1, peaks,
            written_bytes=its.written, function=its.function,
        )
        for footprint in footprints
    )  # fmt: skip
    return applicable_bound(distant, near, ran.seconds)


# ---------------------------------------------------------------- fusion


def _fusible(calls: Sequence[Call], works: Sequence[Work | None]) -> list[float]:
    """The share of each call's bytes that it writes only for the next kernel to read, or reads from the one before."""
    shares = [0.0] * len(calls)
    for i in range(1, len(calls)):
        before, after = works[i - 1], works[i]
        if before is None or after is None or is_product(calls[i - 1].name) or is_product(calls[i].name):
            continue
        passed = _passed(calls[i], before)
        for at, its in ((i - 1, before), (i, after)):
            total = its.read + its.written
            shares[at] = min(1.0, shares[at] + (passed / total if total else 0.0))
    return shares


def _passed(call: Call, before: Work) -> float:
    """Bytes of the operand that is as large as what the kernel before wrote."""
    sizes = []
    for item in Arguments(call).items:
        sizes += [o.bytes for o in (item if isinstance(item, list) else [item]) if isinstance(o, Operand)]
    return before.written if before.written in sizes else 0.0


def is_product(name: str) -> bool:
    """Whether an operator does its arithmetic by products of matrices."""
    ours = op_and_pass(name)
    if ours is not None:
        return ours[0].contract.arithmetic == "products"
    plain = name.rpartition("::")[2].removesuffix("_")
    return plain in MATRIX or "_attention" in plain or plain.startswith(TEMPLATES)


# ---------------------------------------------------------------- kernels


def kernels(timeline: GpuTimeline, peaks: GpuPeaks) -> list[KernelTime]:
    """Every kind of kernel with the innermost op that launched it, longest first.

    An op that launched several kernels shares its bound out by their time, since its formula knows only their sum.
    """
    runs: dict[tuple[int, int], list[replay.Span]] = {}
    for span in timeline.played.spans:
        key = (id(span.job.call), span.job.inner)
        runs.setdefault(key, []).append(span)
    total: dict[tuple[str, str], KernelTime] = {}
    for spans in runs.values():
        op, its = innermost(spans[0].job)
        seconds = sum(s.end - s.start for s in spans)
        limit = None
        if its is not None:
            its = _unit(its)
            one = CallRun(spans[0].job.call or Call("", 0, 0), seconds=seconds, jobs=[s.job for s in spans])
            limit = None if peaks.unknown else _limit(one, its, 1.0, peaks)
        for span in spans:
            took = span.end - span.start
            share = took / seconds if seconds else 0.0
            least = min(limit.seconds * share, took) if limit else 0.0
            name = short(span.job.name)
            known = total.get((name, op)) or KernelTime(name, op, 0, 0.0, 0.0, "", 0.0, 0.0)
            total[name, op] = dataclasses.replace(
                known,
                runs=known.runs + 1,
                seconds=known.seconds + took,
                bound_s=known.bound_s + least,
                bottleneck=limit.bottleneck if limit else "unmodelled" if its is None else UNKNOWN_BOUND,
                flop=known.flop + (its.flop * share if its else 0.0),
                bytes=known.bytes + ((its.read + its.written) * share if its else 0.0),
            )
    return sorted(total.values(), key=lambda k: -k.seconds)


def innermost(job: replay.Job) -> tuple[str, Work | None]:
    """The innermost op that launched a job, or the nearest one above it whose work is known."""
    if job.call is None:
        return "", None
    above = _path(job.call, job.inner)
    for call in reversed(above):
        its = work(call)
        if its is not None and its.read + its.written:
            return call.display_name, its
    return above[-1].display_name, None


def _path(call: Call, inner: int) -> list[Call]:
    """The calls from ``call`` down to the one at place ``inner``."""
    path, left = [call], inner
    while left > 0:
        left -= 1
        for child in path[-1].children:
            size = child.events
            if left < size:
                path.append(child)
                break
            left -= size
        else:
            break
    return path


# ---------------------------------------------------------------- what the replay says


def _times(timeline: GpuTimeline, peaks: GpuPeaks) -> GpuTime:
    busy = sum(replay.busy_seconds(timeline.played))
    on_device, host = replay.critical(timeline.program, timeline.played)
    return GpuTime(
        busy_s=busy,
        idle_s=timeline.wall - busy,
        critical_device_s=sum(on_device),
        critical_host_s=sum(host.values()),
        without_waits_s=timeline.played_with(waits=False),
        without_host_s=timeline.played_with(host=0.0),
        kernels=tuple(kernels(timeline, peaks)[:MOST_KERNELS]),
    )


def _findings(timeline: GpuTimeline, times: GpuTime) -> tuple[str, ...]:
    """What the replay says that no hotspot does."""
    wall = timeline.wall
    busy, device, host = (
        _percent(part, wall) for part in (times.busy_s, times.critical_device_s, times.critical_host_s)
    )
    lines = [
        f"the GPU is busy for {busy} of the wall clock; {device} of the critical path is kernels, {host} is the host "
        "and its launches"
    ]
    waits = sum(1 for step in timeline.program if step.waits)
    if waits > 1 and wall - times.without_waits_s >= NOTABLE * wall:
        lines.append(
            f"the host waits for the GPU {waits} times; with the last wait alone the run would take "
            f"{_ms(times.without_waits_s)} ms of {_ms(wall)} (replayed)"
        )
    if wall - times.without_host_s >= NOTABLE * wall:
        lines.append(
            "launched without a host, as from a CUDA graph, the same kernels would take "
            f"{_ms(times.without_host_s)} ms of {_ms(wall)} (replayed)"
        )
    if timeline.lost:
        lines.append(f"{_ms(timeline.lost)} ms of device work belong to no recorded launch: not counted")
    return tuple(lines)


def _percent(seconds: float, wall: float) -> str:
    return f"{100 * seconds / wall:.0f}%" if wall else "0%"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}"
