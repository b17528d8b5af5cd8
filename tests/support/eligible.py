"""Our rows taken on any machine: one row at a time passes for proved here, whatever certificates this machine has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from kernelworks.build.cpp import TARGETS
from kernelworks.contract import Kernel
from kernelworks.dispatch import certificates
from kernelworks.dispatch import op as ops
from kernelworks.machine import machine

KERNELS = [name for name in ("avx2", "avx512") if TARGETS[name].needs <= machine().features]


@contextlib.contextmanager
def only(row: str) -> Iterator[set[tuple[str, str]]]:
    """Within, the rows of this name are the only proved ones; yields the (op, pass) that such a row was taken for."""
    taken: set[tuple[str, str]] = set()

    def invalid(op: str, candidate: Kernel, kind: str | None = None) -> str | None:
        return None if candidate.source is None or candidate.name == row else "not the row of this test"

    def choose(op: ops.Op, request: object, asked: str | None = None) -> ops.Choice:
        found = chosen(op, request, asked)  # type: ignore[arg-type]
        if found.kernel.name == row:
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
