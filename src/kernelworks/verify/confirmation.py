"""Carry a proof over to this kind of CPU: the same library, a few cases of every row, in a process of its own.

A row that was proved on another kind of CPU runs the same instructions here, and those give the same results
(``Row.differs``). What can still be different is this machine's: its loader, its C library, its count of cores, what
its operating system lets a process do. Some cases of each dtype, spread over the contract's, in guarded memory, forward
and backward, show that the row works here; that takes less than a second a row beside its compilation. Run as a program
(``python -m kernelworks.verify.confirmation OP.ROW ...``) it is the worker, and speaks as the one of ``prove`` does.
"""

from __future__ import annotations

import concurrent.futures
import datetime
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernelworks.contract import Case
from kernelworks.dispatch import certificates
from kernelworks.dispatch.op import OPS, Op
from kernelworks.machine import environment, machine
from kernelworks.records import Parity, Proof, to_json
from kernelworks.verify.bounds import Shares, merged
from kernelworks.verify.guarded_buffers import poisoned_memory
from kernelworks.verify.parity import parities

__all__ = ["confirm"]

Progress = Callable[[str], None]
CASES = 4  # of a contract's, evenly spread


def confirm(rows: Sequence[tuple[str, str]], *, progress: Progress | None = None) -> list[Proof]:
    """Confirms rows, given as (op, row), that another kind of CPU's certificate speaks for, and certifies them here.

    A row with an element off is refused: its proof holds the failures. One that is missing from the result did not come
    to its end, as when a worker died: it wants the whole proof.
    """
    shares = [rows[i :: _processes()] for i in range(_processes())]
    with concurrent.futures.ThreadPoolExecutor(len(shares)) as pool:
        found = list(pool.map(lambda share: _worked(share, progress), shares))
    done = {name: proof for proofs in found for name, proof in proofs.items()}
    return [done[name] for name in (f"{op}.{row}" for op, row in rows) if name in done]


def _processes() -> int:
    return max(1, min(4, machine().cores))


def _worked(rows: Sequence[tuple[str, str]], progress: Progress | None) -> dict[str, Proof]:
    """What one worker finished. It may die of a row: those before it count."""
    done: dict[str, Proof] = {}
    if not rows:
        return done
    command = [sys.executable, "-m", "kernelworks.verify.confirmation", *(f"{op}.{row}" for op, row in rows)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment.beside_others()
    ) as worker:
        assert worker.stdout is not None
        for line in worker.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                continue  # something printed by a library
            if "at" in said:
                if progress:
                    progress(f"confirming {said['at']}")
            else:
                done[f"{said['op']}.{said['row']}"] = _proof(said)
    return done


def _proof(said: dict[str, Any]) -> Proof:
    op = OPS[said["op"]]
    row = op.row(said["row"])
    failures = tuple(Parity(**f) for f in said["failures"])
    held = certificates.elsewhere(op.name, row)
    right = held is not None and not failures and said["cases"] > 0
    if held is not None and right:
        certificates.write(
            certificates.Certificate(
                op=op.name, row=row.name, source_hash=held.source_hash, toolchain=held.toolchain, kind=machine().kind,
                cases=said["cases"], worst=said["worst"], mutants_rejected=held.mutants_rejected,
                date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"), proved_on=held.kind,
                worst_by_dtype=said["shares"],
            )
        )  # fmt: skip
    return Proof(
        op=op.name, row=row.name, kind=machine().kind, cases=said["cases"], worst=said["worst"],
        worst_case=said["worst_case"], failures=failures, mutants_rejected=0, mutants=0,
        checks={"proved_elsewhere": held is not None}, seconds=said["seconds"], certified=right,
        proved_on=held.kind if held else "", worst_by_dtype=said["shares"],
    )  # fmt: skip


# ---------------------------------------------------------------- the worker


def _spread(cases: Sequence[Case]) -> list[Case]:
    """Some of the cases, the first and the last among them."""
    count = min(CASES, len(cases))
    return [cases[i * (len(cases) - 1) // max(count - 1, 1)] for i in range(count)]


def _confirmed(op: Op, row: str) -> dict[str, Any]:
    started, cases, worst, worst_case = time.perf_counter(), 0, 0.0, ""
    failures: list[Parity] = []
    shares: Shares = {}
    for case in _spread(op.contract.cases):
        for dtype in case.dtypes:
            for parity in parities(op, row, case, dtype):
                cases += 1
                shares = merged((shares, {parity.dtype: parity.shares}))
                if parity.worst > worst:
                    worst, worst_case = parity.worst, f"{parity.pass_} {parity.case} {parity.dtype}"
                if not parity.ok:
                    failures.append(parity)
    return {
        "op": op.name, "row": row, "cases": cases, "worst": worst, "worst_case": worst_case,
        "shares": shares, "failures": json.loads(to_json(failures)), "seconds": time.perf_counter() - started,
    }  # fmt: skip


def main() -> None:
    import kernelworks.ops  # noqa: F401  fills OPS

    poisoned_memory()
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    for name in sys.argv[1:]:
        op, _, row = name.partition(".")
        print(json.dumps({"at": name}), flush=True)
        print(json.dumps(_confirmed(OPS[op], row)), flush=True)


if __name__ == "__main__":
    main()
