"""cosine_similarity on the GPU: the stages that ``tile/reduction_stages/`` puts into its kernels."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import configs, kernel
from kernelworks.contract.reduced_dims import reduced_shape
from kernelworks.ops.reduction.cosine_similarity.operands import side_by_side
from kernelworks.tile.reduction_stages.stage_reduction import Stages, reduce_stages, root, write_gradients

__all__ = ["backward", "forward"]

CONFIGS = configs(__file__)


@kernel
def _square_of_x(operand, found, n, number):
    return operand[0] * operand[0]


@kernel
def _square_of_y(operand, found, n, number):
    return operand[1] * operand[1]


@kernel
def _product(operand, found, n, number):
    return operand[0] * operand[1]


@kernel
def _root(s, found, n, number):
    return root(s)


@kernel
def _sum(s, found, n, number):
    return s


@kernel
def _limited(norm, eps):
    """At least eps; a NaN stays."""
    return tl.where(norm < eps, eps, norm)


@kernel
def _cosine(s, found, n, number):
    return s / (_limited(found[0], number[0]) * _limited(found[1], number[0]))


@kernel
def _flow(grad, found, n, number):
    return grad


@kernel
def _gradients(operand, found, n, coefficient, number):
    one, other = _limited(found[0], number[0]), _limited(found[1], number[0])
    both = one * other
    along1 = tl.where(found[0] == 0.0, 0.0, operand[0] * (found[2] / (both * one * found[0])))
    along2 = tl.where(found[1] == 0.0, 0.0, operand[1] * (found[2] / (both * other * found[1])))
    return (coefficient * (operand[1] / both - along1), coefficient * (operand[0] / both - along2))


NORMS = ((_square_of_x, "sum", _root), (_square_of_y, "sum", _root))
AHEAD = Stages((*NORMS, (_product, "sum", _cosine)))
BACK = Stages((*NORMS, (_product, "sum", _sum)), _flow, _gradients)


def forward(x: Tensor, y: Tensor, dim: int, eps: float, out: Tensor | None = None) -> Tensor:
    if out is None:
        out = torch.empty(reduced_shape(tuple(x.shape), dim, False), dtype=x.dtype, device=x.device)
    if not x.numel():
        return out.zero_()
    operands, where = side_by_side(x, y, dim)
    reduce_stages(CONFIGS, AHEAD, operands, where, (float(eps),), out)
    return out


def backward(grad: Tensor, x: Tensor, y: Tensor, dim: int, eps: float, needs: Any, out: Any = None) -> Any:
    operands, where = side_by_side(x.contiguous(), y.contiguous(), dim)
    made = tuple(map(torch.empty_like, operands)) if out is None else tuple(out)
    if x.numel():
        wanted = tuple(m if need or out is not None else None for m, need in zip(made, needs, strict=True))
        found = reduce_stages(CONFIGS, BACK, operands, where, (float(eps),), None)
        write_gradients(CONFIGS, BACK, operands, where, (float(eps),), grad.contiguous(), found, wanted)
    return made
