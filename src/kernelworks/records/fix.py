"""The record of a fix: the best program that a search over optimizations found, and the outcome of each of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kernelworks.records.base import Record

__all__ = [
    "APPLIED", "CHANGES", "MODULES_MADE_ANEW", "NOT_TRIED", "REJECTED", "CompilerReport", "Fix", "SearchStep",
    "TriedOptimization",
]  # fmt: skip

APPLIED = "applied"  # it is part of the best program found
REJECTED = "rejected"  # it was put in place, and failed, was not verified, or saved nothing significant
NOT_TRIED = "not tried"  # it was never put in place, or the budget ended before there was a verdict
# The reason of what needs modules that outlive a run; what to do about it is a step of its own.
MODULES_MADE_ANEW = "the program makes its modules anew at each run: it would have to be done anew for each"
CHANGES = ("tf32", "bf16", "int8", "fp8")  # of numbers: each is tried only if it is allowed


@dataclass(frozen=True)
class TriedOptimization:
    """One optimization at one place: its predicted and its measured gain on the program as it was by then."""

    optimization: str
    place: str
    says: str
    code: str  # the lines that a user writes to have it; they import kernelworks only for kernels of its own
    outcome: str  # applied, rejected or not tried
    why: str  # the reason for that outcome
    predicted_gain_s: float | None = None  # None if nothing was predicted
    gain_s: float | None = None  # None if it was not measured
    cost_s: float = 0.0  # until it was in place: compilers
    cost_bytes: int = 0
    error_before: float = 0.0
    error_after: float = 0.0
    against: str = ""  # what the errors are against; "" if nothing was compared
    changes: str = ""  # the word that must be allowed for it
    advice: str = ""  # what only the author can do
    how: str = ""  # where the prediction comes from
    noise_s: float | None = None  # a gain or loss below this is not significant; None if it was not measured
    needs_s: float = 0.0  # the budget that would do, if the budget was too small for it
    rough: bool = False  # other processes used the machine while it was measured: ``why`` says what they took

    @property
    def applied(self) -> bool:
        return self.outcome == APPLIED


@dataclass(frozen=True)
class CompilerReport:
    """What shows that a compiler was wrong: ``text`` is a Python file."""

    title: str
    text: str


@dataclass(frozen=True)
class SearchStep:
    """What a search began to do, so many seconds after it began itself; or, ``beside`` it, a process that compiles."""

    at_s: float
    what: str
    beside: bool = False


@dataclass(frozen=True)
class Fix(Record):
    """What ``--fix`` did and what it gained: the best program found beside the program as it was."""

    replaced: tuple[str, ...]
    left: tuple[str, ...]
    before_s: float
    after_s: float
    predicted_gain_s: float | None  # an estimate, if `unknown_prediction` is not empty; None if there is none
    gain_s: float
    error_before: float  # relative, against what `against` says
    error_after: float
    agrees: bool
    rounds: int  # of the measurement; 0 if nothing was applied
    notes: tuple[str, ...] = ()
    noise_s: float = 0.0  # a gain or loss below this is not significant
    refused: str = ""  # why the fix is not to be kept; "" if it may be
    ended: str = ""  # why the search ended before all that applies was tried; "" if it did not
    ambiguous: str = ""  # what other processes took of the machine while it was measured, if that was too much
    rough: bool = False  # its figures were asked for nevertheless
    against: str = "float64"  # or the original's own rounding; "" if nothing was compared: `agrees` says nothing then
    optimizations: tuple[TriedOptimization, ...] = ()  # in the order in which they were tried
    plan: dict[str, Any] = field(default_factory=dict)  # what ``kernelworks.apply`` puts in place
    code: str = ""  # what a user writes to have the best program; see TriedOptimization
    budget_s: float = 0.0  # seconds that the search had
    search_s: float = 0.0  # seconds that it took, with its workers; 0 in a record that does not say
    diagnosis_s: float = 0.0  # seconds of the diagnosis before it, which no budget bounds
    needs_s: float = 0.0  # the budget that would do for what did not fit it; 0 if all did
    allowed: tuple[str, ...] = ()  # changes of numbers that might be tried
    compiler_reports: tuple[CompilerReport, ...] = ()  # of compiled regions that were left out, as they are wrong
    patch: str = ""  # the same as a unified diff on the program's own source; "" if that is in no file
    compilers_beside: int = 0  # how many worked beside the search at once, each in a process of its own
    steps: tuple[SearchStep, ...] = ()  # of the search, in the order in which they began
    unknown_prediction: str = ""  # why this machine does not bear the prediction out; "" if it does
    plan_run_s: float = 0.0  # of a run in a process of its own that only applies the plan; 0 if there was none
    plan_ready_s: float = 0.0  # until the plan was in place there, compilers and their caches: beyond the first run
    plan_not_run: str = ""  # why it was not run there, though there is a plan
    patch_folder: str = ""  # that the paths of the patch start from, if it is not the one that the command was given in

    @property
    def told_prediction_s(self) -> float | None:
        """The predicted gain, if this machine bears it out; None otherwise."""
        return None if self.unknown_prediction else self.predicted_gain_s
