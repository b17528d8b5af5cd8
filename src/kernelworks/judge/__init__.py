"""Judges a candidate kernel that nobody trusts: right or not, how fast, and why it is refused.

docs/reference/judge.md has the rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kernelworks.judge.formats import problem_on_device, read_candidate, read_problem
from kernelworks.judge.harness import Budget
from kernelworks.judge.problem import Candidate, Problem
from kernelworks.judge.process.pool import Nursery
from kernelworks.judge.session import OVER, Sitting
from kernelworks.records import GpuPeaks, Peaks
from kernelworks.records.judgement import Judgement

__all__ = ["OVER", "Budget", "judge", "judge_all"]

Say = Callable[[str], None]


def judge(
    candidate: str | Path | Candidate,
    problem: str | Path | Problem,
    *,
    over: Sequence[str] = OVER,
    budget: Budget | None = None,
    threads: int | None = None,
    device: str | None = None,
    peaks: Peaks | GpuPeaks | None = None,
    progress: Say | None = None,
) -> Judgement:
    """Whether a candidate does what a problem asks, how quick it is, and if not, why it is refused.

    ``device`` is "cpu" or "cuda"; the problem's own without it. Nothing of the candidate runs in this process. Raises
    OSError or ValueError if a file is no problem, or no candidate of it, ValueError for a device that is neither.
    """
    return judge_all(
        [candidate], problem, over=over, budget=budget, threads=threads, device=device, peaks=peaks,
        progress=progress,
    )[0]  # fmt: skip


def judge_all(
    candidates: Sequence[str | Path | Candidate],
    problem: str | Path | Problem,
    *,
    over: Sequence[str] = OVER,
    budget: Budget | None = None,
    threads: int | None = None,
    device: str | None = None,
    peaks: Peaks | GpuPeaks | None = None,
    progress: Say | None = None,
    nursery: Nursery | None = None,
) -> list[Judgement]:
    """``judge`` for several candidates of one problem, which share its reference and what they are timed against; those
    of several problems may share a ``nursery``, which takes seconds to start."""
    asked = problem_on_device(problem, device) if isinstance(problem, Problem) else read_problem(problem, device)
    read = [c if isinstance(c, Candidate) else read_candidate(c, asked) for c in candidates]
    interpreted = asked.device == "cpu" and any(c.language == "triton" for c in read)
    with Sitting(
        asked, over=over, budget=budget, threads=threads, peaks=peaks, nursery=nursery, interpreted=interpreted,
        progress=progress,
    ) as sitting:  # fmt: skip
        return [sitting.judge(one) for one in read]
