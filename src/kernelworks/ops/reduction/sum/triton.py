"""sum on the GPU: float32 within a piece, float64 from piece to piece."""

import torch
import triton.language as tl

from kernelworks.build.triton import configs, kernel
from kernelworks.forms.reduction import backward as backward
from kernelworks.forms.reduction import triton_forward
from kernelworks.tile.reduction import Reduction


@kernel
def _piece(v, number, inside, first, axis: tl.constexpr):
    return (tl.sum(v.to(tl.float32), axis).to(tl.float64),)  # what is not inside was loaded as 0


@kernel
def _reduced(state, axis: tl.constexpr):
    return (tl.sum(state[0], axis),)


@kernel
def _joined(before, after):
    return (before[0] + after[0],)


@kernel
def _result(state):
    return state[0].to(tl.float32)


SUM = Reduction(
    configs(__file__), piece=_piece, reduced=_reduced, joined=_joined, result=_result, states=(torch.float64,),
    nothing=0.0,
)  # fmt: skip
forward = triton_forward(SUM)
