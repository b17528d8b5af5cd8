"""One program under one of torch's switches, or with a plan in place, beside eager: started by ``programs.py``.

    python benchmarks/program_variant.py PROGRAM MODE ANSWERS RESULT

Makes the model, gives it to torch.compile, runs until nothing is left to compile, writes ``ready``, waits for a line on
stdin, then measures eager and compiled runs in turns. Until then it may be halted: ``halted_s.txt`` in the working
folder says for how long, and no figure counts that. ``eager`` keeps its first answer in the folder ANSWERS; under a
mode the first answer, from the same seed, is compared with that. RESULT is a JSON file; it holds an error as
``failed``.

Under ``plan``, ``plan.json`` of the working folder is given to ``kernelworks.apply`` before the program's first run, as
its author would do it. ``apply_s`` is the time of that and of the first runs with it, without compilers (``compile_s``)
and without a run's own time. Those of torch's switches that ``switches.json`` names are compiled too, with the plan
suspended, and have turns with both: the difference between two processes is no part of that comparison. One that raises
may leave torch's CUDA graphs in disorder: nothing is measured in such a process, RESULT says only which ``raised``.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import resource
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from side_by_side import HALTED, READY

from kernelworks.diagnose.fix.outcome import in_a_line
from kernelworks.measure.clock.noise import cpu_times, noise_between

PROGRAMS = Path(__file__).resolve().parent / "programs"

MODES: dict[str, dict[str, str] | None] = {
    "eager": None,
    "default": {},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "max-autotune-no-cudagraphs": {"mode": "max-autotune-no-cudagraphs"},
    "kernelworks": {"backend": "kernelworks"},
}

PLAN, SWITCHES, KEPT_PLAN = "plan", Path("switches.json"), Path("plan.json")
Variant = Callable[[], AbstractContextManager[Any]]
MOST_COMPILED = 64  # graphs of one function of the program's
LEAST_ROUNDS, MOST_ROUNDS = 5, 25
MEASURING_S = 4.0 if torch.cuda.is_available() else 8.0  # turns of a GPU's are less apart
PATIENCE = 2.0  # times that, for quiet turns
WARM_UP_RUNS = 6  # at the most, until one takes as long as the one before: each may still compile something
WARM_RATIO = 1.3


def halted_s() -> float:
    """For how long this process was halted until now."""
    try:
        return float(Path(HALTED).read_text(encoding="ascii"))
    except FileNotFoundError:
        return 0.0


def seconds(run: Callable[[], Any]) -> float:
    """What a run takes, beside the time for which the process is halted in it."""
    halted, start = halted_s(), time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    took = time.perf_counter() - start
    return took - (halted_s() - halted)


def copied(answer: Any) -> Any:
    """An answer that stays as it is: what a CUDA graph returns is written over by its next run."""
    return answer.detach().cpu().clone() if isinstance(answer, torch.Tensor) else answer


def warmed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Runs until a run takes as long as the one before; the seconds beyond what those take, and the first answer."""
    kept: list[Any] = []
    took = [seconds(lambda: kept.append(copied(run())))]
    for _ in range(WARM_UP_RUNS):
        took.append(seconds(run))
        if took[-2] < WARM_RATIO * took[-1]:
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


@contextlib.contextmanager
def called_by(model: Any, impl: Any) -> Iterator[None]:
    """The model as one ``model.compile()`` left it, by what that calls in its place; None: as it was before."""
    before, model._compiled_call_impl = model._compiled_call_impl, impl
    try:
        yield
    finally:
        model._compiled_call_impl = before


def measured(
    run: Callable[[], Any],
    eagerly: Variant,
    *,
    warming_up: bool = False,
    switches: Mapping[str, Variant] | None = None,
) -> dict[str, Any]:
    """The program as it is by now, within ``eagerly`` and within each of ``switches``, in turns of one process, whose
    order changes.

    Turns in which other processes took too much are left out; where too few are left all of them count, and it is said
    (``loud``). ``warming_up``: each measured run has one before it that is not counted, if a variant leaves memory or
    layouts behind.
    """
    variants = {"eager": eagerly, **(switches or {}), "mode": contextlib.nullcontext}
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
        for variant in variants if len(turns) % 2 else reversed(variants):
            with variants[variant]():
                if warming_up:
                    seconds(run)  # to its end: what a GPU has still to do would be the next one's time
                times[variant] = seconds(run)
        turns.append(times)
        if not noise_between(before, cpu_times()).loud:
            quiet.append(times)
    kept = quiet if len(quiet) >= LEAST_ROUNDS else turns
    took = {variant: middle([times[variant] for times in kept]) for variant in variants}
    beside = {
        variant: statistics.median(times[variant] / times["eager"] for times in kept) for variant in switches or ()
    }
    return {
        "ms": took["mode"][0] * 1e3, "eager_ms": took["eager"][0] * 1e3,
        "share": statistics.median(times["mode"] / times["eager"] for times in kept),
        **({"switches": beside} if switches else {}),
        "spread": max(spread for _, spread in took.values()), "rounds": len(kept), "loud": kept is not quiet,
    }  # fmt: skip


