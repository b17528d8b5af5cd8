"""How long the swapped program will take, before it is measured.

The swapped program is surveyed once (its calls, not its times). Calls that the original makes too cost what they cost
there; each call of ours is replayed by itself on the program's own arguments, in the program's order, so that weights
come from memory as they will; gaps cost what gaps cost in the same module before. Page faults are added where the
survey saw more of them than the replay.
"""

from __future__ import annotations

import resource
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernelworks.diagnose.costs import work
from kernelworks.diagnose.limits import limit
from kernelworks.diagnose.overhead import PAGE, Floors
from kernelworks.diagnose.places import Survey
from kernelworks.diagnose.shapes import Signature, clusters, signature
from kernelworks.diagnose.timeline import Timeline
from kernelworks.diagnose.trace import Call, Trace
from kernelworks.dispatch import OPS
from kernelworks.records import Ceilings

__all__ = ["Captured", "CapturingSurvey", "Prediction", "predict", "replay"]

OURS = "kernelworks::"
MOST_BYTES = 1 << 30  # of arguments that are kept alive for the replay, weights not counted
PASSES = 5


@dataclass(frozen=True)
class Captured:
    """One call of an op of ours with its own arguments."""

    op: str
    args: tuple[Any, ...]
    signature: Signature


class CapturingSurvey(Survey):
    """A survey that also keeps the arguments of the calls of our ops, until they hold a gigabyte."""

    def __init__(self) -> None:
        super().__init__()
        self.captured: list[Captured] = []
        self._held = 0

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "_schema", None)
        if name is not None and name.name.startswith(OURS) and not self._busy and self._held < MOST_BYTES:
            self._capture(name.name.removeprefix(OURS), args)
        return super().__torch_function__(func, kinds, args, kwargs)

    def _capture(self, name: str, args: Any) -> None:
        op = OPS.get(name)
        if op is None or op.contract.mutates:
            return
        with torch._C.DisableTorchFunction():
            found = [a for a in args if isinstance(a, Tensor)]
            kept = tuple(args[: len(op.passes["forward"].names)])
            self.captured.append(Captured(name, kept, tuple((tuple(t.shape), _name(t.dtype)) for t in found)))
            self._held += sum(t.nbytes for t in found if t.untyped_storage().data_ptr() not in self.persistent)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Prediction:
    """Seconds of one run after the swap, and of what they are made."""

    after: float
    ours: float  # inside calls of our ops
    kept: float  # inside calls that the original makes too
    gaps: float
    unknown: int  # calls of ours that were never replayed: they count at their bound over 0.6


def replay(captured: list[Captured]) -> dict[tuple[str, Signature], tuple[float, float]]:
    """Seconds and page faults of each kind of call, replayed in order; medians over the passes after the first."""
    seconds: dict[tuple[str, Signature], list[float]] = {}
    faults: dict[tuple[str, Signature], list[float]] = {}
    inference = any(isinstance(a, Tensor) and a.is_inference() for c in captured for a in c.args)
    with torch.inference_mode() if inference else torch.no_grad():
        for turn in range(PASSES):
            for call in captured:
                op, key = OPS[call.op], (call.op, call.signature)
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                start = time.perf_counter()
                result = op(*call.args)
                elapsed = time.perf_counter() - start
                if turn:
                    seconds.setdefault(key, []).append(elapsed)
                    faults.setdefault(key, []).append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
                del result
    return {key: (statistics.median(seconds[key]), statistics.fmean(faults[key])) for key in seconds}


def predict(
    timeline: Timeline,
    survey: Trace,
    replayed: dict[tuple[str, Signature], tuple[float, float]],
    floors: Floors,
    threads: int,
    ceilings: Ceilings,
) -> Prediction:
    """The swapped program's wall clock from its survey, the original's timeline and the replays."""
    known = _Known(timeline, floors)
    nearest = _Nearest(replayed)
    ours = kept = gaps = 0.0
    unknown = freed = 0
    for call in survey.calls:
        freed += call.freed
        gaps += known.gap(call)
        if call.name.startswith(OURS):
            found = nearest.find(call)
            if found is None:
                unknown += 1
                ours += _at_its_bound(call, floors, threads, ceilings) / 0.6
                continue
            seconds, faults = found
            ours += seconds + max(0.0, call.place.faults - faults) * floors.fault
        else:
            seconds_before = known.span(call)
            kept += _at_its_bound(call, floors, threads, ceilings) if seconds_before is None else seconds_before
    taken = sum(c.place.faults for c in survey.calls)
    release = min(taken, (freed + survey.freed) / PAGE) * floors.free
    return Prediction(ours + kept + gaps + release + known.tail, ours, kept, gaps + release, unknown)


def _at_its_bound(call: Call, floors: Floors, threads: int, ceilings: Ceilings) -> float:
    its = work(call)
    bound = limit(its, 0.0, threads, ceilings).seconds if its is not None else 0.0
    return max(bound, floors.span * call.events)


class _Known:
    """What calls and gaps cost in the original: by op and shapes, and by module."""

    def __init__(self, timeline: Timeline, floors: Floors) -> None:
        self.floors, self.tail = floors, timeline.tail
        spans: dict[Any, list[float]] = {}
        gaps: dict[str, list[float]] = {}
        for moment in timeline.moments:
            call = moment.call
            for key in ((call.name, signature(call), call.place.module), (call.name, signature(call)), _sized(call)):
                spans.setdefault(key, []).append(moment.seconds)
            gaps.setdefault(call.place.module, []).append(moment.gap)
        pages = sum(m.call.place.faults for m in timeline.moments)
        freed = (sum(m.call.freed for m in timeline.moments) + timeline.tail_freed) / PAGE
        release = min(pages, freed) * floors.free  # the gaps hold this too; it is predicted apart
        total = sum(m.gap for m in timeline.moments)
        self.share = max(0.0, 1 - release / total) if total else 1.0
        self.spans = {key: statistics.fmean(values) for key, values in spans.items()}
        self.gaps = {module: statistics.fmean(values) for module, values in gaps.items()}
        self.usual = statistics.median(m.gap for m in timeline.moments) if timeline.moments else floors.gap

    def span(self, call: Call) -> float | None:
        for key in ((call.name, signature(call), call.place.module), (call.name, signature(call)), _sized(call)):
            if key in self.spans:
                return self.spans[key]
        return None

    def gap(self, call: Call) -> float:
        return self.share * self.gaps.get(call.place.module, self.usual)


def _sized(call: Call) -> Any:
    """Rank and dtypes with sizes to the nearest power of two: calls of a growing cache look alike."""
    return call.name, tuple((tuple(n.bit_length() for n in shape), dtype) for shape, dtype in signature(call))


class _Nearest:
    """The replay of the same op whose shapes are the call's, or nearly."""

    def __init__(self, replayed: dict[tuple[str, Signature], tuple[float, float]]) -> None:
        self.replayed = replayed
        self.cache: dict[tuple[str, Signature], tuple[float, float] | None] = {}

    def find(self, call: Call) -> tuple[float, float] | None:
        key = (call.name.removeprefix(OURS), signature(call))
        if key not in self.cache:
            self.cache[key] = self.replayed.get(key) or self._close(key)
        return self.cache[key]

    def _close(self, key: tuple[str, Signature]) -> tuple[float, float] | None:
        names = [k for k in self.replayed if k[0] == key[0]]
        for _, members in clusters([key[1], *(k[1] for k in names)]):
            others = [names[i - 1] for i in members if i > 0]
            if 0 in members and others:
                found = [self.replayed[k] for k in others]
                return statistics.median(s for s, _ in found), statistics.median(f for _, f in found)
        return None
