"""Verify that kernels keep the contract on this machine, and certify those that do."""

from __future__ import annotations

import concurrent.futures
import datetime
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from typing import Any

from kernelworks.build import BuildError, background
from kernelworks.contract import Kernel, Request
from kernelworks.dispatch import certificates
from kernelworks.dispatch.op import OPS, Op
from kernelworks.machine import environment, has_gpu, kind_of, machine
from kernelworks.records import Parity, Verification
from kernelworks.records.base import Records
from kernelworks.records.json_text import json_messages
from kernelworks.verify import bounds
from kernelworks.verify.confirmation import confirm

__all__ = ["lacking", "unsupported_reason", "verifiable_kernels", "verify_missing", "verify"]

Progress = Callable[[str], None]
WORKER = (sys.executable, "-m", "kernelworks.verify.worker")


def unsupported_reason(op: Op, kernel: Kernel) -> str | None:
    """Why a kernel can serve no request on this CPU: an instruction set that it has not."""
    try:
        reason = kernel.guard(Request(op.name, "forward", {}))
    except (KeyError, AttributeError):  # a guard may look at arguments that a bare request lacks
        return None
    return reason if "this CPU" in (reason or "") else None


def verifiable_kernels(op: Op, names: Collection[str] | None = None) -> tuple[list[Kernel], dict[str, str]]:
    """The kernels of an op (or those of ``names``) that need a certificate and run here, and for the others why they do
    not. Each is built, to know."""
    runs, cannot = [], {}
    for kernel in op.kernels:
        if kernel.source is None or (names is not None and kernel.name not in names):
            continue
        if kernel.device == "cuda" and not has_gpu():
            cannot[kernel.name] = "runs on a CUDA device, and there is none here"
            continue
        reason = unsupported_reason(op, kernel)
        try:
            if reason is None:
                kernel.load("forward")
        except BuildError as error:
            reason = str(error)
        except (KeyError, AttributeError):
            reason = None
        if reason is None:
            runs.append(kernel)
        else:
            cannot[kernel.name] = reason
    return runs, cannot


def lacking(ops: Sequence[Op], kernel: str = "") -> list[tuple[str, str]]:
    """The kernels of ops, as (op, kernel), that run here and have no certificate that holds: those of this name, or all
    that could be chosen. Each is built, several at a time."""
    named = {
        op: {
            candidate.name for candidate in op.kernels
            if (candidate.name == kernel or (not kernel and candidate.target != "scalar"))  # which is never chosen
            and certificates.invalid_reason(op.name, candidate) is not None
        }
        for op in ops
    }  # fmt: skip
    with concurrent.futures.ThreadPoolExecutor(machine().cores) as pool:
        able = pool.map(lambda op: verifiable_kernels(op, named[op])[0], named)
        return [(op.name, found.name) for op, kernels in zip(named, able, strict=True) for found in kernels]


