"""Plain records of what was judged. No logic, no torch, JSON both ways."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelworks.records.base import Record

__all__ = ["BASELINES", "Charge", "Judgement", "Pace", "Speed"]

BASELINES = ("eager", "compiled", "ours")  # what a candidate may be timed against


@dataclass(frozen=True)
class Charge:
    """One reason why a candidate is refused, or what its reader must know."""

    kind: str  # "wrong answer", "late answer", "falls back", ...: a word of docs/reference/judge.md
    said: str


@dataclass(frozen=True)
class Pace:
    """One variant's time from the hand-over of its inputs to its answer, less what an answer without work takes."""

    variant: str  # "candidate", "eager", "compiled", "ours"
    median_s: float
    low_s: float  # 10th percentile
    high_s: float  # 90th percentile
    calls: int


@dataclass(frozen=True)
class Speed:
    """How many times as quick as a variant the candidate is: the median over inputs that both were given, and the
    interval that holds it with 95%."""

    over: str
    ratio: float
    low: float
    high: float
    ambiguous: bool  # the interval is wider than a tenth of the ratio


@dataclass(frozen=True)
class Judgement(Record):
    """``verdict`` is "right", "refused", "unsound" (the problem cannot tell right from wrong) or "undecided" (no bound
    could be derived, or the judge itself could not go on)."""

    candidate: str
    problem: str
    format: str
    language: str
    verdict: str
    reasons: tuple[Charge, ...]  # why it is refused, or no verdict is given
    remarks: tuple[Charge, ...]
    worst: float | None  # error as a share of the bound, of all elements that were looked at
    calls: int  # whose answers were held against the reference
    elements: int  # that were held against it
    draws: tuple[str, ...]
    shapes: tuple[str, ...]
    bound: tuple[str, ...]  # what the bound is made of, the largest part first
    paces: tuple[Pace, ...]
    speeds: tuple[Speed, ...]
    limit_s: float | None  # that the bytes and the arithmetic take at least on this machine
    bound_by: str
    peak: str
    weights: str
    kernels: tuple[str, ...]  # of its own, that ran
    kept_from: tuple[str, ...]  # what the sandbox kept it from
    open_to: tuple[str, ...]  # and what not, and why
    threads: int
    build_s: float
    seconds: float
    date: str
    machine: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    device: str = "cpu"  # or "cuda"
    events_s: float | None = None  # a call, by the events of its own process: shown, never counted
