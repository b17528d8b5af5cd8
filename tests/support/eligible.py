"""Our kernels taken on any machine: one kernel at a time passes for verified here, whatever certificates this machine
has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from one_op import asked

from kernelworks.build.cpp import TARGETS
from kernelworks.contract import Kernel
from kernelworks.dispatch import certificates
from kernelworks.dispatch import op as ops
from kernelworks.machine import machine

# The widest that this machine runs, and with ``--all`` or ``--op`` the others: what stands around a kernel is the same
# for all of them, and a machine without AVX-512 asks avx2.
RUNNABLE = [name for name in ("avx2", "avx512") if TARGETS[name].needs <= machine().features]
KERNELS = RUNNABLE if asked.every_kernel else RUNNABLE[-1:]


@contextlib.contextmanager
def only(kernel: str) -> Iterator[set[tuple[str, str]]]:
    """Within, the kernels of this name are the only verified ones; yields the (op, pass) that such a kernel was taken
    for."""
    taken: set[tuple[str, str]] = set()

    def invalid(op: str, candidate: Kernel, kind: str | None = None) -> str | None:
        return None if candidate.source is None or candidate.name == kernel else "not the kernel of this test"

    def choose(op: ops.Op, request: object, asked: str | None = None) -> ops.Choice:
        found = chosen(op, request, asked)  # type: ignore[arg-type]
        if found.kernel.name == kernel:
            taken.add((op.name, request.pass_))  # type: ignore[attr-defined]
        return found

    chosen = ops.choose
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificates, "invalid_reason", invalid)
        patch.setattr(ops, "choose", choose)
        forget()
        try:
            yield taken
        finally:
            forget()


def forget() -> None:
    for op in ops.OPS.values():
        op.forget()
