"""Known-wrong versions of add_layer_norm, beside those that every norm has."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from kernelworks.contract import Mutant

__all__ = ["MUTANTS"]


def _of(x: Tensor, normed: Tensor, s: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
    w, b = (p if p is None else p.float() for p in (weight, bias))
    return F.layer_norm(normed.float(), x.shape[-1:], w, b, eps).to(x.dtype), s.to(x.dtype)


MUTANTS = (
    Mutant("residual not added", lambda x, r, *rest: _of(x, x, x.float() + r, *rest), "the norm is of x alone"),
    Mutant("difference", lambda x, r, *rest: _of(x, x.float() - r, x.float() - r, *rest), "subtracted"),
    Mutant("sum rounded twice", lambda x, r, *rest: _of(x, x + r, (x + r).bfloat16(), *rest), "the sum in bfloat16"),
)
