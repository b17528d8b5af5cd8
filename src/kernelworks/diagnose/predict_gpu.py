"""How long the swapped program will take on a GPU, before it is measured.

The swapped program is surveyed once (its calls, not its times). Calls that the original makes too cost the host and the
device what they cost there; each call of ours is replayed by itself, on arguments of its shapes and strides that come
from device memory: its kernels' time as the profiler has it, its host time with nothing recording it. What the host and
the device then do together is played as ``replay`` plays the original.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernelworks.ceilings.bound import bound
from kernelworks.observe.replay import LAUNCH, PYTHON, SYNC, Job, Step, play
from kernelworks.observe.timeline_gpu import GpuTimeline, waiting
from kernelworks.observe.trace import Call, record
from kernelworks.op import OPS, Op
from kernelworks.records import GpuCeilings
from kernelworks.work.costs import work
from kernelworks.work.operands import Arguments, Operand
from kernelworks.work.shapes import Signature, signature

__all__ = ["Cost", "Prediction", "Words", "predict", "replayed"]

OURS = "kernelworks::"
CALLS = 8  # of each kind of call that a replay times
MOST_COPIES, MOST_BYTES = 16, 8 << 30  # of a call's arguments
Kind = tuple[str, Signature]


@dataclass(frozen=True)
class Cost:
    """Seconds that one call takes the host, and its kernels the device."""

    host: float
    kernels: tuple[float, ...]
    waits: bool = False


@dataclass(frozen=True)
class Prediction:
    """Seconds of one run after the swap, and their share of the original's; ``unknown`` calls of ours were never
    replayed and count at their bound."""

    after: float
    share: float
    unknown: int


# ---------------------------------------------------------------- replaying our calls


class Words(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The strings and the lists of truths among the arguments of our calls, backwards too, which the profiler does not
    record: by name and shapes of a call, their places. A causal attention does half of the work of one that is not."""

    sees_kernelworks = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[Any, dict[int, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "kernelworks":
            words = {place: value for place, value in enumerate(args) if _is_word(value)}
            self.found[func._schema.name, _shapes(args)] = words
        return func(*args, **(kwargs or {}))

    def of(self, call: Call) -> dict[int, Any]:
        """Those of a call like this one."""
        return self.found.get((call.name, tuple(shape for shape, _ in signature(call))), {})


def _is_word(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and bool(value) and isinstance(value[0], bool))


def _shapes(args: Any) -> tuple[tuple[int, ...], ...]:
    """As ``signature`` has them: of a list of tensors the first three."""
    lists = [a[:3] if isinstance(a, (list, tuple)) else [a] for a in args]
    return tuple(tuple(t.shape) for items in lists for t in items if isinstance(t, Tensor))


def replayed(calls: Iterable[Call], l2_bytes: int, words: Words) -> dict[Kind, Cost]:
    """What each kind of call of ours takes, by name and shapes. Kinds that cannot be made up are left out."""
    kinds: dict[Kind, Call] = {}
    training = False
    for call in calls:
        training = training or call.backward
        if call.name.startswith(OURS):
            kinds.setdefault((call.name, signature(call)), call)
    found: dict[Kind, Cost] = {}
    learned: dict[str, Cost] = {}  # by name of a backward whose forward makes the gradients
    for key, call in sorted(kinds.items(), key=lambda item: item[1].backward):
        try:
            pair = _learned(call, words) if training and not call.backward else None
            if pair is not None:
                found[key], learned[f"{call.name}_backward"] = pair
            elif call.name in learned:
                found[key] = learned[call.name]
            else:
                found[key] = _timed(call, words, l2_bytes, training=training and not call.backward)
        except (TypeError, ValueError, RuntimeError, KeyError, IndexError):
            continue  # arguments that only the program can make
        finally:
            torch.cuda.empty_cache()
    return found


def _timed(call: Call, words: Words, l2_bytes: int, *, training: bool) -> Cost:
    name = call.name.removeprefix(OURS)
    pass_ = "backward" if name.endswith("_backward") else "forward"
    op = OPS[name.removesuffix("_backward")]
    first = _arguments(op, pass_, call, words)
    size = sum(t.nbytes for t in _tensors(first))
    copies = max(1, min(MOST_COPIES, math.ceil(2 * l2_bytes / max(size, 1)), MOST_BYTES // max(size, 1)))
    sets = [first, *(_arguments(op, pass_, call, words) for _ in range(copies - 1))]
    packet = getattr(torch.ops.kernelworks, name)

    def through_torch() -> None:
        for i in range(CALLS):
            packet(*sets[i % copies])

    def plainly(i: int) -> Any:
        return op(*sets[i % copies]) if pass_ == "forward" else op.run("backward", tuple(sets[i % copies]))

    with torch.no_grad():
        through_torch()
        trace = record(waiting(through_torch), gpu=True)
        spans = [[w.seconds for r in c.runtime for w in r.works] for c in trace.calls if c.name == call.name]
    if training and not op.contract.mutates:
        for tensors in sets:
            for tensor in _tensors(tensors):
                if tensor.is_floating_point():
                    tensor.requires_grad_()
    with torch.enable_grad() if training else torch.inference_mode():
        host = _host_seconds(plainly)
    middle = sorted(spans, key=sum)[len(spans) // 2]
    return Cost(host, tuple(middle))


def _learned(call: Call, words: Words) -> tuple[Cost, Cost] | None:
    """Forward and backward of an op whose row makes gradients with its forward in an eager training step, which it does
    not do while a profiler looks: so the two are timed by events. None for any other op."""
    op = OPS[call.name.removeprefix(OURS)]
    args = _arguments(op, "forward", call, words)
    for tensor in _tensors(args):
        if tensor.is_floating_point():
            tensor.requires_grad_()
    if op.contract.mutates or op.trains(tuple(args), None) is None:
        return None
    found: list[tuple[float, float, float, float]] = []
    with torch.enable_grad():
        for _ in range(4):
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
            start = time.perf_counter()
            marks[0].record()
            result = op(*args)
            marks[1].record()
            middle = time.perf_counter()
            torch.autograd.backward(
                result, torch.ones_like(result), inputs=[t for t in _tensors(args) if t.requires_grad]
            )
            marks[2].record()
            end = time.perf_counter()
            torch.cuda.synchronize()
            device = [marks[i].elapsed_time(marks[i + 1]) * 1e-3 for i in range(2)]
            found.append((middle - start, end - middle, *device))
            for tensor in _tensors(args):
                tensor.grad = None
    forward_host, backward_host, forward, backward = (statistics.median(column) for column in zip(*found, strict=True))
    return Cost(forward_host, (forward,)), Cost(backward_host, (backward,))


def _host_seconds(plainly: Any) -> float:
    """Of one call, the device's queue never full."""
    for i in range(3):
        plainly(i)
    seconds = []
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for i in range(CALLS):
            plainly(i)
        seconds.append((time.perf_counter() - start) / CALLS)
        torch.cuda.synchronize()
    return statistics.median(seconds)


def _tensors(args: Iterable[Any]) -> list[Tensor]:
    return [t for a in args for t in (a if isinstance(a, (list, tuple)) else [a]) if isinstance(t, Tensor)]


def _arguments(op: Op, pass_: str, call: Call, words: Words) -> list[Any]:
    """Random arguments of a call's shapes, strides and dtypes, its numbers, and defaults for what was not recorded."""
    items = Arguments(call).items
    schema = [a for a in torch._C.parse_schema(op.passes[pass_].schema).arguments if a.name != "row"]
    named = {a.name: item for a, item in zip(schema, items, strict=False)}
    args: list[Any] = []
    strings = words.of(call)
    for place, argument in enumerate(schema):
        item = named.get(argument.name)
        if isinstance(item, Operand):
            name, dim = op.contract.limits.get(argument.name, ("", 0))
            args.append(_tensor(item, named[name].shape[dim] if isinstance(named.get(name), Operand) else 2))
        elif isinstance(item, list) and item and isinstance(item[0], Operand):
            args.append([_tensor(o, 2) for o in item])
        elif place in strings:
            args.append(strings[place])
        elif str(argument.type) == "List[bool]":
            args.append([True] * len(op.passes[pass_].returns))
        elif item is None and argument.has_default_value():
            args.append(argument.default_value)
        else:
            args.append(item)
    return args


def _tensor(operand: Operand, rows: int) -> Tensor:
    strided = torch.empty_strided(operand.shape, operand.stride, dtype=operand.dtype, device="cuda")
    if operand.dtype.is_floating_point:
        return strided.uniform_(-1.0, 1.0)
    return strided.fill_(1) if operand.dtype is torch.bool else strided.random_(0, max(1, rows))


# ---------------------------------------------------------------- what the original's calls cost


@dataclass
class _Known:
    """Means over the original's calls: by op, shapes and module, and with ever less of that."""

    costs: dict[Any, list[Cost]] = field(default_factory=dict)
    gaps: dict[Any, list[float]] = field(default_factory=dict)

    @staticmethod
    def of(timeline: GpuTimeline) -> _Known:
        known = _Known()
        hosts: dict[int, float] = {}
        gaps: dict[int, float] = {}
        waits: set[int] = set()
        kernels: dict[int, list[float]] = {}
        for step in timeline.program:
            if step.call is None:
                continue
            at = hosts if step.kind != PYTHON else gaps
            at[id(step.call)] = at.get(id(step.call), 0.0) + step.seconds * timeline.host
            kernels.setdefault(id(step.call), []).extend(job.seconds * timeline.device for job in step.jobs)
            if step.waits:
                waits.add(id(step.call))
        inside = ""
        for call in timeline.calls:
            key = id(call)
            cost = Cost(hosts.get(key, 0.0), tuple(kernels.get(key, ())), key in waits)
            for name in _names(call):
                known.costs.setdefault(name, []).append(cost)
            entering, inside = call.place.path != inside, call.place.path
            for module in (call.place.module, ""):
                known.gaps.setdefault((module, entering, call.backward), []).append(gaps.get(key, 0.0))
        return known

    def cost(self, call: Call) -> Cost | None:
        for name in _names(call):
            found = self.costs.get(name)
            if found:
                host = statistics.fmean(c.host for c in found)
                usual = sorted(found, key=lambda c: sum(c.kernels))[len(found) // 2]
                return Cost(host, usual.kernels, usual.waits)
        return None

    def host(self, call: Call) -> float:
        """What calls of this op take the host, of any shape; else what calls do on average."""
        found = self.costs.get(call.name) or [c for costs in self.costs.values() for c in costs]
        return statistics.fmean(c.host for c in found) if found else 0.0

    def gap(self, call: Call, *, entering: bool) -> float:
        for key in ((call.place.module, entering, call.backward), ("", entering, call.backward)):
            if key in self.gaps:
                return statistics.fmean(self.gaps[key])
        return 0.0


def _names(call: Call) -> tuple[Any, ...]:
    sized = tuple((tuple(n.bit_length() for n in shape), dtype) for shape, dtype in signature(call))
    return (
        (call.name, call.backward, signature(call), call.place.module),
        (call.name, call.backward, signature(call)),
        (call.name, call.backward, sized),
    )


# ---------------------------------------------------------------- together


def predict(timeline: GpuTimeline, calls: Sequence[Call], costs: dict[Kind, Cost], ceilings: GpuCeilings) -> Prediction:
    """The swapped program's time from its survey's calls, the original's timeline and the replays.

    ``share`` is of the original's own calls put together in the same way, so that what that leaves out cancels.
    """
    known = _Known.of(timeline)
    after, unknown = _together(timeline, known, calls, costs, ceilings)
    before, _ = _together(timeline, known, timeline.calls, costs, ceilings)
    share = after / before if before else 1.0
    return Prediction(timeline.wall * share, share, unknown)


def _together(
    timeline: GpuTimeline, known: _Known, calls: Sequence[Call], costs: dict[Kind, Cost], ceilings: GpuCeilings
) -> tuple[float, int]:
    near: dict[Any, list[Cost]] = {}
    for (name, shapes), cost in costs.items():
        near.setdefault((name, _rounded(shapes)), []).append(cost)
    program: list[Step] = []
    unknown = 0
    inside = ""
    for call in calls:
        program.append(Step(PYTHON, known.gap(call, entering=call.place.path != inside), call))
        inside = call.place.path
        found: Cost | None
        if call.name.startswith(OURS):
            alike = near.get((call.name, _rounded(signature(call))), [None])
            found = costs.get((call.name, signature(call))) or alike[0]
            unknown += found is None
        else:
            found = known.cost(call)
        found = found or Cost(known.host(call), _at_its_bound(call, ceilings))
        jobs = tuple(Job("", seconds, 0, call) for seconds in found.kernels)
        program.append(Step(SYNC if found.waits else LAUNCH, found.host, call, jobs, waits=found.waits))
    program.append(Step(SYNC, _last_wait(timeline.program) * timeline.host, waits=True))
    return play(program, timeline.pace).wall, unknown


def _last_wait(program: Sequence[Step]) -> float:
    return next((step.seconds for step in reversed(program) if step.waits), 0.0)


def _rounded(shapes: Signature) -> Any:
    return tuple((tuple(n.bit_length() for n in shape), dtype) for shape, dtype in shapes)


def _at_its_bound(call: Call, ceilings: GpuCeilings) -> tuple[float, ...]:
    """One kernel at 60% of its bound; none for a call that moves no data."""
    its = work(call)
    if its is None:
        return (ceilings.launch_us * 1e-6,)
    if its.read + its.written == 0:
        return ()
    least = bound(
        its.flop, its.transcendental, its.read + its.written, math.inf, its.dtype, 1, ceilings,
        written_bytes=its.written, function=its.function,
    )  # fmt: skip
    return (least.seconds / 0.6,)
