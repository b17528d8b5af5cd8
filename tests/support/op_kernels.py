"""What the generated tests run over: every op, and every kernel of it that this machine can run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import pytest
from one_op import asked

import kernelworks
from kernelworks.build.cpp import TARGETS
from kernelworks.contract import Kernel
from kernelworks.dispatch import certificates
from kernelworks.dispatch.op import OPS, Op
from kernelworks.machine import has_gpu, machine
from kernelworks.ops.generated import TABLES

assert kernelworks.__version__  # importing the package lists the ops

T = TypeVar("T")
# All entries of a table run through the same code, with another expression: what an entry alone can have wrong is asked
# of each (tests/templates, by table), all else of a few: one of them with names, one
# with numbers, one that torch writes in place; a gradient that is a view, one of stages. A verification asks everything
# of every entry. Siblings of a template are asked alike (tests/templates/test_siblings.py).
SHOWN = (
    "hardswish", "mish", "softplus", "max_pool2d", "avg_pool3d", "adaptive_avg_pool2d", "adaptive_max_pool2d",
    "scatter_add", "conv_transpose2d", "mean", "norm", "kl_div", "adam_", "lion_", "matern12_matmul",
    "polynomial_matmul", "polynomial_kernel", "fft",
)  # fmt: skip
ENTRIES = {name for entries in TABLES.values() for name in entries}
ALL_NAMES = [name for name in OPS if name not in ENTRIES - {*SHOWN}]
ALL_OPS = [OPS[name] for name in ALL_NAMES]
FIRST_OF_FAMILY = [*{op.op_package.parent: op for op in reversed(ALL_OPS)}.values()]


def runs_here(kernel: Kernel) -> bool:
    """By what the machine has. Nothing is built for the answer: every worker asks while it collects tests, and would
    wait for the other's builds; and a kernel that does not build must fail its tests, not drop out of them."""
    return has_gpu() if kernel.device == "cuda" else TARGETS[kernel.target].needs <= machine().features


def asked_kernels(op: Op) -> list[Kernel]:
    """An op's own kernels that this run of the tests asks: the plain one, each for which no certificate speaks, and of
    the first op of a family the widest of each source that this machine runs. What a certificate names, source, flags
    and compiler, is all that the others are made of, and to compile them takes five sixths of all compiling: the plain
    one, of a second, shows that the op's contract is still what kernels keep. With ``--all`` or ``--op`` all."""
    here = [kernel for kernel in op.kernels if kernel.source is not None and runs_here(kernel)]
    widest = {kernel.source: kernel for kernel in reversed(here)}
    plain = [kernel for kernel in here if kernel.target == "scalar"]
    return [
        kernel
        for kernel in here
        if asked.every_kernel
        or kernel in plain
        or (kernel is widest[kernel.source] and (op in FIRST_OF_FAMILY or not plain))
        or not certified(op, kernel.name)
    ]


@functools.cache  # to ask all certificates takes a fifth of a second, and the tests of every op go by this list
def runnable_kernels() -> list[tuple[Op, str]]:
    """(op, kernel name) for each kernel that is asked, and torch's and the reference, which run everywhere."""
    return [
        (op, kernel.name)
        for op in ALL_OPS
        for own in [asked_kernels(op)]
        for kernel in op.kernels
        if kernel.source is None or kernel in own
    ]


def certified(op: Op, kernel: str) -> bool:
    """Whether a verification of all cases is on record for a kernel's source and compiler: on this kind of machine, on
    another one where the results of its instructions are the same on both, or of a GPU's kernel on any. So the tests of
    a machine that nobody has seen before are no longer than those of the others."""
    found = op.kernel(kernel)
    kinds = (
        [k for k in certificates.shipped_kinds() if k.startswith("sm_")] if found.device == "cuda" else [machine().kind]
    )
    return found.source is not None and (
        any(certificates.invalid_reason(op.name, found, kind) is None for kind in kinds)
        or certificates.transferable_certificate(op.name, found) is not None
    )


def thorough_if_certified(op: str, *kernels: str) -> Callable[[T], T]:
    """Decorates a test of what a GPU's kernels compile to: it takes a compile of up to 15 s, and a certificate says
    that this very source was compiled, and ran."""
    if all(certified(OPS[op], kernel) for kernel in kernels):
        return pytest.mark.thorough
    return lambda test: test


def label(value: object) -> str:
    return value.name if isinstance(value, Op) else str(value)
