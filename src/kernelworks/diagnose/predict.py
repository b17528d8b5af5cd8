"""How long the swapped program will take, before it is measured.

The swapped program is surveyed once (its calls, not its times). Calls that the original makes too cost what they cost
there; each call of ours, backwards too, is replayed by itself on the program's own arguments, in the program's order,
so that weights come from memory as they will; gaps cost what gaps cost in the same module before. The replay writes
into outputs that exist, and the page faults that the survey saw are added.

The original's calls are put together in the same way. What comes out is a share, so that what the model leaves out
cancels; and since the replays are of this minute and the timeline is of an earlier one, the timeline's seconds are
brought to this minute first, by what the original takes now.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from kernelworks.choose import choose
from kernelworks.diagnose.limits import limit
from kernelworks.observe.overhead import PAGE, Floors
from kernelworks.observe.timeline import Timeline, fault_share
from kernelworks.observe.trace import Call, Trace
from kernelworks.op import OPS, Op
from kernelworks.records import Ceilings
from kernelworks.work.costs import work
from kernelworks.work.shapes import Signature, signature

__all__ = ["Capture", "Captured", "Prediction", "Times", "predict", "replay"]

OURS = "kernelworks::"
MOST_BYTES = 1 << 30  # of arguments that are kept alive for the replay, weights not counted
MOST_OF_A_KIND = 32
TORCHS = {"attention": "scaled_dot_product_attention", "cross_entropy": "cross_entropy_loss"}  # where names differ
PASSES = 5


@dataclass(frozen=True)
class Captured:
    """One call of an op of ours, or of its backward, with its own arguments; ``name`` is torch's less the namespace."""

    name: str
    args: tuple[Any, ...]
    signature: Signature
    torchs: bool = False  # the row that is taken is torch's own: the call costs what torch's costs
    row: str | None = None  # that was settled for it, where it was

    @property
    def op(self) -> Op:
        return OPS[self.name.removesuffix("_backward")]

    @property
    def backward(self) -> bool:
        return self.name.endswith("_backward")


