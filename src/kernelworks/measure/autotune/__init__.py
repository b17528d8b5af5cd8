"""Settle: race what a program calls, once, on its own calls, so that each takes what is quickest on this machine."""

from __future__ import annotations

import concurrent.futures
import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from kernelworks.build import native
from kernelworks.dispatch.hooks import watch_calls
from kernelworks.dispatch.op import OPS, Op
from kernelworks.dispatch.signature import ops_of
from kernelworks.measure.autotune.session import Session
from kernelworks.records import AutotuneResult

__all__ = ["autotune", "autotune_cases"]

Progress = Callable[[str], None]

SILENT_S = 10.0  # after which a line says what is being done
_one_at_a_time = threading.RLock()


class _Lines:
    """A line on stderr where nothing was said for ten seconds."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, what: str) -> None:
        if time.monotonic() - self.last > SILENT_S:
            self.last = time.monotonic()
            print(f"kernelworks: settle: {what}", file=sys.stderr, flush=True)


def autotune(
    fn: Callable[..., Any],
    *args: Any,
    again: bool = False,
    budget_s: float = math.inf,
    progress: Progress | None = None,
    expected: Iterable[str] = (),
) -> AutotuneResult:
    """Runs ``fn(*args)`` once and races each kind of call of ours that it makes: the rows that are proved here against
    torch's own function, on the call's own tensors. From then on a row of ours is taken where it won.

    Of an op that has no proved row for a call on this kind of CPU, the first listed is tried on some cases and raced;
    if it won, it is proved at the end, which takes some seconds a row.

    A forward is raced as it is, and where gradients are wanted also forward and backward together and the backward
    alone (where it is not made with the forward); ours has to win each by 3% in both halves of the race. What was
    settled before on this kind of machine is not raced again, unless ``again`` says so. Cost: the run of ``fn`` and
    about 0.3 s for each kind of call and pass, until races have taken ``budget_s``; what is met after that stays
    torch's.

    The program's answers, gradients and random numbers are what they would have been. ``fn`` may raise: what was
    settled up to there is kept, and the exception goes on. Calls in other threads, in CUDA graphs that are being
    captured, under a profiler, a mode or a transform are not raced.

    ``expected`` names ops, ours or torch's functions, that ``fn`` is known to call on the CPU: what must be compiled
    for them is compiled beforehand, several at a time.

    Returns: what was found for each kind of call (``print`` it), and where it is kept.
    """
    with _session(again, progress, budget_s, ops_of(expected)) as session:
        fn(*args)
    return session.record()


def autotune_cases(
    ops: Sequence[Op], *, device: str = "cpu", again: bool = False, progress: Progress | None = None
) -> AutotuneResult:
    """``autotune`` for the calls that ``bench`` times of each op, in each dtype, with gradients where the op has them."""
    with _session(again, progress, expected=ops if device == "cpu" else ()) as session:
        for op in ops:
            for args in _bench_calls(op, device):
                with torch.set_grad_enabled("backward" in op.passes):
                    op.call(*args)
    return session.record()


@contextlib.contextmanager
def _session(
    again: bool, progress: Progress | None, budget_s: float = math.inf, expected: Sequence[Op] = ()
) -> Iterator[Session]:
    """One at a time: two races at once would time each other. What is timed of ours is the way in that calls will take,
    so the one in C++ is built first, beside what ``expected`` ops need."""
    told = progress or _Lines()
    with _one_at_a_time:
        session = Session(again=again, progress=told, budget_s=budget_s)
        with concurrent.futures.ThreadPoolExecutor(1) as beside:
            building = beside.submit(native.provide, told)
            session.prepare(expected)
            module = building.result()
        for op in OPS.values():
            if module is not None and not op.entry.in_cpp:
                op.entry.use_module(module)
        with watch_calls(session.meet):
            yield session
            session.verify_winners()


def _bench_calls(op: Op, device: str) -> Iterator[tuple[Any, ...]]:
    """The calls that ``bench`` times, their differentiable inputs as leaves that want gradients."""
    cases = (op.contract.device_bench_cases if device == "cuda" else ()) or op.contract.bench_cases
    for case in cases:
        for dtype in case.dtypes:
            with torch.device(device):
                args = case.make(torch.Generator(device).manual_seed(0), dtype)
            if "backward" in op.passes:
                for name in op.contract.differentiable:
                    if isinstance(args.get(name), torch.Tensor):
                        args[name].requires_grad_()
            yield tuple(args.get(name) for name in op.passes["forward"].names)
