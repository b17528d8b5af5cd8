"""Where a GPU program's wall clock went: the device's busy time and the gaps in it, cut into parts that add to it.

The parts, in the footer's order:

- **useful at ceiling**: the least time that the work of the modelled ops takes on this GPU;
- **traffic that fusion would remove**: of that, what is spent on writing a tensor and reading it again in the very next
  kernel, where neither is a product;
- **memory excess**, **compute excess**: kernels' time beyond their bound, by what the bound is;
- **launch**: what a kernel takes to start and end (all of it where the kernel does less work than that), and gaps from
  a launch to its start;
- **host work**: gaps in which the host ran Python or torch's dispatch;
- **synchronisation**: gaps after the device had done all it was given, until the host that waited for it went on;
- **allocation (cudaMalloc)**: gaps in which the host asked the driver for memory or gave it back;
- **unexplained**: kernels without a model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernelworks.ceilings.bound import DISPATCH_CALLS, Bound, bound, settled
from kernelworks.diagnose.account import COMPUTE, MEMORY, UNEXPLAINED, USEFUL, Entry, Group, grouped
from kernelworks.diagnose.limits import Reuse
from kernelworks.observe import replay
from kernelworks.observe.replay import ALLOCATION, DISPATCH, LAUNCH, PYTHON, SYNC
from kernelworks.observe.timeline_gpu import GpuTimeline
from kernelworks.observe.trace import Call, Place
from kernelworks.records import GpuCeilings
from kernelworks.work import NOTHING, Work
from kernelworks.work.costs import contracted, work
from kernelworks.work.operands import Arguments, Operand

__all__ = ["GAPS", "GPU_PARTS", "Kernel", "account", "innermost", "is_product", "kernels", "short"]

FUSION, LAUNCHES, HOST = "traffic that fusion would remove", "launch", "host work"
SYNCHRONISATION, CUDA_MALLOC = "synchronisation", "allocation (cudaMalloc)"
GPU_PARTS = (USEFUL, FUSION, MEMORY, COMPUTE, LAUNCHES, HOST, SYNCHRONISATION, CUDA_MALLOC, UNEXPLAINED)

# What a gap is called as a region, the part it counts to, and its regime.
GAPS = {
    PYTHON: ("python", HOST, "host"), DISPATCH: ("torch's dispatch", HOST, "host"),
    LAUNCH: ("launch latency", LAUNCHES, "launch"), SYNC: ("synchronisation", SYNCHRONISATION, "synchronisation"),
    ALLOCATION: ("cudaMalloc", CUDA_MALLOC, "allocation"),
}  # fmt: skip

TINY = 0.1  # of a launch: with less work than that the bound explains nothing
MATRIX = frozenset({
    "linear", "mm", "bmm", "addmm", "baddbmm", "matmul", "mv", "addmv", "dot", "convolution", "convolution_backward",
    "conv1d", "conv2d", "scaled_dot_product_attention", "_addmm_activation",
})  # fmt: skip


@dataclass(frozen=True)
class Kernel:
    """One kind of kernel from one op: seconds of all its runs, and what they take at least."""

    name: str
    op: str
    runs: int
    seconds: float
    bound_s: float
    regime: str
    work: Work | None


@dataclass(slots=True)
class _Done:
    """What the device did for one call."""

    call: Call
    jobs: list[replay.Job]
    seconds: float = 0.0  # of all its jobs
    exclusive: float = 0.0  # of those in which no job before was running
    critical: float = 0.0


def account(timeline: GpuTimeline, ceilings: GpuCeilings) -> list[Group]:
    """All groups, the gaps included, longest first. Their parts add to the wall clock."""
    done = _by_call(timeline)
    works = [None if one.call.name == UNKNOWN else work(one.call) for one in done]
    run_bytes = sum(w.read + w.written for w in works if w)
    reuse = Reuse(ceilings.l2_bytes, timeline.persistent, run_bytes)
    shares = _fusible([one.call for one in done], works)
    entries = []
    for one, its, share in zip(done, works, shares, strict=True):
        limit = None
        if its is not None:
            its = _unit(its)
            limit = _limit(one, its, reuse.far(one.call, its), ceilings)
        parts = _inside(one, its, limit, share, ceilings)
        entry = Entry(one.call, one.exclusive, its, limit, parts, one.critical, _names(one.jobs))
        entries.append(entry)
    return sorted([*grouped(entries), *_between(timeline)], key=lambda g: -g.seconds)


UNKNOWN = "kernels outside any op"


def _by_call(timeline: GpuTimeline) -> list[_Done]:
    """The device's work by the call that asked for it, in the order of the program."""
    exclusive = replay.busy_seconds(timeline.played)
    critical, _ = replay.critical(timeline.program, timeline.played)
    found: dict[int, _Done] = {}
    outside: dict[str, Call] = {}
    for number, span in enumerate(timeline.played.spans):
        call = span.job.call or outside.setdefault(span.job.name, Call(UNKNOWN, 0, 0, place=Place()))
        one = found.setdefault(id(call), _Done(call, []))
        one.jobs.append(span.job)
        one.seconds += span.end - span.start
        one.exclusive += exclusive[number]
        one.critical += min(critical[number], exclusive[number])
    return list(found.values())


def _names(jobs: Sequence[replay.Job]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(short(job.name) for job in jobs))


def short(name: str) -> str:
    """A kernel's name without its return type, namespaces and arguments."""
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    head = plain.partition("<")[0].partition("(")[0]
    inner = next((word for word in ("Functor", "Kernel", "_kernel") if word in plain[len(head) :]), "")
    if inner and "elementwise" in head:
        words = re.split(r"[<>,( ]+", plain)
        what = next((w.rpartition("::")[2] for w in words[1:] if inner in w), "")
        return f"{head.rpartition('::')[2]}<{what}>"
    return head.rpartition("::")[2] if "Mem" not in head else plain.partition(" (")[0]