def memory() -> int:
    """The most bytes that were taken: of the GPU, or of the process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def answered(answer: Any, kept: Path) -> float | None:
    """How far an answer is from eager's, which is kept where it was measured too."""
    return apart(answer, torch.load(kept, weights_only=True)) if kept.is_file() else None


def timed(
    run: Callable[[], Any], eagerly: Variant, *, warming_up: bool, switches: Mapping[str, Variant] | None = None
) -> dict[str, Any]:
    """What the turns say, once all is compiled and a line has come on stdin."""
    peak = memory()
    with eagerly():
        run()  # once uncounted
    print(READY, flush=True)
    if not sys.stdin.readline():
        sys.exit("nobody is left to be told")
    warmed(run)  # what halted processes had queued on a GPU ends meanwhile
    return {**measured(run, eagerly, warming_up=warming_up, switches=switches), "peak_bytes": peak}


def variant(name: str, mode: str, answers: Path) -> dict[str, Any]:
    sys.path.insert(0, str(PROGRAMS))
    suite = importlib.import_module("suite")
    model, kept = getattr(suite, suite.PAIRS[name])()[0], answers / f"{name}.pt"
    if mode == PLAN:
        return replanned(lambda: getattr(suite, name)(), kept, model)  # by its name, as a plan replaces functions
    run, options = getattr(suite, name), MODES[mode]
    if mode == "kernelworks":
        import kernelworks  # noqa: F401  (its backend is known to torch from then on)
    if options is not None:
        model.compile(**options)
    torch.manual_seed(0)
    compile_s, answer = warmed(run)
    if options is None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        fresh = kept.with_suffix(".writing")
        torch.save(answer, fresh)
        fresh.replace(kept)  # others may look for it now
    found = timed(run, lambda: called_by(model, None), warming_up=False)
    return {**found, "compile_s": compile_s, "differs": answered(answer, kept)}


def replanned(run: Callable[[], Any], kept: Path, model: Any = None) -> dict[str, Any]:
    """The program with its plan in place, and its ``model`` under the switches that are named beside the plan.
    RuntimeError where some of the plan is not in place."""
    begin = time.perf_counter()
    import kernelworks

    with contextlib.ExitStack() as stack:
        plan = stack.enter_context(kernelworks.apply(str(KEPT_PLAN))) if KEPT_PLAN.is_file() else None
        aside: Variant = contextlib.nullcontext if plan is None else plan.aside
        placing_s = time.perf_counter() - begin
        torch.manual_seed(0)
        first_s, answer = warmed(run)
        missing = [*plan.failed, *plan.waiting] if plan is not None else []
        if missing:
            raise RuntimeError(f"not applied: {'; '.join(missing)}")
        compiling_s, peak = compilers_s(), memory()
        named = json.loads(SWITCHES.read_text(encoding="utf-8")) if SWITCHES.is_file() else ()
        switches = {mode: variant for mode in named if (variant := switched(run, aside, model, mode)) is not None}
        if len(switches) < len(named):
            return {"raised": [mode for mode in named if mode not in switches]}
        found = timed(run, aside, warming_up=True, switches=switches)
    own = {"peak_bytes": peak, "apply_s": max(placing_s + first_s - compiling_s, 0.0), "compile_s": compiling_s}
    return {**found, **own, "differs": answered(answer, kept)}


def switched(run: Callable[[], Any], aside: Variant, model: Any, mode: str) -> Variant | None:
    """A variant in which the model is compiled in one of torch's modes, with nothing of a plan in place: compiled here.
    None if torch cannot."""
    import torch._dynamo.config as config

    config.recompile_limit = MOST_COMPILED  # the modes share one code, and each counts
    impl: Any = None

    @contextlib.contextmanager
    def variant() -> Iterator[None]:
        with aside(), called_by(model, impl):
            yield

    try:
        with variant():
            model.compile(**(MODES[mode] or {}))
            impl = model._compiled_call_impl
        with variant():
            warmed(run)
    except Exception:
        traceback.print_exc()
        return None
    return variant


def compilers_s() -> float:
    """Seconds that torch's compiler has taken in this process, by its own clocks."""
    known = sys.modules.get("torch._dynamo.utils")
    return float(known.calculate_time_spent()["total_wall_time"]) if known is not None else 0.0


def main() -> None:
    name, mode, answers, result = sys.argv[1:5]
    try:
        found = variant(name, mode, Path(answers))
    except Exception as error:  # what torch cannot compile is what is to be told
        traceback.print_exc()
        found = {"failed": in_a_line(error)[:300]}
    Path(result).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
