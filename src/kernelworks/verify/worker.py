"""Verifies kernels in a process of its own, because a kernel that reads past its buffers dies instead of answering.

Writes one JSON object a line: ``{"at": [kernel, case, dtype]}`` before each step, ``{"kernel": ..., ...}`` when a
kernel is done. The parent (``kernelworks.verify``) reads them and knows what was running if the process dies.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from typing import Any

import torch

from kernelworks.build.configs import configs
from kernelworks.contract import Case
from kernelworks.dispatch.op import OPS, Op
from kernelworks.records import Parity, to_json
from kernelworks.verify.bounds import Shares, accepted_errors, merge_shares, shares_of
from kernelworks.verify.checks import bad_inputs, checks_for, surviving_mutants
from kernelworks.verify.guarded_buffers import poisoned_memory
from kernelworks.verify.parity import parities
from kernelworks.verify.ranks import checks_of_ranks, rank_parities, rank_references
from kernelworks.verify.reference import compute_reference, device_of

__all__ = ["main"]

MOST_FAILURES = 20  # kept per kernel; the count goes on


class _Tally:
    """What is known of one kernel so far."""

    def __init__(self, kernel: str) -> None:
        self.kernel, self.cases, self.worst, self.worst_case = kernel, 0, 0.0, ""
        self.failures: list[Parity] = []
        self.checks: dict[str, bool] = {}
        self.seconds = 0.0
        self.shares: Shares = {}  # of the bound, the largest by dtype and output

    def add(self, parity: Parity) -> None:
        self.cases += 1
        if parity.worst > self.worst:
            self.worst, self.worst_case = parity.worst, f"{parity.pass_} {parity.case} {parity.dtype}"
        self.shares = merge_shares((self.shares, {parity.dtype: parity.shares}))
        if not parity.ok and len(self.failures) < MOST_FAILURES:
            self.failures.append(parity)

    def check(self, op: Op, name: str, wrong: str) -> None:
        self.checks[name] = not wrong
        if wrong:
            line = f"python -m kernelworks verify {op.name}.{self.kernel}"
            self.failures.append(Parity(op.name, self.kernel, "check", name, "", float("inf"), False, wrong, line))


def _say(**what: Any) -> None:
    print(to_json(what, line=True), flush=True)


def _verify_cases(
    op: Op, kernels: list[str], only_case: str | None, only_dtype: str | None, shard: str
) -> list[_Tally]:
    mine, of = (int(number) for number in shard.split("/"))
    turn = -1
    tallies = [_Tally(kernel) for kernel in kernels]
    on_gpu = {t.kernel for t in tallies if op.kernel(t.kernel).device == "cuda"}
    device_cases = op.contract.device_cases if on_gpu else ()
    if (
        on_gpu and configs(op.op_package / "tuning.toml").user_entries
    ):  # this user's entries are for sizes that bench times
        device_cases += op.contract.device_bench_cases
    for case in (*op.contract.cases, *device_cases):
        if only_case is not None and case.name != only_case:
            continue
        for dtype in case.dtypes:
            name = str(dtype).removeprefix("torch.")
            if only_dtype is not None and name != only_dtype:
                continue
            turn += 1
            if turn % of != mine:
                continue
            for tally in tallies:
                if case in device_cases and tally.kernel not in on_gpu:
                    continue
                _say(at=[tally.kernel, case.name, name])
                started = time.perf_counter()
                found = parities(op, tally.kernel, case, dtype)
                for parity in itertools.chain(found, rank_parities(op, tally.kernel, case, dtype)):
                    tally.add(parity)
                tally.seconds += time.perf_counter() - started
            _judge_the_bound(op, tallies, case, dtype, turn)
    return tallies


def _judge_the_bound(op: Op, tallies: list[_Tally], case: Case, dtype: torch.dtype, turn: int) -> None:
    """Answers that leave the bound, put to the comparison that has just passed the kernels' own."""
    asked: dict[tuple[str, str], list[_Tally]] = {}
    for tally in tallies:
        asked.setdefault((device_of(op, tally.kernel), op.kernel(tally.kernel).inner), []).append(tally)
    for (device, inner), those in asked.items():
        if case in op.contract.device_bench_cases or (device == "cpu" and case not in op.contract.cases):
            continue
        expected, threads = compute_reference(op, case, dtype, 0, device, inner), torch.get_num_threads()
        torch.set_num_threads(1)  # small operators: waking another thread takes longer than each
        try:
            passed = [
                p for its in (expected, *rank_references(op, case, dtype)) for p in accepted_errors(op, its, turn)
            ]
        finally:
            torch.set_num_threads(threads)
        for tally in those if passed else ():
            if tally.checks.get("bound", True):  # the first such case says enough
                tally.check(op, "bound", f"{case.name} {dtype}: let pass: {'; '.join(passed[:3])}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("op")
    parser.add_argument("kernels")
    parser.add_argument("--case")
    parser.add_argument("--dtype")
    parser.add_argument("--shard", default="0/1", help="which part of the cases, of how many")
    parser.add_argument("--bounds", help="no more than how near the kernels come to the bounds for such kernels")
    args = parser.parse_args()
    from kernelworks import ops  # fills OPS

    poisoned_memory()
    # A bound is float32's. cuDNN takes TF32 by default, and a state that torch leaves is what a kernel goes on from.
    torch.backends.cudnn.allow_tf32 = False
    op = OPS[args.op]
    if args.bounds:
        for kernel in args.kernels.split(","):
            _say(kernel=kernel, shares=shares_of(op, kernel, op.contract.cases, args.bounds))
        return
    if not args.shard.endswith("/1"):
        torch.set_num_threads(2)  # processes beside this one need the cores too
    tallies = _verify_cases(op, args.kernels.split(","), args.case, args.dtype, args.shard)
    survivors: list[str] = []
    if args.case is None and args.dtype is None and args.shard.startswith("0/"):
        survivors = surviving_mutants(op)
        for tally in tallies:
            for name, check in {**checks_for(op, tally.kernel), **checks_of_ranks(op)}.items():
                _say(at=[tally.kernel, name, ""])
                tally.check(op, name, check(op, tally.kernel))
            wrong = [wrong for _, wrong in bad_inputs(op, tally.kernel, getattr(ops, op.name)) if wrong]
            tally.check(op, "bad_inputs", wrong[0] if wrong else "")
            tally.check(op, "mutants", f"no case rejects {', '.join(survivors)}" if survivors else "")
    for tally in tallies:
        tally.checks.setdefault("bound", True)
        _say(
            kernel=tally.kernel,
            cases=tally.cases,
            worst=tally.worst,
            worst_case=tally.worst_case,
            failures=json.loads(to_json(tally.failures)),
            checks=tally.checks,
            mutants=len(op.mutants),
            rejected=len(op.mutants) - len(survivors),
            seconds=tally.seconds,
            shares=tally.shares,
            missed=_missed_entries(op, tally.kernel),
        )


def _missed_entries(op: Op, kernel: str) -> list[str]:
    """The configurations that no case has picked. An op of a table may have no launch of some of its kernels."""
    unlaunched = getattr(op.template, "unlaunched_kernels", ())
    unused = configs(op.op_package / "tuning.toml").unused_entries(kernel)
    return [entry for entry in unused if entry.split()[0] not in unlaunched]


if __name__ == "__main__":
    main()