# ---------------------------------------------------------------- the bound


def _unit(its: Work) -> Work:
    """float32 products run on the tf32 unit where torch was told that they may."""
    if its.dtype == "float32" and its.flop and torch.backends.cuda.matmul.allow_tf32:
        return Work(its.flop, its.transcendental, its.read, its.written, "tf32", its.function)
    return its


def _limit(one: _Done, its: Work, far: float, ceilings: GpuCeilings) -> Bound:
    """T_min with ``far`` of the bytes from device memory, or from L2 alone where it was quicker than that."""
    if its.read + its.written == 0 and its.flop == 0:
        return bound(0.0, 0.0, 0.0, 0.0, "float32", 1, ceilings, launches=len(one.jobs))
    total = its.read + its.written
    wide = 1.0 if total > 2 * ceilings.l2_bytes else far
    footprints = (ceilings.l2_bytes * (1 + wide), 0.0)
    distant, near = (
        bound(
            its.flop, its.transcendental, total, footprint, its.dtype, 1, ceilings,
            written_bytes=its.written, function=its.function,
        )
        for footprint in footprints
    )  # fmt: skip
    return settled(distant, near, one.seconds)


def _inside(
    one: _Done, its: Work | None, limit: Bound | None, fusible: float, ceilings: GpuCeilings
) -> dict[str, float]:
    """The exclusive seconds of one call's work, by part."""
    rest = one.exclusive
    if its is None or limit is None:
        return {UNEXPLAINED: rest}
    parts: dict[str, float] = {}

    def take(name: str, most: float) -> None:
        nonlocal rest
        taken = min(rest, max(0.0, most))
        rest -= taken
        if taken:
            parts[name] = parts.get(name, 0.0) + taken

    if its.read + its.written == 0:
        take(_copied(one), rest)
        return parts
    terms = {name: value for name, value in limit.terms.items() if name != "launch"}
    worst = max(terms, key=lambda name: terms[name])
    useful = min(terms[worst], limit.seconds)
    if worst == "memory":
        take(FUSION, fusible * useful)
        useful *= 1 - fusible
    take(USEFUL, useful)
    floor = ceilings.launch_us * 1e-6
    take(LAUNCHES, len(one.jobs) * floor)
    if terms[worst] < floor * len(one.jobs) and one.seconds < DISPATCH_CALLS * floor * len(one.jobs):
        take(LAUNCHES, rest)
    if terms[worst] < TINY * floor:
        take(UNEXPLAINED, rest)
    take(MEMORY if worst == "memory" else COMPUTE, rest)
    return parts


def _copied(one: _Done) -> str:
    """Reading a number takes a copy to the host, which waits for it: that is synchronisation, else a launch."""
    return SYNCHRONISATION if any("DtoH" in job.name for job in one.jobs) else LAUNCHES


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
    ours = contracted(name)
    if ours is not None:
        return ours[0].contract.arithmetic == "products"
    plain = name.rpartition("::")[2].removesuffix("_")
    return plain in MATRIX or "attention" in plain


# ---------------------------------------------------------------- gaps


def _between(timeline: GpuTimeline) -> list[Group]:
    """The gaps by their cause and the module of the op that the host was at."""
    found: dict[tuple[str, str], Group] = {}
    slowest: dict[tuple[str, str], float] = {}
    for gap in replay.gaps(timeline.program, timeline.played):
        name, part, regime = GAPS[gap.kind]
        call = gap.call or Call("", 0, 0, place=Place())
        key = (name, call.place.module)
        group = found.setdefault(key, Group(name, call.place, "", gap=regime))
        if gap.seconds > slowest.get(key, 0.0):
            slowest[key], group.place = gap.seconds, Place(call.place.module, call.place.source)
        group.entries.append(Entry(call, gap.seconds, NOTHING, None, {part: gap.seconds}, gap.seconds))
    return list(found.values())


# ---------------------------------------------------------------- kernels


def kernels(timeline: GpuTimeline, ceilings: GpuCeilings) -> list[Kernel]:
    """Every kind of kernel with the innermost op that launched it, longest first.

    An op that launched several kernels shares its bound out by their time, since its formula knows only their sum.
    """
    runs: dict[tuple[int, int], list[replay.Span]] = {}
    for span in timeline.played.spans:
        key = (id(span.job.call), span.job.inner)
        runs.setdefault(key, []).append(span)
    total: dict[tuple[str, str], Kernel] = {}
    for spans in runs.values():
        op, its = innermost(spans[0].job)
        seconds = sum(s.end - s.start for s in spans)
        limit = None
        if its is not None:
            its = _unit(its)
            one = _Done(spans[0].job.call or Call("", 0, 0), [s.job for s in spans], seconds)
            limit = _limit(one, its, 1.0, ceilings)
        for span in spans:
            took = span.end - span.start
            share = took / seconds if seconds else 0.0
            least = min(limit.seconds * share, took) if limit else 0.0
            name = short(span.job.name)
            known = total.get((name, op))
            part = Work(its.flop * share, 0.0, its.read * share, its.written * share) if its else None
            total[name, op] = Kernel(
                name,
                op,
                (known.runs if known else 0) + 1,
                (known.seconds if known else 0.0) + took,
                (known.bound_s if known else 0.0) + least,
                limit.regime if limit else "unmodelled",
                known.work + part if known and known.work and part else part,
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
            return call.name.removeprefix("aten::"), its
    return above[-1].name.removeprefix("aten::"), None


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
