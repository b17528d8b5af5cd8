"""What a proof tries beyond parity: the same answer again, from two threads at once, on other thread counts, after a
fork; that bad input raises before anything is written; and that the judge rejects every mutant."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Case, Mutant
from kernelworks.dispatch import Op
from kernelworks.prove.parity import judge
from kernelworks.prove.truth import Truth, copied, flat_outputs, truth

__all__ = ["CHECKS", "bad_inputs", "surviving_mutants"]

BIGGEST = 2  # how many of the op's largest cases the repeated runs use
FORK_SECONDS = 20


def _large_cases(op: Op) -> list[Case]:
    def size(case: Case) -> int:
        return sum(t.numel() for t in flat_outputs(list(_args(op, case).args.values())) if isinstance(t, Tensor))

    usable = [c for c in op.contract.cases if torch.float32 in c.dtypes]
    return sorted(usable, key=size)[-BIGGEST:]


def _args(op: Op, case: Case) -> Truth:
    return truth(op, case, torch.float32)


def _run(op: Op, row: str, expected: Truth) -> list[Tensor]:
    """Outputs on fresh copies of the inputs (an op in place changes what it is given)."""
    return _call(op, row, [copied(a) for a in expected.positional(op)])


def _call(op: Op, row: str, args: list[Any]) -> list[Tensor]:
    names = op.passes["forward"].names
    with torch.no_grad():
        result = op(*args, row=row)
    if op.contract.mutates:
        result = [args[names.index(n)] for n in op.contract.mutates]
    return [t for t in flat_outputs(result) if isinstance(t, Tensor)]


def _equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(bool(((x == y) | (x.isnan() & y.isnan())).all()) for x, y in zip(a, b, strict=True))


def _deterministic(op: Op, row: str) -> str:
    for case in _large_cases(op):
        expected = _args(op, case)
        first = _run(op, row, expected)
        if not all(_equal(first, _run(op, row, expected)) for _ in range(3)):
            return f"{case.name}: two runs on the same input differ"
    return ""


def _two_threads(op: Op, row: str) -> str:
    expected = [_args(op, case) for case in _large_cases(op)]
    alone = [_run(op, row, e) for e in expected]
    failures: list[str] = []

    def work(i: int) -> None:
        for _ in range(8):
            if not _equal(alone[i], _run(op, row, expected[i])):
                failures.append(f"{_large_cases(op)[i].name}: another answer while a second thread was calling")
                return

    workers = [threading.Thread(target=work, args=(i % len(expected),)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return failures[0] if failures else ""


def _thread_counts(op: Op, row: str) -> str:
    before = torch.get_num_threads()
    try:
        for count in (1, 3, 2):
            torch.set_num_threads(count)
            for case in _large_cases(op):
                expected = _args(op, case)
                _, message = judge(_run(op, row, expected), expected)
                if message:
                    return f"{case.name} on {count} threads: {message}"
    finally:
        torch.set_num_threads(before)
    return ""


def _after_fork(op: Op, row: str) -> str:
    expected = _args(op, _large_cases(op)[-1])
    _run(op, row, expected)  # the parent's thread pool exists now
    args = [copied(a) for a in expected.positional(op)]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            # torch's own parallel loops hang in a forked child, so nothing but our call may start one.
            torch.use_deterministic_algorithms(False)
            result = _call(op, row, args)
            torch.set_num_threads(1)
            code = 0 if not judge(result, expected)[1] else 2
        finally:
            os._exit(code)
    waited: list[int] = []
    waiter = threading.Thread(target=lambda: waited.append(os.waitpid(child, 0)[1]), daemon=True)
    waiter.start()
    waiter.join(FORK_SECONDS)
    if not waited:
        os.kill(child, 9)
        return f"a forked child did not answer within {FORK_SECONDS} s"
    return "" if waited[0] == 0 else "wrong in a forked child"


CHECKS: dict[str, Callable[[Op, str], str]] = {
    "deterministic": _deterministic,
    "two_threads": _two_threads,
    "thread_counts": _thread_counts,
    "after_fork": _after_fork,
}


def bad_inputs(op: Op, public: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """(description, what went wrong or "") for every call of the contract's ``errors``."""
    for description, make, kind, text in op.contract.errors:
        try:
            public(**make())
        except kind as error:
            wrong = "" if text in str(error) else f"{description}: the message {str(error)!r} does not say {text!r}"
        except Exception as error:
            wrong = f"{description}: raised {type(error).__name__}, expected {kind.__name__}"
        else:
            wrong = f"{description}: accepted"
        yield description, wrong


def _rejected(op: Op, mutant: Mutant) -> bool:
    for case in op.contract.cases:
        for dtype in case.dtypes:
            expected = truth(op, case, dtype)
            args = [copied(a) for a in expected.positional(op)]
            try:
                result = mutant.run(*args)
            except Exception:
                continue
            if op.contract.mutates and result is None:
                names = op.passes["forward"].names
                result = [args[names.index(n)] for n in op.contract.mutates]
            if judge(result, expected)[1]:
                return True
    return False


def surviving_mutants(op: Op) -> list[str]:
    """The known-wrong versions that no case rejects. Must be empty: else the proof proves nothing."""
    with torch.no_grad():
        return [m.name for m in op.mutants if not _rejected(op, m)]
