"""Known-wrong versions of linear_silu_mul beside those of its op template. The verification must reject every one."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.linear.linear_silu_mul.contract import TEMPLATE

__all__ = ["MUTANTS"]


def _columns_of_a_tile(x: Tensor, weight: Tensor) -> Tensor:
    """Rows of the two weights lie in one tile by turns; here those of its second half come first."""
    y = x @ weight.T
    n = y.shape[-1]
    return y.roll(n // 2, -1) if n > 1 else y


def _of_gate_alone(*args: Any) -> Any:
    x, gate, _ = args
    sums = x.double() @ gate.double().T
    return (sums * sums.sigmoid()).to(x.dtype)


MUTANTS = (
    Mutant("gate for up",
           TEMPLATE.replace_arguments(gate_weight=lambda a: a["up_weight"], up_weight=lambda a: a["gate_weight"]),
           "silu of the other product"),
    Mutant("up twice", TEMPLATE.replace_arguments(gate_weight=lambda a: a["up_weight"]),
           "the gate's tile is of the other weight"),
    Mutant("gate alone", _of_gate_alone, "the other product is left out"),
    Mutant("halves exchanged", TEMPLATE.altered_definition(_columns_of_a_tile),
           "the halves of a tile's columns change places"),
)  # fmt: skip
