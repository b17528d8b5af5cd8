"""Whether a problem is worth a score: what passes without doing its work, and what its reference does for nothing."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kernelworks.judge.formats import read_problem
from kernelworks.judge.problem import Problem
from kernelworks.judge.process.pool import Nursery, ProcessEnded, ProcessTimeout
from kernelworks.records.problem_check import Finding, Guess, ProblemCheck

__all__ = ["check_problem"]

MOST_BYTES = 12.0 * 2**20  # of inputs, weights and outputs: seconds in float64, and some ten times as much memory
MOST_FLOP = 1e8
MOST_S = 300.0  # that a problem is looked at


@dataclass(frozen=True)
class _Rates:
    """Round figures of a large device of the kind, which a small problem does not come near: the time from which on a
    call's own work counts, bytes a second, and flop a second in float32."""

    floor_s: float
    bytes_s: float
    flop_s: float


# An H200: 5.5 us to launch a small op, 4.2 TB/s, 50 TFLOP/s. A CPU: 1 us to dispatch one, 40 GB/s, 250 GFLOP/s a core.
RATES = {"cuda": _Rates(5.5e-6, 4.2e12, 50e12), "cpu": _Rates(1e-6, 40e9, 250e9)}
LAUNCHES = 4.0  # of the device's floors: work of less than that is not what is timed


def check_problem(
    problem: Problem | str | Path, *, device: str | None = None, threads: int | None = None, most_s: float = MOST_S,
    nursery: Nursery | None = None,
) -> ProblemCheck:  # fmt: skip
    """Looks at a problem, in a process apart.

    Args:
        problem: it, or a file with it in a format that is known.
        device: for whose rates its sizes are judged, "cpu" or "cuda"; the problem's own without it.
        most_s: seconds after which it is too slow to be looked at.
        nursery: one that several problems share, since it takes seconds to start.

    Raises:
        Misread: the file is not of its format.
        ValueError: ``device`` is neither.
    """
    known = problem if isinstance(problem, Problem) else read_problem(problem)
    device = device or known.device
    if device not in RATES:
        raise ValueError(f"device must be cpu or cuda, got {device!r}")
    start = time.perf_counter()
    papers = {
        "problem": known, "threads": threads or torch.get_num_threads(),
        "most_bytes": MOST_BYTES, "most_flop": MOST_FLOP,
    }  # fmt: skip
    with contextlib.nullcontext(nursery) if nursery is not None else Nursery() as its:
        try:
            cpu_s = 60 + 2 * most_s * (os.cpu_count() or 1)  # the clock ends it, not this
            seen, _ = its.spawn("examiner", papers, cpu_s=cpu_s).hear(most_s)
        except ProcessTimeout:
            said = f"it was not looked at to the end within {most_s:.0f} s: no smaller sizes of it are quick enough"
            seen = {"findings": [{"kind": "too slow", "fatal": False, "said": said}]}
        except ProcessEnded as error:
            seen = {"raised": f"the process that ran it {error}"}
    return _recorded(known, device, seen, time.perf_counter() - start)


def _recorded(problem: Problem, device: str, seen: Mapping[str, Any], seconds: float) -> ProblemCheck:
    findings = [Finding(**one) for one in seen.get("findings", ())]
    if "raised" in seen:
        findings.append(Finding("raises", True, str(seen["raised"])))
    rates = RATES[device]
    moved, flop = float(seen.get("bytes", 0.0)), float(seen.get("flop", 0.0))
    least = max(moved / rates.bytes_s, flop / rates.flop_s)
    if moved and least < LAUNCHES * rates.floor_s:
        said = (
            f"its work takes {least * 1e6:.2g} us at the rates of a {_device(device)}, a call {rates.floor_s * 1e6:.2g}"
        )
        findings.append(Finding("launch-bound", False, f"{said}: what is timed is launching"))
    tolerated = [g["name"] for g in seen.get("guesses", ()) if g["tolerated"] and not g["passes"]]
    if tolerated:
        said = f"its format's own tolerance takes {', '.join(tolerated)} for right, which the derived bound does not"
        findings.append(Finding("tolerance", False, said))
    return ProblemCheck(
        name=problem.name,
        format=problem.format,
        device=device,
        sizes={str(k): int(v) for k, v in seen.get("sizes", {}).items()},
        inputs=tuple(seen.get("inputs", ())),
        outputs=tuple(seen.get("outputs", ())),
        bytes=moved,
        flop=flop,
        least_s=least,
        ops=int(seen.get("ops", 0)),
        findings=tuple(findings),
        guesses=tuple(Guess(**one) for one in seen.get("guesses", ())),
        bound=tuple(seen.get("bound", ())),
        unknown=tuple(seen.get("unknown", ())),
        seconds=seconds,
    )


def _device(name: str) -> str:
    return "large GPU" if name == "cuda" else "CPU's core"