@background.measuring()
def verify(
    op: str,
    kernel: str | Sequence[str] | None = None,
    *,
    case: str | None = None,
    dtype: str | None = None,
    progress: Progress | None = None,
    write: bool = True,
    jobs: int | None = None,
) -> Records[Verification]:
    """Verifies the kernels of an op (or one of them) against float64 and certifies those that pass everything.

    Parity over every case of the contract in every dtype, forward and backward: guard pages on both sides of every
    buffer, poisoned outputs, inputs compared afterwards, strided, offset and transposed views; then determinism, two
    threads at once, other thread counts, a forked child, the contract's bad inputs, and every mutant rejected. Kernels
    of a GPU are verified there, with bands of NaN for the pages, the contract's larger device cases, every
    configuration of the tuning table, two streams at once and a graph's replay.

    Args:
        op, kernel: what to verify, one kernel or several; without ``kernel`` every kernel that runs here.
        case, dtype: only these, to reproduce a failure; nothing is certified then.
        progress: called with a line of text at each step.
        write: whether a certificate is written.
        jobs: processes that share the cases of one kernel. By default one, and up to eight for a GPU's kernel, whose
            time goes into compiling.
    Raises: ValueError where there is no such op or kernel.
    """
    if op not in OPS:
        raise ValueError(f"op must be one of {', '.join(OPS)}, got {op!r}")
    found = OPS[op]
    asked = (
        None if kernel is None else [found.kernel(name) for name in ([kernel] if isinstance(kernel, str) else kernel)]
    )
    kernels, cannot = verifiable_kernels(found, None if asked is None else {wanted.name for wanted in asked})
    if asked is not None:
        for wanted in asked:
            if wanted.name in cannot:
                raise RuntimeError(f"{op}.{wanted.name} cannot run here: {cannot[wanted.name]}")
        kernels = asked
    names = [r.name for r in kernels]
    verifications: list[Verification] = []
    shards = jobs or (min(8, max(1, (os.cpu_count() or 1) // 2)) if any(r.device == "cuda" for r in kernels) else 1)
    while names:
        done, died = _shared(found, names, case, dtype, progress, shards)
        if done and not (case or dtype):
            _judge_bounds(found, done, progress)
        verifications += [_verification(found, result, partial=bool(case or dtype), write=write) for result in done]
        if died is None:
            break
        verifications.append(_dead(found, *died))
        names = [n for n in names if n != died[0] and n not in {p.kernel for p in verifications}]
    order = [r.name for r in found.kernels]
    return Records(sorted(verifications, key=lambda p: order.index(p.kernel)))


def verify_missing(kernels: Sequence[tuple[str, str]], *, progress: Progress | None = None) -> list[Verification]:
    """Certifies kernels, given as (op, kernel), the quick way where there is one, several at a time.

    What another kind of CPU's certificate speaks for is confirmed (``verify.confirmation``); the rest is verified from
    the ground up. Kernels of one op share a process, so that what is right is computed once for all of them.
    """
    carried = [
        (op, kernel)
        for op, kernel in kernels
        if certificates.transferable_certificate(op, OPS[op].kernel(kernel)) is not None
    ]
    confirmed = confirm(carried, progress=progress) if carried else []
    done = {(verification.op, verification.kernel) for verification in confirmed}
    by_op: dict[str, list[str]] = {}
    for op, kernel in kernels:
        if (op, kernel) not in done:
            by_op.setdefault(op, []).append(kernel)
    with concurrent.futures.ThreadPoolExecutor(max(1, min(4, machine().cores))) as pool:
        whole = list(pool.map(lambda op: verify(op, by_op[op], progress=progress), by_op))
    return [*confirmed, *(verification for verifications in whole for verification in verifications)]


def _judge_bounds(op: Op, done: list[dict[str, Any]], progress: Progress | None) -> None:
    """Refuses all that was found of an op's kernels where a bound of its contract is too loose.

    The kernels just tried say how near a right kernel comes. Where that is not near, the op's others for this CPU may.
    Torch's function is asked only of an op that has no kernel for CPUs, on the cases that it is right on: where it is
    off by some bounds (it rounds in between), one that is wider by a hundred would look tight.
    """
    for inner in sorted({op.kernel(said["kernel"]).inner for said in done}):
        those = [said for said in done if op.kernel(said["kernel"]).inner == inner]
        shares = bounds.merge_shares(said["shares"] for said in those)
        wrong = bounds.loose_bounds(op.contract, shares)
        if wrong:
            own = [kernel.name for kernel in verifiable_kernels(op)[0] if kernel.device == "cpu"] or ["torch"]
            more = [name for name in own if name not in {said["kernel"] for said in those}]
            tried = _work(op, more, None, None, progress, 0, 1, inner=inner)[0] if more else []
            nearest = bounds.merge_shares((shares, *(said["shares"] for said in tried)))
            wrong = bounds.loose_bounds(
                op.contract, {d: {n: nearest[d][n] for n in outputs} for d, outputs in shares.items()}
            )
        for said in those if wrong else ():
            line = f"python -m kernelworks verify {op.name}.{said['kernel']}"
            parity = Parity(op.name, said["kernel"], "check", "bound", "", float("inf"), False, "; ".join(wrong), line)
            said["failures"].append(asdict(parity))
            said["checks"]["bound"] = False


WorkerResult = tuple[list[dict[str, Any]], tuple[str, str, str, str] | None]


def _shared(
    op: Op, kernels: list[str], case: str | None, dtype: str | None, progress: Progress | None, shards: int
) -> WorkerResult:
    """``_work`` by several processes: what they found put together, or how the first of them died."""
    with concurrent.futures.ThreadPoolExecutor(shards) as pool:
        jobs = [pool.submit(_work, op, kernels, case, dtype, progress, shard, shards) for shard in range(shards)]
        results = [job.result() for job in jobs]
    for found, died in results:
        if died is not None:
            return found if shards == 1 else [], died
    partial = bool(case or dtype)
    return [_joined(op, [found[i] for found, _ in results], partial=partial) for i in range(len(kernels))], None


def _joined(op: Op, parts: list[dict[str, Any]], *, partial: bool) -> dict[str, Any]:
    """One kernel's findings from those of all processes.

    The first of them ran the checks; whether every configuration of a GPU's kernel was run is known only here.
    """
    worst = max(parts, key=lambda part: part["worst"])
    joined = {
        **parts[0], "cases": sum(part["cases"] for part in parts), "worst": worst["worst"],
        "worst_case": worst["worst_case"], "failures": [f for part in parts for f in part["failures"]],
        "seconds": sum(part["seconds"] for part in parts),
        "shares": bounds.merge_shares(part["shares"] for part in parts),
        "checks": {name: all(part["checks"].get(name, True) for part in parts) for name in parts[0]["checks"]},
    }  # fmt: skip
    if op.kernel(joined["kernel"]).device == "cuda" and not partial:
        missed = set.intersection(*(set(part["missed"]) for part in parts))
        joined["checks"] = {**joined["checks"], "configurations": not missed}
        if missed:
            text = f"no case reaches {'; '.join(sorted(missed))}"
            line = f"python -m kernelworks verify {op.name}.{joined['kernel']}"
            wrong = Parity(op.name, joined["kernel"], "check", "configurations", "", float("inf"), False, text, line)
            joined["failures"].append(asdict(wrong))
    return joined


def _work(
    op: Op, kernels: list[str], case: str | None, dtype: str | None, progress: Progress | None, shard: int, shards: int,
    inner: str = "",
) -> WorkerResult:  # fmt: skip
    """One worker process: the kernels it finished, and (kernel, case, dtype, how it died) where it did not. With
    ``inner`` it tries no more than how near they come to the bounds for such kernels."""
    command = [*WORKER, op.name, ",".join(kernels), f"--shard={shard}/{shards}"]
    command += [f"--case={case}"] if case is not None else []
    command += [f"--dtype={dtype}"] if dtype is not None else []
    command += [f"--bounds={inner}"] if inner else []
    finished: list[dict[str, Any]] = []
    at = [kernels[0], "start", ""]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment.passive_wait_variables()
    ) as worker:
        assert worker.stdout is not None and worker.stderr is not None
        for said in json_messages(worker.stdout):
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


def _verification(op: Op, said: dict[str, Any], *, partial: bool, write: bool) -> Verification:
    failures = tuple(Parity(**f) for f in said["failures"])
    right = not failures and said["cases"] > 0 and not partial and all(said["checks"].values())
    kernel = op.kernel(said["kernel"])
    certified = right and write and kernel.source is not None
    kind = kind_of(kernel.device)
    if certified:
        certificates.write(
            certificates.Certificate(
                op=op.name, kernel=kernel.name, source_hash=kernel.hash(), toolchain=kernel.toolchain(), kind=kind,
                cases=said["cases"], worst=said["worst"], mutants_rejected=said["rejected"],
                date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"), worst_by_dtype=said["shares"],
            )
        )  # fmt: skip
    return Verification(
        op=op.name, kernel=kernel.name, kind=kind, cases=said["cases"], worst=said["worst"],
        worst_case=said["worst_case"], failures=failures, mutants_rejected=said["rejected"], mutants=said["mutants"],
        checks={"parity": not any(f.pass_ != "check" for f in failures), **said["checks"]},
        seconds=said["seconds"], certified=certified, worst_by_dtype=said["shares"],
    )  # fmt: skip


def _dead(op: Op, kernel: str, case: str, dtype: str, how: str) -> Verification:
    line = f"python -m kernelworks verify {op.name}.{kernel} --case '{case}' --dtype {dtype}"
    failure = Parity(op.name, kernel, "forward", case, dtype, float("inf"), False, how, line)
    return Verification(
        op=op.name, kernel=kernel, kind=kind_of(op.kernel(kernel).device), cases=0, worst=float("inf"), worst_case=case,
        failures=(failure,), mutants_rejected=0, mutants=len(op.mutants), checks={"survived": False}, seconds=0.0,
        certified=False,
    )  # fmt: skip
