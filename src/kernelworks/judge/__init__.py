"""Judges a candidate kernel that nobody trusts: right or not, how quick, and why it is refused (docs/judge.md)."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from kernelworks.ceilings import ceilings as measured_ceilings
from kernelworks.judge.bench import Bench, Budget, NoVerdict
from kernelworks.judge.formats import read_candidate, read_problem
from kernelworks.judge.nursery import Ended, Nursery
from kernelworks.judge.pacing import pace, speed
from kernelworks.judge.physics import Limit, limit
from kernelworks.judge.problem import Candidate, Problem
from kernelworks.judge.trial import Trial, Tried
from kernelworks.machine import machine
from kernelworks.observe.program import versions
from kernelworks.records import Ceilings, GpuCeilings
from kernelworks.verdicts import Charge, Judgement

__all__ = ["Budget", "judge", "judge_all"]

ARMS = ("eager", "compiled", "ours")  # what a candidate may be timed against
OVER = ARMS[:1]  # where nothing is asked for
Say = Callable[[str], None]


def _silent(line: str) -> None:
    pass


def judge(
    candidate: str | Path | Candidate,
    problem: str | Path | Problem,
    *,
    over: Sequence[str] = OVER,
    budget: Budget | None = None,
    threads: int | None = None,
    ceilings: Ceilings | GpuCeilings | None = None,
    progress: Say | None = None,
) -> Judgement:
    """Whether a candidate does what a problem asks, how quick it is, and if not, why it is refused.

    Nothing of the candidate runs in this process. Raises OSError or ValueError where a file is no problem, or no
    candidate of it.
    """
    return judge_all(
        [candidate], problem, over=over, budget=budget, threads=threads, ceilings=ceilings, progress=progress
    )[0]  # fmt: skip


def judge_all(
    candidates: Sequence[str | Path | Candidate],
    problem: str | Path | Problem,
    *,
    over: Sequence[str] = OVER,
    budget: Budget | None = None,
    threads: int | None = None,
    ceilings: Ceilings | GpuCeilings | None = None,
    progress: Say | None = None,
    nursery: Nursery | None = None,
) -> list[Judgement]:
    """``judge`` for several candidates of one problem, which share its truth and what they are timed against; those of
    several problems may share a ``nursery``, which takes seconds to start."""
    say = progress or _silent
    asked = problem if isinstance(problem, Problem) else read_problem(problem)
    read = [c if isinstance(c, Candidate) else read_candidate(c, asked) for c in candidates]
    unknown = [word for word in over if word not in ARMS]
    if unknown:
        raise ValueError(f"over takes {', '.join(ARMS)}, got {unknown[0]!r}")
    limits = ceilings or measured_ceilings(rough=True)
    with contextlib.ExitStack() as stack:
        born = nursery or stack.enter_context(Nursery(interpreted=any(c.language == "triton" for c in read)))
        bench = stack.enter_context(Bench(born, asked, budget or Budget(), threads or torch.get_num_threads()))
        least, nothing = _set_up(bench, limits, say)
        return [_judged(bench, one, least, nothing, over, say) for one in read]


def _set_up(bench: Bench, limits: Ceilings | GpuCeilings, say: Say) -> tuple[Limit | None, NoVerdict | None]:
    """The truth, and the least time; or why there is none."""
    try:
        if bench.problem.device != "cpu":
            raise NoVerdict("undecided", f"the problem is for {bench.problem.device}; candidates are judged on the CPU")
        say("the truth")
        bench.collect()
        return limit(bench.work(), bench.threads, limits), None
    except NoVerdict as error:
        return None, error


def _judged(
    bench: Bench, one: Candidate, least: Limit | None, nothing: NoVerdict | None, over: Sequence[str], say: Say
) -> Judgement:
    begin, tried, why = time.monotonic(), Tried(), nothing
    if why is None and one.language == "cuda":
        why = NoVerdict("undecided", "a candidate in CUDA; candidates are judged on the CPU")
    if why is None:
        try:
            tried = Trial(bench, one, over, say).run()
        except NoVerdict as error:
            why = error
        except Ended as error:
            why = NoVerdict("undecided", f"a process of the judge's own {error}")
    return _judgement(bench, one, tried, why, least, over, time.monotonic() - begin)


def _judgement(
    bench: Bench, one: Candidate, tried: Tried, why: NoVerdict | None, least: Limit | None, over: Sequence[str],
    seconds: float,
) -> Judgement:  # fmt: skip
    problem, reasons, remarks = bench.problem, list(tried.reasons), [*bench.remarks, *tried.remarks]
    ours = tried.seconds.get("candidate", [])
    nothing = tried.nothing_s
    paces = tuple(pace(name, of, nothing) for name, of in tried.seconds.items() if of and len(of) == len(ours))
    speeds = tuple(speed(name, tried.seconds[name], ours, nothing) for name in over if ours and nothing)
    net = next((p.median_s for p in paces if p.arm == "candidate"), 0.0)
    if least is not None and net and nothing and one.language != "triton":
        broken, less = least.broken_by(net), least.less_arithmetic(net)
        if broken:
            reasons.append(Charge("faster than physics", broken))
        elif less:
            remarks.append(Charge("less arithmetic", less))
    if one.language == "triton" and paces:
        paces, speeds = (), ()
        remarks.append(Charge("interpreted", "Triton's interpreter ran its kernels: right or wrong alone is judged"))
    if one.language == "torch" and not reasons:
        remarks.append(Charge("no kernel of its own", "all of its work is torch's"))
    if why is not None:
        reasons = [Charge(why.kind, str(why))]
    verdict = why.kind if why is not None else "refused" if reasons else "right"
    return Judgement(
        candidate=one.name, problem=problem.name, format=problem.format, language=one.language, verdict=verdict,
        reasons=tuple(reasons), remarks=(*(Charge("read", line) for line in problem.remarks), *remarks),
        worst=tried.worst if tried.calls else None, calls=tried.calls, elements=tried.elements,
        draws=tuple(dict.fromkeys(c.draw for c in bench.cases)), shapes=(problem.shapes[0].name, *tried.shapes),
        bound=bench.cases[0].why if bench.cases else (), paces=paces, speeds=speeds,
        limit_s=least.seconds if least else None, waits_on=least.waits_on(net) if least and paces else "",
        ceiling=least.whole.ceiling if least else "", weights=tried.weights, kernels=tried.kernels,
        kept_from=tried.kept, open_to=tried.open, threads=bench.threads, build_s=tried.build_s, seconds=seconds,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        machine=machine().name, versions=versions(),
    )  # fmt: skip
