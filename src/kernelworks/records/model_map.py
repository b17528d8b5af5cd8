"""The kernel map of one model: which families and ops occur in it, and where its time goes."""

from __future__ import annotations

from dataclasses import dataclass

from kernelworks.records.base import Record

__all__ = ["MappedCalls", "ModelMap"]


@dataclass(frozen=True)
class MappedCalls:
    """Calls of one torch operator from one place in the program: a hotspot of its diagnosis, and its op in the map."""

    operator: str  # torch's
    module: str  # dotted path in the model, "" outside one
    source: str  # "file.py:123"
    calls: int
    seconds: float  # of one run
    share: float  # of the wall clock
    share_of_roofline: float | None  # T_min / T; None if nothing says how much work it is
    bottleneck: str
    op: str  # of kernelworks, that computes the same; "" if there is none
    family: str  # of that op, "" if there is none
    kernel: str  # that its calls would take once swapped; "" where torch stays
    verified: bool  # whether a certificate of that kernel holds on this kind of machine
    page: str  # the op's own folder, from the package's; "" if there is none
    exercises: tuple[str, ...] = ()  # of `kernelworks learn`, in which the op is written


@dataclass(frozen=True)
class ModelMap(Record):
    """``calls`` in the order of time, of the same account as a diagnosis of the program; seconds of one run."""

    program: str
    machine: str
    wall_s: float
    calls: tuple[MappedCalls, ...]
    elsewhere_s: float  # time that is in no call: gaps, and calls too small for a hotspot
    rough: bool
    date: str
