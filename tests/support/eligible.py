"""Our kernels taken on any machine: one kernel at a time passes for verified here, whatever certificates this machine
has."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator

import pytest
from one_op import asked
from op_kernels import asked_kernels, certified

from kernelworks.build.cpp import TARGETS
from kernelworks.contract import Kernel
from kernelworks.dispatch import certificates
from kernelworks.dispatch import op as ops
from kernelworks.machine import machine

# The widest that this machine runs, and with ``--all`` or ``--op`` the others: what stands around a kernel is the same
# for all of them, and a machine without AVX-512 asks avx2.
RUNNABLE = [name for name in ("avx2", "avx512") if TARGETS[name].needs <= machine().features]
KERNELS = RUNNABLE if asked.every_kernel else RUNNABLE[-1:]

# Of these a certificate speaks for the code that they have here; asked once, and not of what tests put in their place.
PLAINLY = {
    (op.name, kernel.name)
    for op in ops.OPS.values()
    for kernel in op.kernels
    if kernel.name in KERNELS and not asked.every_kernel and certified(op, kernel.name)
}


@contextlib.contextmanager
def only(kernel: str, *, plainly: bool | None = None) -> Iterator[set[tuple[str, str]]]:
    """Within, the kernels of this name are the only verified ones; yields the (op, pass) that such a kernel was taken
    for. ``plainly``: what a kernel takes and when it is taken is as ever, and the code of the plain one runs, which is
    compiled in half a second and not in five. If it is not said, kernels that a certificate speaks for run so unless
    every kernel is asked (`op_kernels.asked_kernels`): most tests are about what stands around a kernel."""
    taken: set[tuple[str, str]] = set()

    def invalid(op: str, candidate: Kernel, kind: str | None = None) -> str | None:
        return None if candidate.source is None or candidate.name == kernel else "not the kernel of this test"

    def choose(op: ops.Op, request: object, asked: str | None = None) -> ops.Choice:
        found = chosen(op, request, asked)  # type: ignore[arg-type]
        if found.kernel.name == kernel:
            taken.add((op.name, request.pass_))  # type: ignore[attr-defined]
        return found

    chosen = ops.choose
    every = ops.OPS.values()
    kernels = [tuple(_plain(op, k, plainly) if k.name == kernel else k for k in op.kernels) for op in every]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "invalid_reason", invalid)
        patch.setattr(ops, "choose", choose)
        for op, its in zip(every, kernels, strict=True):
            patch.setattr(op, "kernels", its)
        forget()
        try:
            yield taken
        finally:
            forget()


def _plain(op: ops.Op, kernel: Kernel, plainly: bool | None) -> Kernel:
    """A kernel with the code of the op's plain one, if that has all that is called of it."""
    if plainly is None:
        plainly = (op.name, kernel.name) in PLAINLY
    if not plainly:
        return kernel
    plain = next((k for k in op.kernels if k.target == "scalar"), kernel)
    return dataclasses.replace(kernel, load=plain.load) if {*kernel.passes} <= {*plain.passes} else kernel


APART = ("sum",)  # of which float32 sums that torch's own are compared with hang on the order of the terms


@contextlib.contextmanager
def coded_plainly() -> Iterator[None]:
    """Within, a kernel for a CPU that this run does not ask (`op_kernels.asked_kernels`) is chosen, declines and is
    named as ever, and the code of the op's plain one runs: a certificate speaks for its own, of which any change makes
    it one that is asked, and which takes a compiler up to 15 s. A pass that the plain one has not is the kernel's."""
    with pytest.MonkeyPatch.context() as patch:
        for name, its in _unasked_plainly().items():
            patch.setattr(ops.OPS[name], "kernels", its)
        forget()
        try:
            yield
        finally:
            forget()


@functools.cache  # to ask all certificates takes a fifth of a second
def _unasked_plainly() -> dict[str, tuple[Kernel, ...]]:
    """The kernels of each op of which there is one that is not asked."""
    found = {}
    for op in ops.OPS.values():
        plain = next((kernel for kernel in op.kernels if kernel.target == "scalar"), None)
        asked = {kernel.name for kernel in asked_kernels(op)}
        left = {k.name for k in op.kernels if k.source is not None and k.device == "cpu"} - asked
        if plain is not None and left and op.name not in APART:
            found[op.name] = tuple(_coded_as(plain, k) if k.name in left else k for k in op.kernels)
    return found


def _coded_as(plain: Kernel, kernel: Kernel) -> Kernel:
    """The kernel, with the hash that it has and the code of another."""

    def load(pass_: str) -> Callable[..., object]:
        return (plain if pass_ in plain.passes else kernel).load(pass_)

    return dataclasses.replace(kernel, load=load, prepare=plain.prepare, hashed=lambda changed: kernel.hash())


def forget() -> None:
    for op in ops.OPS.values():
        op.forget()
