"""argmax on the GPU: elements as integers of the same order, NaN above all; of the largest the smallest number."""

import torch
import triton.language as tl

from kernelworks.build.triton import configs, kernel
from kernelworks.forms.reduction import triton_forward
from kernelworks.tile.reduction import Reduction

NONE = tl.constexpr(-(2**31))  # below every element


@kernel
def _rank(v):
    """Elements as int32 of the same order: -0 and 0 are equal, NaN is above infinity."""
    wide = v.to(tl.float32) + 0.0
    bits = wide.to(tl.int32, bitcast=True)
    return tl.where(wide == wide, bits ^ ((bits >> 31) & 0x7FFFFFFF), 0x7FFFFFFF)


@kernel
def _reduced(state, axis: tl.constexpr):
    top = tl.max(state[0], axis)
    far: tl.constexpr = 2**31 - 1 if state[1].dtype == tl.int32 else 2**62
    return (top, tl.min(tl.where(state[0] == tl.expand_dims(top, axis), state[1], far), axis))


@kernel
def _piece(v, number, inside, first, axis: tl.constexpr):
    rank = tl.where(inside, _rank(v), NONE)
    top, at = _reduced((rank, tl.broadcast_to(number, rank.shape)), axis)
    return (top, first + at.to(tl.int64))


@kernel
def _joined(before, after):
    later = after[0] > before[0]
    return (tl.where(later, after[0], before[0]), tl.where(later, after[1], before[1]))


@kernel
def _result(state):
    return state[1]


ARGMAX = Reduction(
    configs(__file__), piece=_piece, reduced=_reduced, joined=_joined, result=_result,
    states=(torch.int32, torch.int64), nothing=-(2**31),
)  # fmt: skip
forward = triton_forward(ARGMAX, torch.int64)
