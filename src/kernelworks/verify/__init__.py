"""Prove that rows keep the contract on this machine, and certify those that do."""

from __future__ import annotations

import concurrent.futures
import datetime
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from typing import Any

from kernelworks.build import BuildError
from kernelworks.contract import Request, Row
from kernelworks.dispatch import certificates
from kernelworks.dispatch.op import OPS, Op
from kernelworks.machine import environment, has_gpu, kind_of, machine
from kernelworks.records import Parity, Proof
from kernelworks.records.base import Records
from kernelworks.verify import bounds
from kernelworks.verify.confirmation import confirm

__all__ = ["barred", "lacking", "provable", "prove", "prove_missing"]

Progress = Callable[[str], None]
WORKER = (sys.executable, "-m", "kernelworks.verify.worker")


def barred(op: Op, row: Row) -> str | None:
    """Why a row can serve no request on this CPU: an instruction set that it has not."""
    try:
        reason = row.guard(Request(op.name, "forward", {}))
    except (KeyError, AttributeError):  # a guard may look at arguments that a bare request lacks
        return None
    return reason if "this CPU" in (reason or "") else None


def provable(op: Op, names: Collection[str] | None = None) -> tuple[list[Row], dict[str, str]]:
    """The rows of an op (or those of ``names``) that need a certificate and run here, and for the others why they do
    not. Each is built, to know."""
    runs, cannot = [], {}
    for row in op.rows:
        if row.source is None or (names is not None and row.name not in names):
            continue
        if row.device == "cuda" and not has_gpu():
            cannot[row.name] = "runs on a CUDA device, and there is none here"
            continue
        reason = barred(op, row)
        try:
            if reason is None:
                row.load("forward")
        except BuildError as error:
            reason = str(error)
        except (KeyError, AttributeError):
            reason = None
        if reason is None:
            runs.append(row)
        else:
            cannot[row.name] = reason
    return runs, cannot


def lacking(ops: Sequence[Op], row: str = "") -> list[tuple[str, str]]:
    """The rows of ops, as (op, row), that run here and have no certificate that holds: those of this name, or all that
    could be chosen. Each is built, several at a time."""
    named = {
        op: {
            candidate.name for candidate in op.rows
            if (candidate.name == row or (not row and candidate.target != "scalar"))  # which is never chosen
            and certificates.invalid(op.name, candidate) is not None
        }
        for op in ops
    }  # fmt: skip
    with concurrent.futures.ThreadPoolExecutor(machine().cores) as pool:
        able = pool.map(lambda op: provable(op, named[op])[0], named)
        return [(op.name, found.name) for op, rows in zip(named, able, strict=True) for found in rows]


