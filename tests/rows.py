"""What the generated tests run over: every op, and every row of it that this machine can run."""

from __future__ import annotations

import kernelworks
from kernelworks.dispatch import OPS, Op
from kernelworks.prove import provable

assert kernelworks.__version__  # importing the package lists the ops

ALL_OPS = list(OPS.values())


def runnable_rows() -> list[tuple[Op, str]]:
    """(op, row name) for every row that runs here, torch and reference included."""
    return [
        (op, name)
        for op in ALL_OPS
        for name in [*(row.name for row in provable(op)[0]), *(row.name for row in op.rows if row.source is None)]
    ]


def label(value: object) -> str:
    return value.name if isinstance(value, Op) else str(value)