class Capture(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the arguments of calls of our ops, below autograd: of each kind some, until they hold a gigabyte, and until
    ``budget_s`` is over: then it leaves the program alone at its next call of a module, since being told of an op costs
    many times a small one. Calls of kinds that it had not met by then count at their bound."""

    sees_kernelworks = True

    def __init__(self, persistent: Mapping[int, int], budget_s: float = math.inf) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.persistent, self.budget_s = persistent, budget_s
        self.captured: list[Captured] = []
        self._kinds: dict[Any, int] = {}
        self._torchs: dict[Any, bool] = {}
        self._held = 0
        self._begun = 0.0
        self._there = False

    def __enter__(self) -> Any:
        self._call: Callable[..., Any] = nn.Module.__call__
        self._begun, self._there = time.perf_counter(), True
        capture = self

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if time.perf_counter() - capture._begun > capture.budget_s:
                capture._leave()
            return capture._call(module, *args, **kwargs)

        nn.Module.__call__ = call  # type: ignore[method-assign]
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        nn.Module.__call__ = self._call  # type: ignore[method-assign]
        if self._there:
            self._there = False
            super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]

    def _leave(self) -> None:
        """Before the program's run is over, where no mode of its own stands above."""
        if self._there and _get_current_dispatch_mode() is self:
            self.__exit__(None, None, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "kernelworks" and self._held < MOST_BYTES:
            self._keep(func._opname, args)
        return func(*args, **(kwargs or {}))

    def _keep(self, name: str, args: Any) -> None:
        op = OPS.get(name.removesuffix("_backward"))
        pass_ = "backward" if name.endswith("_backward") else "forward"
        if op is None or op.contract.mutates or pass_ not in op.passes:
            return
        found = [a for a in args if isinstance(a, Tensor)]
        shapes = tuple((tuple(t.shape), _name(t.dtype)) for t in found)
        kind = (name, _rounded(shapes))
        self._kinds[kind] = self._kinds.get(kind, 0) + 1
        if self._kinds[kind] <= MOST_OF_A_KIND:
            count = len(op.passes[pass_].names)
            given, row = tuple(args[:count]), args[count] if len(args) > count else None
            same = (name, shapes, row)
            if same not in self._torchs:
                self._torchs[same] = pass_ == "forward" and choose(op, op.request(pass_, given), row).row.source is None
            torchs = self._torchs[same]
            self.captured.append(Captured(name, given, shapes, torchs, row))
            self._held += sum(t.nbytes for t in found if t.untyped_storage().data_ptr() not in self.persistent)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Prediction:
    """Seconds of one run after the swap, and of what they are made; ``share`` is of the original's, put together in the
    same way."""

    after: float
    share: float
    ours: float  # inside calls of our ops
    kept: float  # inside calls that the original makes too
    gaps: float
    unknown: int  # calls of ours that were never replayed: they count at their bound over 0.6


Times = dict[tuple[str, Signature], float | None]  # None where the row that is taken is torch's own


def replay(captured: list[Captured], budget_s: float = math.inf) -> Times:
    """Seconds of each kind of call, replayed in the program's order into outputs that exist: medians over passes, of
    which there is one at the least, and no more once ``budget_s`` is over."""
    begin = time.perf_counter()
    seconds: dict[tuple[str, Signature], list[float]] = {}
    inference = any(isinstance(a, Tensor) and a.is_inference() for c in captured for a in c.args)
    outputs: list[Any] = []
    for turn in range(PASSES + 1):
        if turn > 1 and time.perf_counter() - begin > budget_s:
            break
        with torch.inference_mode() if inference else torch.no_grad():
            for i, call in enumerate(captured):
                if not turn:
                    outputs.append(None if call.backward or call.torchs else _output(call.op, call))
                if not turn or call.torchs:
                    continue
                start = time.perf_counter()
                if call.backward:
                    call.op.run("backward", call.args, row=call.row)
                else:
                    call.op(*call.args, out=outputs[i], row=call.row)
                seconds.setdefault((call.name, call.signature), []).append(time.perf_counter() - start)
    times: Times = {(call.name, call.signature): None for call in captured if call.torchs}
    return times | {key: statistics.median(values) for key, values in seconds.items()}


def _output(op: Op, call: Captured) -> Any:
    """What the call returns, to be written again; None where it cannot be given back as ``out``."""
    result = op(*call.args, row=call.row)
    try:
        op(*call.args, out=result, row=call.row)
    except (TypeError, ValueError, RuntimeError):
        return None
    return result


def predict(
    timeline: Timeline,
    survey: Trace,
    replayed: Times,
    faults: int,
    floors: Floors,
    threads: int,
    ceilings: Ceilings,
    now: float | None = None,
) -> Prediction:
    """The swapped program's wall clock from its survey, the original's timeline and the replays. ``faults`` are the
    page faults of the swapped program when it runs plain; ``now`` is what the original takes in the minute of the
    replays, by default what the timeline says."""
    known = _Known(timeline, floors)
    own = timeline.wall - timeline.taken  # calls and gaps add to this
    pace = now / own if now is not None and own else 1.0
    costs = _Costs(known, _Nearest(replayed), pace, floors, threads, ceilings)
    after = costs.together(survey.calls, survey.freed, faults)
    before = costs.together([m.call for m in timeline.moments], timeline.tail_freed, timeline.faults)
    return dataclasses.replace(after, share=after.after / before.after if before.after else 1.0)


@dataclass
class _Costs:
    """What calls and gaps cost now: those of the original by its timeline at today's ``pace``, ours by the replays."""

    known: _Known
    nearest: _Nearest
    pace: float
    floors: Floors
    threads: int
    ceilings: Ceilings

    def together(self, calls: Sequence[Call], freed_at_the_end: int, faults: int | None) -> Prediction:
        """One run of these calls. Its ``share`` is left at 1."""
        faulting = fault_share(faults, calls) * self.floors.fault
        ours = kept = gaps = 0.0
        unknown, freed = 0, freed_at_the_end
        inside = ""
        for call in calls:
            freed += call.freed
            gaps += self.known.gap(call, entering=call.place.path != inside)
            inside = call.place.path
            seconds = self.known.span(call)
            if seconds is None and self.nearest.torchs(call):
                seconds = self.known.span(dataclasses.replace(call, name=_as_torch(call.name)))
            if seconds is not None:
                kept += seconds
            elif call.name.startswith(OURS):
                alone = self.nearest.find(call)
                unknown += alone is None
                least = self._least(call) / 0.6 if alone is None else alone
                ours += least + call.place.faults * faulting
            else:
                kept += self._least(call) / self.pace
        taken = sum(c.place.faults for c in calls) * fault_share(faults, calls)
        gaps += min(taken, freed / PAGE) * self.floors.free
        kept, gaps, tail = (seconds * self.pace for seconds in (kept, gaps, self.known.tail))
        return Prediction(ours + kept + gaps + tail, 1.0, ours, kept, gaps, unknown)

    def _least(self, call: Call) -> float:
        its = work(call)
        bound = limit(its, 0.0, self.threads, self.ceilings).seconds if its is not None else 0.0
        return max(bound, self.floors.span * call.events)


class _Known:
    """What calls and gaps cost in the original: by op and shapes, and by module."""

    def __init__(self, timeline: Timeline, floors: Floors) -> None:
        self.floors, self.tail = floors, timeline.tail
        calls = [m.call for m in timeline.moments]
        pages = sum(call.place.faults for call in calls) * fault_share(timeline.faults, calls)
        freed = (sum(call.freed for call in calls) + timeline.tail_freed) / PAGE
        given_back = min(1.0, pages / freed) * floors.free if freed else 0.0
        spans: dict[Any, list[float]] = {}
        gaps: dict[tuple[str, bool], list[float]] = {}
        inside = ""
        for moment in timeline.moments:
            call = moment.call
            for key in ((call.name, signature(call), call.place.module), (call.name, signature(call)), _sized(call)):
                spans.setdefault(key, []).append(moment.seconds)
            release = call.freed / PAGE * given_back  # predicted apart
            entering, inside = call.place.path != inside, call.place.path
            for module in (call.place.module, ""):
                gaps.setdefault((module, entering), []).append(max(0.0, moment.gap - release))
        self.spans = {key: statistics.fmean(values) for key, values in spans.items()}
        self.gaps = {key: statistics.fmean(values) for key, values in gaps.items()}

    def span(self, call: Call) -> float | None:
        for key in ((call.name, signature(call), call.place.module), (call.name, signature(call)), _sized(call)):
            if key in self.spans:
                return self.spans[key]
        return None

    def gap(self, call: Call, *, entering: bool) -> float:
        """Entering a module costs more Python than the next op inside it: the two are kept apart."""
        for key in ((call.place.module, entering), ("", entering)):
            if key in self.gaps:
                return self.gaps[key]
        return self.floors.gap


def _as_torch(name: str) -> str:
    """What a call of an op of ours was in the original, where torch knows it by one name."""
    op = name.removeprefix(OURS)
    return f"aten::{TORCHS.get(op, op)}"


def _rounded(shapes: Signature) -> Any:
    """Sizes by their power of two: calls of a growing cache look alike."""
    return tuple((tuple(n.bit_length() for n in shape), dtype) for shape, dtype in shapes)


def _sized(call: Call) -> Any:
    return call.name, _rounded(signature(call))


class _Nearest:
    """The replay of the same op whose shapes are the call's, or nearly."""

    def __init__(self, replayed: Times) -> None:
        self.replayed = replayed
        self.near: dict[Any, list[float]] = {}
        for (op, shapes), seconds in replayed.items():
            if seconds is not None:
                self.near.setdefault((op, _rounded(shapes)), []).append(seconds)

    def torchs(self, call: Call) -> bool:
        """Whether the row that such a call takes is torch's own."""
        key = call.name.removeprefix(OURS), signature(call)
        return key in self.replayed and self.replayed[key] is None

    def find(self, call: Call) -> float | None:
        op, shapes = call.name.removeprefix(OURS), signature(call)
        exact = self.replayed.get((op, shapes))
        if exact is not None:
            return exact
        near = self.near.get((op, _rounded(shapes)))
        return statistics.median(near) if near else None
