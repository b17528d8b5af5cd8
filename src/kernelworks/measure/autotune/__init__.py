"""Autotune: measure what a program calls, once, on its own tensors, so that each call takes what is quickest here."""

from __future__ import annotations

import concurrent.futures
import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from kernelworks.build import background, native
from kernelworks.dispatch import tuning_records
from kernelworks.dispatch.hooks import watch_calls
from kernelworks.dispatch.op import OPS, Op
from kernelworks.dispatch.signature import ops_of
from kernelworks.measure.autotune.configs import validate_request
from kernelworks.measure.autotune.session import Session
from kernelworks.measure.autotune.worker import race_in_worker, try_configs_in_worker
from kernelworks.measure.clock.turns import measuring_alone
from kernelworks.measure.clock.work_beside import untimed_section
from kernelworks.ops import op_named
from kernelworks.records import AutotuneResult, ConfigTuning, Verification

__all__ = ["autotune", "autotune_cases", "autotune_configs"]

Progress = Callable[[str], None]

SILENT_S = 10.0  # After so long without a line, one says what is being done.
_one_at_a_time = threading.RLock()


class _Lines:
    """Progress on stderr, at most a line in ten seconds."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, what: str) -> None:
        if time.monotonic() - self.last > SILENT_S:
            self.last = time.monotonic()
            print(f"kernelworks: autotune: {what}", file=sys.stderr, flush=True)


def autotune(
    program_or_ops: Callable[..., Any] | str | Op | Sequence[str | Op],
    *args: Any,
    again: bool = False,
    budget_s: float = math.inf,
    progress: Progress | None = None,
    expected: Iterable[str] = (),
    device: str = "",
    configs: bool = False,
    kernel: str = "triton",
    cases: Sequence[str] | None = None,
    keep: bool = True,
) -> AutotuneResult:
    """Runs a program once and measures each call signature of ours that it makes: the kernels that are verified here
    against torch's own function, on the call's own tensors. From then on a call takes a kernel of ours if it won.

    A forward is measured as it is. If gradients are wanted, so are forward and backward together, and the backward
    alone (unless it is made with the forward). Ours has to win each by 3% in both halves of the race. A call signature
    with a tuning record of this kind of machine is not measured again, unless ``again`` says so. If an op has no
    verified kernel for a call on this kind of CPU, the first listed is tried on some cases and benchmarked; if it wins,
    it is verified at the end, which takes some seconds a kernel. Cost: the run of the program and about 0.3 s for each
    call signature and pass, until races have taken ``budget_s``. What is met after that takes torch's function.

    The program's answers, gradients and random numbers are what they would have been. It may raise: what was measured
    up to there is kept, and the exception goes on. Calls in other threads, in CUDA graphs that are being captured,
    under a profiler, a mode or a transform are not benchmarked.

    Args:
        program_or_ops: a function, called as ``program_or_ops(*args)``; or an op or several, by name, for the calls
            that ``bench`` times.
        expected: names of ops, ours or torch's functions, that the program is known to call on the CPU. What must be
            compiled for them is compiled beforehand, several at a time.
        device: of the ops' calls, ``cpu`` or ``cuda``; by default the CPU, and the GPU with ``configs``.
        configs, kernel, cases, keep: ``configs`` tries the configurations of the ops' GPU kernel first
            (``autotune_configs``).
    Returns: what was found for each call signature (``print`` it), and where it is kept.
    Raises: ValueError for an op, a kernel or a case that is not there; TypeError for arguments that do not go together.
    """
    if callable(program_or_ops) and not isinstance(program_or_ops, Op):
        if configs or device:
            raise TypeError("device and configs are for ops, got a program")
        with _session(again, progress, budget_s, ops_of(expected)) as session:
            program_or_ops(*args)
        return session.record()
    if args:
        raise TypeError("ops take no arguments: their calls are those that bench times")
    several = [program_or_ops] if isinstance(program_or_ops, (str, Op)) else program_or_ops
    ops = [op if isinstance(op, Op) else op_named(op) for op in several]
    if not configs:
        return autotune_cases(ops, device=device or "cpu", again=again, budget_s=budget_s, progress=progress)
    if device == "cpu":
        raise TypeError("configs are tried on a GPU, got device='cpu'")
    return autotune_configs(ops, kernel, cases=cases, keep=keep, again=again, progress=progress)


def autotune_cases(
    ops: Sequence[Op],
    *,
    device: str = "cpu",
    again: bool = False,
    budget_s: float = math.inf,
    progress: Progress | None = None,
) -> AutotuneResult:
    """``autotune`` for the calls that ``bench`` times of each op, in each dtype; with gradients if the op has them."""
    with _session(again, progress, budget_s, expected=ops if device == "cpu" else ()) as session:
        for op in ops:
            for args in _bench_calls(op, device):
                with torch.set_grad_enabled("backward" in op.passes):
                    op.call(*args)
    return session.record()


def autotune_configs(
    ops: Sequence[Op],
    kernel: str = "triton",
    *,
    cases: Sequence[str] | None = None,
    keep: bool = True,
    again: bool = False,
    progress: Progress | None = None,
) -> AutotuneResult:
    """Tries the configurations that the GPU kernel of each op lists, then measures the ops' calls with the winners.

    Winners go into this user's table for this kind of GPU, and the kernel is verified with them; a table that fails is
    taken back. Both steps run in processes of their own, so that the race times the new table whatever this process has
    called before. This process itself keeps the configurations that it has read.

    Args:
        kernel: the GPU kernel of each op. cases: only these of the contract's ``device_bench_cases``.
        keep: whether winners are written and calls are measured; False only tries and shows.
    Raises: ValueError if an op has no such kernel or case, or lists no configurations; RuntimeError without a GPU, or
        if a process dies.
    """
    for op in ops:
        validate_request(op, kernel, cases)
    tell = progress or _Lines()
    begin = time.perf_counter()
    configs: list[ConfigTuning] = []
    verifications: list[Verification] = []
    with _one_at_a_time:
        for op in ops:
            tried = try_configs_in_worker(op, kernel, cases=cases, keep=keep, progress=tell)
            configs += tried.configs
            verifications += tried.verifications
        if keep:
            result = race_in_worker(ops, device="cuda", again=again, progress=tell)
            tuning_records.reread()
        else:
            seconds = time.perf_counter() - begin
            result = AutotuneResult(kinds=(), threads=torch.get_num_threads(), calls=(), seconds=seconds)
    return replace(result, configs=tuple(configs), verifications=tuple(verifications))


@contextlib.contextmanager
def _session(
    again: bool, progress: Progress | None, budget_s: float = math.inf, expected: Sequence[Op] = ()
) -> Iterator[Session]:
    """One at a time: two races at once would time each other. What is timed of ours is the way in that calls will take,
    so the one in C++ is built first, beside what ``expected`` ops need."""
    tell = progress or _Lines()
    with _one_at_a_time, measuring_alone(tell), background.measuring(tell):
        session = Session(again=again, progress=tell, budget_s=budget_s)
        with concurrent.futures.ThreadPoolExecutor(1) as beside, untimed_section():
            building = beside.submit(native.provide, tell)
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
