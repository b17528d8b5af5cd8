"""Confirm on this kind of CPU what was verified on another: a few cases of every kernel, in a process of its own.

A kernel that was verified on another kind of CPU runs the same instructions here, and those give the same results
(``Kernel.differs``). What can still be different is this machine's: its loader, its C library, its count of cores, what
its operating system lets a process do. Some cases of each dtype, spread over the contract's, in guarded memory, forward
and backward, show that the kernel works here; that takes less than a second a kernel beside its compilation. Run as a
program (``python -m kernelworks.verify.confirmation OP.KERNEL ...``) it is the worker, and speaks as the one of
``verify`` does.
"""

from __future__ import annotations

import concurrent.futures
import datetime
import itertools
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernelworks.contract import Case
from kernelworks.dispatch import certificates
from kernelworks.dispatch.op import OPS, Op
from kernelworks.machine import environment, machine
from kernelworks.records import Parity, Verification, to_json
from kernelworks.records.json_text import json_messages
from kernelworks.verify.bounds import Shares, merge_shares
from kernelworks.verify.guarded_buffers import poisoned_memory
from kernelworks.verify.parity import parities

__all__ = ["confirm"]

Progress = Callable[[str], None]
CASES = 4  # of a contract's, evenly spread


def confirm(
    kernels: Sequence[tuple[str, str]], *, progress: Progress | None = None, most_s: float = math.inf
) -> list[Verification]:
    """Confirms kernels, given as (op, kernel), that another kind of CPU's certificate speaks for, and certifies them
    here.

    A kernel with an element off is refused: its verification holds the failures. One that is missing from the result
    did not come to its end, as when a worker died or ``most_s`` were over: it wants the whole verification.
    """
    shares = [kernels[i :: _processes()] for i in range(_processes())]
    number = itertools.count(1)

    def say(kernel: str) -> None:
        if progress:
            progress(f"confirming {kernel}, {next(number)} of {len(kernels)}")

    with concurrent.futures.ThreadPoolExecutor(len(shares)) as pool:
        found = list(pool.map(lambda share: _worked(share, say, most_s), shares))
    done = {name: verification for verifications in found for name, verification in verifications.items()}
    return [done[name] for name in (f"{op}.{kernel}" for op, kernel in kernels) if name in done]


def _processes() -> int:
    return max(1, min(4, machine().cores))


def _worked(kernels: Sequence[tuple[str, str]], say: Callable[[str], None], most_s: float) -> dict[str, Verification]:
    """What one worker finished within its time. It may die of a kernel: those before it count."""
    done: dict[str, Verification] = {}
    if not kernels:
        return done
    command = [sys.executable, "-m", "kernelworks.verify.confirmation", *(f"{op}.{kernel}" for op, kernel in kernels)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment.passive_wait_variables()
    ) as worker:
        assert worker.stdout is not None
        over = threading.Timer(most_s, worker.kill) if most_s < math.inf else None
        if over is not None:
            over.start()
        try:
            for said in json_messages(worker.stdout):
                if "at" in said:
                    say(said["at"])
                else:
                    done[f"{said['op']}.{said['kernel']}"] = _verification(said)
        finally:
            if over is not None:
                over.cancel()
    return done


def _verification(said: dict[str, Any]) -> Verification:
    op = OPS[said["op"]]
    kernel = op.kernel(said["kernel"])
    failures = tuple(Parity(**f) for f in said["failures"])
    held = certificates.transferable_certificate(op.name, kernel)
    right = held is not None and not failures and said["cases"] > 0
    if held is not None and right:
        certificates.write(
            certificates.Certificate(
                op=op.name, kernel=kernel.name, source_hash=held.source_hash, toolchain=held.toolchain,
                kind=machine().kind, cases=said["cases"], worst=said["worst"], mutants_rejected=held.mutants_rejected,
                date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"), verified_on=held.kind,
                worst_by_dtype=said["shares"],
            )
        )  # fmt: skip
    return Verification(
        op=op.name, kernel=kernel.name, kind=machine().kind, cases=said["cases"], worst=said["worst"],
        worst_case=said["worst_case"], failures=failures, mutants_rejected=0, mutants=0,
        checks={"verified_elsewhere": held is not None}, seconds=said["seconds"], certified=right,
        verified_on=held.kind if held else "", worst_by_dtype=said["shares"],
    )  # fmt: skip


# ---------------------------------------------------------------- the worker


def _spread(cases: Sequence[Case]) -> list[Case]:
    """Some of the cases, the first and the last among them."""
    count = min(CASES, len(cases))
    return [cases[i * (len(cases) - 1) // max(count - 1, 1)] for i in range(count)]


def _confirmed(op: Op, kernel: str) -> dict[str, Any]:
    started, cases, worst, worst_case = time.perf_counter(), 0, 0.0, ""
    failures: list[Parity] = []
    shares: Shares = {}
    for case in _spread(op.contract.cases):
        for dtype in case.dtypes:
            for parity in parities(op, kernel, case, dtype):
                cases += 1
                shares = merge_shares((shares, {parity.dtype: parity.shares}))
                if parity.worst > worst:
                    worst, worst_case = parity.worst, f"{parity.pass_} {parity.case} {parity.dtype}"
                if not parity.ok:
                    failures.append(parity)
    return {
        "op": op.name, "kernel": kernel, "cases": cases, "worst": worst, "worst_case": worst_case,
        "shares": shares, "failures": json.loads(to_json(failures)), "seconds": time.perf_counter() - started,
    }  # fmt: skip


def main() -> None:
    import kernelworks.ops  # noqa: F401  fills OPS

    poisoned_memory()
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    for name in sys.argv[1:]:
        op, _, kernel = name.partition(".")
        print(json.dumps({"at": name}), flush=True)
        print(json.dumps(_confirmed(OPS[op], kernel)), flush=True)


if __name__ == "__main__":
    main()