def prove(
    op: str,
    row: str | Sequence[str] | None = None,
    *,
    case: str | None = None,
    dtype: str | None = None,
    progress: Progress | None = None,
    write: bool = True,
    jobs: int | None = None,
) -> Records[Proof]:
    """Proves the rows of an op (or one of them) against float64 and certifies those that pass everything.

    Parity over every case of the contract in every dtype, forward and backward: guard pages on both sides of every
    buffer, poisoned outputs, inputs compared afterwards, strided, offset and transposed views; then determinism, two
    threads at once, other thread counts, a forked child, the contract's bad inputs, and every mutant rejected. Rows of
    a GPU are proved there, with bands of NaN for the pages, the contract's larger device cases, every configuration of
    the tuning table, two streams at once and a graph's replay.

    Args:
        op, row: what to prove, one row or several; without ``row`` every row that runs here.
        case, dtype: only these, to reproduce a failure; nothing is certified then.
        progress: called with a line of text at each step.
        write: whether a certificate is written.
        jobs: processes that share the cases of one row. By default one, and up to eight for a GPU's row, whose time
            goes into compiling.
    Raises: ValueError where there is no such op or row.
    """
    if op not in OPS:
        raise ValueError(f"op must be one of {', '.join(OPS)}, got {op!r}")
    found = OPS[op]
    asked = None if row is None else [found.row(name) for name in ([row] if isinstance(row, str) else row)]
    rows, cannot = provable(found, None if asked is None else {wanted.name for wanted in asked})
    if asked is not None:
        for wanted in asked:
            if wanted.name in cannot:
                raise RuntimeError(f"{op}.{wanted.name} cannot run here: {cannot[wanted.name]}")
        rows = asked
    names = [r.name for r in rows]
    proofs: list[Proof] = []
    shards = jobs or (min(8, max(1, (os.cpu_count() or 1) // 2)) if any(r.device == "cuda" for r in rows) else 1)
    while names:
        done, died = _shared(found, names, case, dtype, progress, shards)
        if done and not (case or dtype):
            _judge_bounds(found, done, progress)
        proofs += [_proof(found, result, partial=bool(case or dtype), write=write) for result in done]
        if died is None:
            break
        proofs.append(_dead(found, *died))
        names = [n for n in names if n != died[0] and n not in {p.row for p in proofs}]
    order = [r.name for r in found.rows]
    return Records(sorted(proofs, key=lambda p: order.index(p.row)))


def prove_missing(rows: Sequence[tuple[str, str]], *, progress: Progress | None = None) -> list[Proof]:
    """Certifies rows, given as (op, row), the quick way where there is one, several at a time.

    What another kind of CPU's certificate speaks for is confirmed (``prove.carried``); the rest is proved from the
    ground up. Rows of one op share a process, so that what is right is computed once for all of them.
    """
    carried = [(op, row) for op, row in rows if certificates.elsewhere(op, OPS[op].row(row)) is not None]
    confirmed = confirm(carried, progress=progress) if carried else []
    done = {(proof.op, proof.row) for proof in confirmed}
    by_op: dict[str, list[str]] = {}
    for op, row in rows:
        if (op, row) not in done:
            by_op.setdefault(op, []).append(row)
    with concurrent.futures.ThreadPoolExecutor(max(1, min(4, machine().cores))) as pool:
        whole = list(pool.map(lambda op: prove(op, by_op[op], progress=progress), by_op))
    return [*confirmed, *(proof for proofs in whole for proof in proofs)]


def _judge_bounds(op: Op, done: list[dict[str, Any]], progress: Progress | None) -> None:
    """Refuses all that was found of an op's rows where a bound of its contract is too loose.

    The rows just tried say how near a right kernel comes. Where that is not near, the op's others for this CPU may.
    Torch's function is asked only of an op that has no row for CPUs, on the cases that it is right on: where it is off
    by some bounds (it rounds in between), one that is wider by a hundred would look tight.
    """
    for inner in sorted({op.row(said["row"]).inner for said in done}):
        those = [said for said in done if op.row(said["row"]).inner == inner]
        shares = bounds.merged(said["shares"] for said in those)
        wrong = bounds.loose(op.contract, shares)
        if wrong:
            own = [row.name for row in provable(op)[0] if row.device == "cpu"] or ["torch"]
            more = [name for name in own if name not in {said["row"] for said in those}]
            tried = _work(op, more, None, None, progress, 0, 1, inner=inner)[0] if more else []
            nearest = bounds.merged((shares, *(said["shares"] for said in tried)))
            wrong = bounds.loose(op.contract, {d: {n: nearest[d][n] for n in outputs} for d, outputs in shares.items()})
        for said in those if wrong else ():
            line = f"python -m kernelworks prove {op.name}.{said['row']}"
            parity = Parity(op.name, said["row"], "check", "bound", "", float("inf"), False, "; ".join(wrong), line)
            said["failures"].append(asdict(parity))
            said["checks"]["bound"] = False


Worked = tuple[list[dict[str, Any]], tuple[str, str, str, str] | None]


def _shared(
    op: Op, rows: list[str], case: str | None, dtype: str | None, progress: Progress | None, shards: int
) -> Worked:
    """``_work`` by several processes: what they found put together, or how the first of them died."""
    with concurrent.futures.ThreadPoolExecutor(shards) as pool:
        jobs = [pool.submit(_work, op, rows, case, dtype, progress, shard, shards) for shard in range(shards)]
        results = [job.result() for job in jobs]
    for found, died in results:
        if died is not None:
            return found if shards == 1 else [], died
    partial = bool(case or dtype)
    return [_joined(op, [found[i] for found, _ in results], partial=partial) for i in range(len(rows))], None


def _joined(op: Op, parts: list[dict[str, Any]], *, partial: bool) -> dict[str, Any]:
    """One row's findings from those of all processes.

    The first of them ran the checks; whether every configuration of a GPU's row was run is known only here.
    """
    worst = max(parts, key=lambda part: part["worst"])
    joined = {
        **parts[0], "cases": sum(part["cases"] for part in parts), "worst": worst["worst"],
        "worst_case": worst["worst_case"], "failures": [f for part in parts for f in part["failures"]],
        "seconds": sum(part["seconds"] for part in parts), "shares": bounds.merged(part["shares"] for part in parts),
        "checks": {name: all(part["checks"].get(name, True) for part in parts) for name in parts[0]["checks"]},
    }  # fmt: skip
    if op.row(joined["row"]).device == "cuda" and not partial:
        missed = set.intersection(*(set(part["missed"]) for part in parts))
        joined["checks"] = {**joined["checks"], "configurations": not missed}
        if missed:
            text = f"no case reaches {'; '.join(sorted(missed))}"
            line = f"python -m kernelworks prove {op.name}.{joined['row']}"
            wrong = Parity(op.name, joined["row"], "check", "configurations", "", float("inf"), False, text, line)
            joined["failures"].append(asdict(wrong))
    return joined


def _work(
    op: Op, rows: list[str], case: str | None, dtype: str | None, progress: Progress | None, shard: int, shards: int,
    inner: str = "",
) -> Worked:  # fmt: skip
    """One worker process: the rows it finished, and (row, case, dtype, how it died) where it did not. With ``inner``
    it tries no more than how near they come to the bounds for such rows."""
    command = [*WORKER, op.name, ",".join(rows), f"--shard={shard}/{shards}"]
    command += [f"--case={case}"] if case is not None else []
    command += [f"--dtype={dtype}"] if dtype is not None else []
    command += [f"--bounds={inner}"] if inner else []
    finished: list[dict[str, Any]] = []
    at = [rows[0], "start", ""]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment.beside_others()
    ) as worker:
        assert worker.stdout is not None and worker.stderr is not None
        for line in worker.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                continue  # something printed by a library
            if "at" in said:
                at = said["at"]
                if progress:
                    progress(f"{op.name}.{at[0]} {at[1]} {at[2]}".strip())
            else:
                finished.append(said)
        errors = worker.stderr.read()
    if worker.returncode == 0:
        return finished, None
    last = f": {errors.strip()[-2000:]}" if errors.strip() else ""
    if worker.returncode < 0:
        how = f"killed by {signal.Signals(-worker.returncode).name}{last}"
    else:
        how = f"the worker exited with {worker.returncode}{last}"
    return finished, (at[0], at[1], at[2], how)


def _proof(op: Op, said: dict[str, Any], *, partial: bool, write: bool) -> Proof:
    failures = tuple(Parity(**f) for f in said["failures"])
    right = not failures and said["cases"] > 0 and not partial and all(said["checks"].values())
    row = op.row(said["row"])
    certified = right and write and row.source is not None
    kind = kind_of(row.device)
    if certified:
        certificates.write(
            certificates.Certificate(
                op=op.name, row=row.name, source_hash=row.hash(), toolchain=row.toolchain(), kind=kind,
                cases=said["cases"], worst=said["worst"], mutants_rejected=said["rejected"],
                date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"), worst_by_dtype=said["shares"],
            )
        )  # fmt: skip
    return Proof(
        op=op.name, row=row.name, kind=kind, cases=said["cases"], worst=said["worst"], worst_case=said["worst_case"],
        failures=failures, mutants_rejected=said["rejected"], mutants=said["mutants"],
        checks={"parity": not any(f.pass_ != "check" for f in failures), **said["checks"]},
        seconds=said["seconds"], certified=certified, worst_by_dtype=said["shares"],
    )  # fmt: skip


def _dead(op: Op, row: str, case: str, dtype: str, how: str) -> Proof:
    line = f"python -m kernelworks prove {op.name}.{row} --case '{case}' --dtype {dtype}"
    failure = Parity(op.name, row, "forward", case, dtype, float("inf"), False, how, line)
    return Proof(
        op=op.name, row=row, kind=kind_of(op.row(row).device), cases=0, worst=float("inf"), worst_case=case,
        failures=(failure,), mutants_rejected=0, mutants=len(op.mutants), checks={"survived": False}, seconds=0.0,
        certified=False,
    )  # fmt: skip
