"""Plain records of a search for kernels. No logic, no torch, JSON both ways."""

from __future__ import annotations

from dataclasses import dataclass

from kernelworks.records import GpuPeaks, Peaks, Verification
from kernelworks.records.base import Record
from kernelworks.records.judgement import Judgement

__all__ = ["BETTER", "BestCandidate", "KeepResult", "ProposerResult", "Search", "SizeSpeedup", "TriedCandidate"]

BETTER = "better"  # than what the search began with, by more than both intervals


@dataclass(frozen=True)
class TriedCandidate:
    """One candidate of a search. ``ratio`` is how many times as quick as the baseline it is, with its interval."""

    number: int  # in the order of judging
    id: str
    proposer: str
    parents: tuple[str, ...]
    language: str
    note: str
    verdict: str  # "right", "refused", "unsound", "undecided"; "" while nobody has judged it
    why: str  # the first reason against it
    ratio: float | None
    low: float | None
    high: float | None
    seconds: float | None  # of a call
    cost_s: float | None  # of judging it, its build included
    won: bool  # right, and quicker than each of its parents by more than both intervals


@dataclass(frozen=True)
class ProposerResult:
    """What came of one proposer."""

    proposer: str
    candidates: int = 0  # of its own that were judged
    right: int = 0
    won: int = 0
    best: float | None = None  # times as quick as the baseline
    cost_s: float = 0.0  # of judging them
    remark: str = ""  # why it offered no more, or nothing at all


@dataclass(frozen=True)
class BestCandidate:
    """A candidate with its text, as it was judged while searching, and once more at the end on other inputs."""

    tried: TriedCandidate
    code: str
    first: Judgement
    again: Judgement | None


@dataclass(frozen=True)
class SizeSpeedup:
    """A size of an op: how many times as quick what is to be kept is as the kernel as it was, with the interval."""

    case: str
    ratio: float
    low: float
    high: float
    over: float  # times as quick as the search's baseline
    seconds: float  # of a call


@dataclass(frozen=True)
class KeepResult:
    """What came of putting a search's best into its op package. ``why`` it was not, "" where it was."""

    op: str
    kernel: str
    files: tuple[str, ...]  # that were written
    sizes: tuple[SizeSpeedup, ...]
    verification: Verification | None
    why: str


@dataclass(frozen=True)
class Search(Record):
    """``stopped`` says why no further candidate was judged: "budget", "count", "nothing left", "interrupted" or
    "no verdict" (the problem allows none: ``why``). ``outcome`` is "better", "no better", "none right" or "no
    verdict"."""

    problem: str
    format: str
    store: str
    over: str  # the baseline
    threads: int
    machine: str
    stopped: str
    why: str
    outcome: str
    candidates: tuple[TriedCandidate, ...]
    best: BestCandidate | None
    begun_with: float | None  # the best of the candidates that the search was given, over the baseline
    by_proposer: tuple[ProposerResult, ...]
    judged: int  # candidates with a verdict
    judged_now: int  # of them, in this run
    seconds: float  # of this run
    cost_s: float | None  # of judging a candidate, its build included: the mean
    limit_s: float | None  # that the bytes and the arithmetic take at least on this machine
    peak: str
    flop: float
    bytes: float
    peaks: Peaks | GpuPeaks | None
    date: str
    workers: int = 1  # that judged beside each other, in this run
    each_s: float | None = None  # of this run for each that it judged, proposing included
    lost: int = 0  # workers that were gone before they had answered; what they were at was judged anew
    kept: KeepResult | None = None  # where that was asked for
