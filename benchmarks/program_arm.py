"""One program under one of torch's switches, beside eager, in this process: started by ``programs.py``.

    python benchmarks/program_arm.py PROGRAM MODE ANSWERS RESULT

Makes the model, gives it to torch.compile, runs until nothing is left to compile, writes ``ready``, waits for a line on
stdin, then times eager and compiled runs in turns. ``eager`` keeps its first answer in the folder ANSWERS; under a mode
the first answer, from the same seed, is compared with that. RESULT is a JSON file; an error is in it as ``failed``.
"""

from __future__ import annotations

import importlib
import json
import resource
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kernelworks.ceilings.quiet import cpu_times, noise_between

PROGRAMS = Path(__file__).resolve().parent / "programs"

MODES: dict[str, dict[str, str] | None] = {
    "eager": None,
    "default": {},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "max-autotune-no-cudagraphs": {"mode": "max-autotune-no-cudagraphs"},
    "kernelworks": {"backend": "kernelworks"},
}

LEAST_ROUNDS, MOST_ROUNDS, MEASURING_S = 5, 25, 8.0
PATIENCE = 2.0  # times that, for quiet turns
SETTLING = 6  # runs at the most until one takes as long as the one before: each may still compile something
SETTLED = 1.3


def seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def copied(answer: Any) -> Any:
    """An answer that stays as it is: what a CUDA graph returns is written over by its next run."""
    return answer.detach().cpu().clone() if isinstance(answer, torch.Tensor) else answer


def warmed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Runs until a run takes as long as the one before; the seconds beyond what those take, and the first answer."""
    kept: list[Any] = []
    took = [seconds(lambda: kept.append(copied(run())))]
    for _ in range(SETTLING):
        took.append(seconds(run))
        if took[-2] < SETTLED * took[-1]:
            break
    return max(sum(took) - len(took) * took[-1], 0.0), kept[0]


def flat(answer: Any) -> torch.Tensor:
    return torch.as_tensor(answer).detach().to("cpu", torch.float64).flatten()


def apart(answer: Any, other: Any) -> float:
    """How far two answers are apart: the share of tokens that differ, or the relative difference of numbers."""
    one, two = flat(answer), flat(other)
    if one.shape != two.shape:
        return 1.0
    if isinstance(answer, torch.Tensor) and not answer.is_floating_point():
        return (one != two).double().mean().item()
    return ((one - two).norm() / two.norm().clamp_min(1e-300)).item()


def middle(times: list[float]) -> tuple[float, float]:
    """Median, and the middle distance from it as a share."""
    median = statistics.median(times)
    return median, statistics.median(abs(t - median) for t in times) / median


def measured(run: Callable[[], Any], model: Any, compiled: Any) -> dict[str, Any]:
    """Eager and compiled in turns, whose order changes, of one process. For eager alone both are the same.

    Turns in which other processes took too much are left out; where too few are left all of them count, and it is said
    (``loud``).
    """
    turns: list[dict[str, float]] = []
    quiet: list[dict[str, float]] = []
    begin = time.perf_counter()
    while len(quiet) < MOST_ROUNDS:
        spent = time.perf_counter() - begin
        if spent > MEASURING_S and (
            len(quiet) >= LEAST_ROUNDS or (spent > PATIENCE * MEASURING_S and len(turns) >= LEAST_ROUNDS)
        ):
            break
        times, before = {}, cpu_times()
        for arm in ("eager", "mode") if len(turns) % 2 else ("mode", "eager"):
            model._compiled_call_impl = compiled if arm == "mode" else None
            times[arm] = seconds(run)
        turns.append(times)
        if not noise_between(before, cpu_times()).loud:
            quiet.append(times)
    kept = quiet if len(quiet) >= LEAST_ROUNDS else turns
    eager, mode = (middle([times[arm] for times in kept]) for arm in ("eager", "mode"))
    return {
        "ms": mode[0] * 1e3, "eager_ms": eager[0] * 1e3,
        "share": statistics.median(times["mode"] / times["eager"] for times in kept),
        "spread": max(eager[1], mode[1]), "rounds": len(kept), "loud": kept is not quiet,
    }  # fmt: skip


def memory() -> int:
    """The most bytes that were taken: of the GPU, or of the process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def arm(name: str, mode: str, answers: Path) -> dict[str, Any]:
    sys.path.insert(0, str(PROGRAMS))
    suite = importlib.import_module("suite")
    run, model = getattr(suite, name), getattr(suite, suite.PAIRS[name])()[0]
    options = MODES[mode]
    if mode == "kernelworks":
        import kernelworks  # noqa: F401  (its backend is known to torch from then on)
    if options is not None:
        model.compile(**options)
    compiled = model._compiled_call_impl
    torch.manual_seed(0)
    compile_s, answer = warmed(run)
    peak = memory()
    if options is None:
        answers.mkdir(parents=True, exist_ok=True)
        torch.save(answer, answers / f"{name}.pt")
        differs = 0.0
    else:
        known = answers / f"{name}.pt"
        differs = apart(answer, torch.load(known, weights_only=True)) if known.is_file() else None
        model._compiled_call_impl = None
        run()  # eager, once uncounted
    print("ready", flush=True)
    sys.stdin.readline()
    return {**measured(run, model, compiled), "compile_s": compile_s, "peak_bytes": peak, "differs": differs}


def main() -> None:
    name, mode, answers, result = sys.argv[1:5]
    try:
        found = arm(name, mode, Path(answers))
    except Exception as error:  # what torch cannot compile is what is to be told
        traceback.print_exc()
        lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
        found = {"failed": f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]}
    Path(result).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
