"""Plain records of whether a problem is worth a score."""

from __future__ import annotations

from dataclasses import dataclass

from kernelworks.records.base import Record

__all__ = ["NOT_LOOKED", "NOT_WORTH", "WEAK", "WORTH", "Finding", "Guess", "ProblemCheck"]

WORTH, WEAK, NOT_WORTH = "worth scoring", "worth scoring with care", "not worth scoring"
NOT_LOOKED = "not looked at"
TOO_MUCH = {"too slow", "too large"}  # for this machine: says nothing of the problem


@dataclass(frozen=True)
class Finding:
    """``kind`` is a word of the table in docs/reference/check-problem.md. One that is ``fatal`` leaves nothing to
    score: an answer made without the problem's work passes, or none can be judged."""

    kind: str
    fatal: bool
    said: str


@dataclass(frozen=True)
class Guess:
    """An answer made without doing what the problem asks, on inputs that it was not made for: its worst error as a
    share of the derived bound (None: not finite), and whether it is within that, and within the format's tolerance."""

    name: str  # "zeros", "a constant", "input 0", "the answer to other inputs", "half precision", ...
    share: float | None
    passes: bool
    tolerated: bool | None  # None where the format has no tolerance


@dataclass(frozen=True)
class ProblemCheck(Record):
    """``sizes`` are the constants that were made smaller to fit, none where the problem was looked at as it is."""

    name: str
    format: str
    device: str
    sizes: dict[str, int]
    inputs: tuple[str, ...]  # "float32[16, 1024]"
    outputs: tuple[str, ...]
    bytes: float  # of inputs, weights and outputs, at the problem's own sizes
    flop: float  # of its products there
    least_s: float  # that those take at the device's rates
    ops: int  # that the reference runs
    findings: tuple[Finding, ...]
    guesses: tuple[Guess, ...]
    bound: tuple[str, ...]  # what the bound of each output is made of
    unknown: tuple[str, ...]  # ops that were bounded by measuring
    seconds: float

    @property
    def verdict(self) -> str:
        if any(finding.fatal for finding in self.findings):
            return NOT_WORTH
        if any(finding.kind in TOO_MUCH for finding in self.findings):
            return NOT_LOOKED
        return WEAK if self.findings else WORTH
