"""What a verification tries beyond parity.

A kernel must give the same answer again, from two threads at once, on other thread counts and after a fork; on a GPU
also from two streams at once and replayed from a graph. Bad input must raise before anything is written, and the
comparison must reject every mutant.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import FLOATS, Case, Mutant
from kernelworks.contract.ranks import ranks_of
from kernelworks.dispatch.mutation import results_of
from kernelworks.dispatch.op import Op
from kernelworks.machine.child_process import wait_unless_stuck
from kernelworks.verify.parity import judge
from kernelworks.verify.ranks import rank_references
from kernelworks.verify.reference import Reference, compute_reference, copy_tensors, device_of, flat_outputs

__all__ = ["CHECKS", "bad_inputs", "checks_for", "surviving_mutants"]

BIGGEST = 2  # how many of the op's largest cases the repeated runs use


@functools.lru_cache(1)
def _large_cases(op: Op, kernel: str) -> list[Reference]:
    """The op's largest cases that the kernel takes; a kernel for an accelerator that takes none of them is tried on the
    first larger ones that it takes."""

    def size(case: Case) -> int:
        made = case.make(torch.Generator().manual_seed(0), torch.float32)
        return sum(t.numel() for t in flat_outputs(list(made.values())) if isinstance(t, Tensor))

    usable = sorted((c for c in op.contract.cases if torch.float32 in c.dtypes), key=size, reverse=True)
    found = _taken(op, kernel, usable)[::-1] or _taken(op, kernel, op.contract.device_cases)
    if not found:
        raise ValueError(f"{op.name}.{kernel} takes none of the contract's cases: there is nothing to verify it on")
    return found


def _taken(op: Op, kernel: str, cases: Iterable[Case]) -> list[Reference]:
    """The first cases that the kernel takes, each in the first of float32, bfloat16, float16 that it takes."""
    device = device_of(op, kernel)
    found: list[Reference] = []
    for case in cases:
        for dtype in (d for d in FLOATS if d in case.dtypes):
            expected = compute_reference(op, case, dtype, 0, device, op.kernel(kernel).inner)
            if not op.kernel(kernel).guard(op.request("forward", expected.positional(op))):
                found.append(expected)
                break
        if len(found) == BIGGEST:
            break
    return found


def _run(op: Op, kernel: str, expected: Reference) -> list[Tensor]:
    """Outputs on fresh copies of the inputs (an op in place changes what it is given)."""
    return _call(op, kernel, [copy_tensors(a) for a in expected.positional(op)])


def _call(op: Op, kernel: str, args: list[Any]) -> list[Tensor]:
    with torch.no_grad():
        result = results_of(op, op(*args, kernel=kernel), args)
    return [t for t in flat_outputs(result) if isinstance(t, Tensor)]


def _equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(bool(((x == y) | (x.isnan() & y.isnan())).all()) for x, y in zip(a, b, strict=True))


def _deterministic(op: Op, kernel: str) -> str:
    for expected in _large_cases(op, kernel):
        first = _run(op, kernel, expected)
        if not all(_equal(first, _run(op, kernel, expected)) for _ in range(3)):
            return "two runs on the same input differ"
    return ""


def _two_threads(op: Op, kernel: str) -> str:
    expected = _large_cases(op, kernel)
    alone = [_run(op, kernel, e) for e in expected]
    failures: list[str] = []

    def work(i: int) -> None:
        for _ in range(8):
            if not _equal(alone[i], _run(op, kernel, expected[i])):
                failures.append("another answer while a second thread was calling")
                return

    workers = [threading.Thread(target=work, args=(i % len(expected),)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return failures[0] if failures else ""


def _thread_counts(op: Op, kernel: str) -> str:
    before = torch.get_num_threads()
    try:
        for count in (1, 3, 2):
            torch.set_num_threads(count)
            for expected in _large_cases(op, kernel):
                _, message = judge(_run(op, kernel, expected), expected)
                if message:
                    return f"on {count} threads: {message}"
    finally:
        torch.set_num_threads(before)
    return ""


def _after_fork(op: Op, kernel: str) -> str:
    expected = _large_cases(op, kernel)[-1]
    _run(op, kernel, expected)  # the parent's thread pool exists now
    args = [copy_tensors(a) for a in expected.positional(op)]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            # torch's own parallel loops hang in a forked child, so nothing but our call may start one.
            torch.use_deterministic_algorithms(False)
            result = _call(op, kernel, args)
            torch.set_num_threads(1)
            code = 0 if not judge(result, expected)[1] else 2
        finally:
            os._exit(code)
    status = wait_unless_stuck(child)
    if status is None:
        return "a forked child waits for what never comes"
    return "" if status == 0 else "wrong in a forked child"


def _two_streams(op: Op, kernel: str) -> str:
    expected = _large_cases(op, kernel)
    alone = [_run(op, kernel, e) for e in expected]
    streams = [torch.cuda.Stream() for _ in expected]
    torch.cuda.synchronize()
    found: list[list[list[Tensor]]] = [[] for _ in expected]
    for _ in range(8):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                found[i].append(_run(op, kernel, expected[i]))
    torch.cuda.synchronize()
    right = all(_equal(alone[i], run) for i, runs in enumerate(found) for run in runs)
    return "" if right else "another answer while a second stream was running"


def _graph_replay(op: Op, kernel: str) -> str:
    """Captured in a CUDA graph on other values, then replayed on the case's."""
    expected = _large_cases(op, kernel)[-1]
    want = _run(op, kernel, expected)
    args = [copy_tensors(a) for a in expected.positional(op)]
    kept = [copy_tensors(a) for a in args]

    def restore() -> None:
        for target, value in zip(flat_outputs(args), flat_outputs(kept), strict=True):
            if isinstance(target, Tensor):
                target.copy_(value)

    _call(op, kernel, args)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = _call(op, kernel, args)
    restore()
    graph.replay()
    torch.cuda.synchronize()
    return "" if _equal(want, got) else "another answer when replayed from a graph"


