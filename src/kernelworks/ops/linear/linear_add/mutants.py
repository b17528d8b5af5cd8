"""Known-wrong versions of linear_add beside those of its form. The proof must reject every one."""

from __future__ import annotations

from kernelworks.contract import Mutant
from kernelworks.ops.linear.linear_add.contract import FORM

__all__ = ["MUTANTS"]

MUTANTS = (
    Mutant("missing residual", FORM.replaced(residual=lambda a: a["residual"] * 0), "the residual is not added"),
    Mutant("residual twice", FORM.replaced(residual=lambda a: a["residual"] * 2), "two groups add the same residual"),
    Mutant("residual of other columns", FORM.replaced(residual=lambda a: a["residual"].roll(1, -1)),
           "the residual's tile is read one column aside"),
    Mutant("residual in bfloat16", FORM.replaced(residual=lambda a: a["residual"].bfloat16().to(a["x"].dtype)),
           "the residual is rounded to bfloat16"),
)  # fmt: skip
