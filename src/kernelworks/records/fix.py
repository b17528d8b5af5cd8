"""The record of a fix: the best program that a search over remedies found, and every remedy that was tried."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kernelworks.records.base import Record

__all__ = ["Fix", "TriedOptimization"]


@dataclass(frozen=True)
class TriedOptimization:
    """One remedy at one place: what it was predicted to bring and what it brought to the program as it was by then."""

    optimization: str
    place: str
    says: str
    code: str  # the lines that a user writes to have it without kernelworks
    taken: bool  # part of the best program found
    why: str  # it is in or out
    predicted_gain_s: float | None = None  # None where nothing was predicted
    gain_s: float | None = None  # None where it was not measured
    cost_s: float = 0.0  # until it was in place: compilers
    cost_bytes: int = 0
    error_before: float = 0.0
    error_after: float = 0.0
    against: str = ""  # what the errors are against; "" where nothing was compared
    changes: str = ""  # the word that must be allowed for it
    advice: str = ""  # what only the author can do
    how: str = ""  # where the prediction comes from


@dataclass(frozen=True)
class Fix(Record):
    """What ``--fix`` did and what it got: the best program that was found beside the program as it was."""

    replaced: tuple[str, ...]
    left: tuple[str, ...]
    before_s: float
    after_s: float
    predicted_gain_s: float | None  # None where runs lay too far apart for a prediction
    gain_s: float
    error_before: float  # relative, against what `against` says
    error_after: float
    agrees: bool
    rounds: int  # of the measurement; 0 where nothing was applied
    notes: tuple[str, ...] = ()
    noise_s: float = 0.0  # a gain or loss below this says nothing
    refused: str = ""  # why the fix is not to be kept; "" where nothing speaks against it
    ambiguous: str = ""  # what others took of the machine while it was measured, where that was too much
    rough: bool = False  # its figures were asked for all the same
    against: str = "float64"  # or the original's own rounding; "" where nothing was compared: `agrees` is idle then
    optimizations: tuple[TriedOptimization, ...] = ()  # in the order in which they were tried
    plan: dict[str, Any] = field(default_factory=dict)  # what ``kernelworks.apply`` puts in place
    code: str = ""  # what a user writes to have the best program without kernelworks
    patch: str = ""  # the same as a unified diff on the program's own source; "" where that is in no file
