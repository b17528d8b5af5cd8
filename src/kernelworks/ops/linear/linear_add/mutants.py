"""Known-wrong versions of linear_add beside those of its op template. The verification must reject every one."""

from __future__ import annotations

from kernelworks.contract import Mutant
from kernelworks.ops.linear.linear_add.contract import TEMPLATE

__all__ = ["MUTANTS"]

MUTANTS = (
    Mutant("missing residual", TEMPLATE.replace_arguments(residual=lambda a: a["residual"] * 0),
           "the residual is not added"),
    Mutant("residual twice", TEMPLATE.replace_arguments(residual=lambda a: a["residual"] * 2),
           "two groups add the same residual"),
    Mutant("residual of other columns", TEMPLATE.replace_arguments(residual=lambda a: a["residual"].roll(1, -1)),
           "the residual's tile is read one column aside"),
    Mutant("residual in bfloat16",
           TEMPLATE.replace_arguments(residual=lambda a: a["residual"].bfloat16().to(a["x"].dtype)),
           "the residual is rounded to bfloat16"),
)  # fmt: skip
