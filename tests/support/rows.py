"""What the generated tests run over: every op, and every row of it that this machine can run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

import kernelworks
from kernelworks.build.cpp import TARGETS
from kernelworks.contract import Row
from kernelworks.dispatch import certificates
from kernelworks.dispatch.op import OPS, Op
from kernelworks.machine import has_gpu, machine

assert kernelworks.__version__  # importing the package lists the ops

T = TypeVar("T")
ALL_OPS = list(OPS.values())


def runs_here(row: Row) -> bool:
    """By what the machine has. Nothing is built for the answer: every worker asks while it collects tests, and would
    wait for the other's builds; and a row that does not build must fail its tests, not drop out of them."""
    return has_gpu() if row.device == "cuda" else TARGETS[row.target].needs <= machine().features


def runnable_rows() -> list[tuple[Op, str]]:
    """(op, row name) for every row that runs here, torch and reference included."""
    return [
        (op, row.name)
        for op in ALL_OPS
        for row in op.rows
        if row.source is None or runs_here(row)  # torch and the reference run everywhere
    ]


def certified(op: Op, row: str) -> bool:
    """Whether a proof of all cases is on record for a row's source and compiler: on this kind of machine, on another
    one where the results of its instructions are the same on both, or of a GPU's row on any. So the tests of a machine
    that nobody has seen before are no longer than those of the others."""
    found = op.row(row)
    kinds = (
        [k for k in certificates.shipped_kinds() if k.startswith("sm_")] if found.device == "cuda" else [machine().kind]
    )
    return found.source is not None and (
        any(certificates.invalid(op.name, found, kind) is None for kind in kinds)
        or certificates.elsewhere(op.name, found) is not None
    )


def thorough_if_certified(op: str, *rows: str) -> Callable[[T], T]:
    """Decorates a test of what a GPU's rows compile to: it takes a compile of up to 15 s, and a certificate says that
    this very source was compiled, and ran."""
    if all(certified(OPS[op], row) for row in rows):
        return pytest.mark.thorough
    return lambda test: test


def label(value: object) -> str:
    return value.name if isinstance(value, Op) else str(value)