CHECKS: dict[str, Callable[[Op, str], str]] = {
    "deterministic": _deterministic,
    "two_threads": _two_threads,
    "thread_counts": _thread_counts,
    "after_fork": _after_fork,
}
GPU_CHECKS: dict[str, Callable[[Op, str], str]] = {
    "deterministic": _deterministic,
    "two_threads": _two_threads,
    "two_streams": _two_streams,
    "graph_replay": _graph_replay,
}


def checks_for(op: Op, kernel: str) -> dict[str, Callable[[Op, str], str]]:
    """What a kernel is tried on beyond parity, by name."""
    return GPU_CHECKS if op.kernel(kernel).device == "cuda" else CHECKS


def bad_inputs(op: Op, kernel: str, public: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """(description, what went wrong or "") for every call of the contract's ``errors``.

    The kernel is asked by name: what is chosen by itself may be torch's function, with torch's words. A kernel for an
    accelerator is not asked about an index out of range, since it does not look at values, which would mean waiting;
    all else is refused before a kernel is chosen.
    """
    on_cpu = op.kernel(kernel).device == "cpu"
    for description, make, kind, text in op.contract.errors:
        if kind is IndexError and not on_cpu:
            continue
        try:
            public(**make(), kernel=kernel if on_cpu else None)
        except kind as error:
            wrong = "" if text in str(error) else f"{description}: the message {str(error)!r} does not say {text!r}"
        except Exception as error:
            wrong = f"{description}: raised {type(error).__name__}, expected {kind.__name__}"
        else:
            wrong = f"{description}: accepted"
        yield description, wrong


def _rejects(op: Op, mutant: Mutant, expected: Reference) -> bool:
    args = [copy_tensors(a) for a in expected.positional(op)]
    try:
        result = mutant.run(*args)
    except Exception:
        return False
    if result is None or len(flat_outputs(result)) < len(expected.outputs):
        result = results_of(op, result, args)  # it wrote to its arguments, as a kernel does
    return bool(judge(result, expected)[1])


def surviving_mutants(op: Op) -> list[str]:
    """The known-wrong versions that no case rejects. Must be empty: else the verification verifies nothing. Within the
    wider bounds of kernels that only some calls allow they must be rejected too, but for those that are right there."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # hundreds of small operators: waking another thread takes longer than each
    try:
        found = _surviving(op, op.mutants, "float32")
        for inner in op.contract.permits:
            wrong = [m for m in op.mutants if m.right_within != inner and m.name not in found]
            found += [f"{name} ({inner})" for name in _surviving(op, wrong, inner)]
        return found
    finally:
        torch.set_num_threads(threads)


def _surviving(op: Op, mutants: Iterable[Mutant], inner: str) -> list[str]:
    surviving = list(mutants)
    argument, value = op.contract.permits.get(inner, ("", ""))
    with torch.no_grad():
        for case in op.contract.cases:
            for dtype in case.dtypes:
                if not surviving:
                    return []
                if ranks_of(op.contract):  # whose mutants take all ranks' tensors
                    for expected in rank_references(op, case, dtype):
                        surviving = [m for m in surviving if not _rejects(op, m, expected)]
                    continue
                expected = compute_reference(op, case, dtype, inner=inner)  # once for all: it is what takes the time
                if argument and expected.args.get(argument) != value:
                    break
                surviving = [m for m in surviving if not _rejects(op, m, expected)]
    return [m.name for m in surviving]
