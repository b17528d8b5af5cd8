"""argmax on the GPU: the first of the largest in each lane, then among lanes as integers of the same order."""

import torch
import triton.language as tl

from kernelworks.build.triton import configs, kernel
from kernelworks.templates.reduction import triton_forward
from kernelworks.tile.reduction import Reduction

NONE = tl.constexpr(-(2**31))  # below every element
TILES = 2**18  # of up to 2^12 elements along a line: their numbers are int32


@kernel
def _lanes(shape: tl.constexpr):
    return (tl.full(shape, float("-inf"), tl.float32), tl.zeros(shape, tl.int32))


@kernel
def _met(lanes, v, offset):
    """Where a line is -inf alone nothing is more, and its first element is where lanes begin. NaN is not at most
    anything; no element comes before a NaN that was there first."""
    wide = v.to(tl.float32)
    later = (wide > lanes[0]) | ((wide != wide) & (lanes[0] == lanes[0]))
    return (tl.where(later, wide, lanes[0]), tl.where(later, offset, lanes[1]))


@kernel
def _rank(v):
    """float32 as int32 of the same order: -0 and 0 are equal, NaN is above infinity."""
    bits = (v + 0.0).to(tl.int32, bitcast=True)
    return tl.where(v == v, bits ^ ((bits >> 31) & 0x7FFFFFFF), 0x7FFFFFFF)


@kernel
def _gathered(state, axis: tl.constexpr):
    top = tl.max(state[0], axis)
    far: tl.constexpr = 2**31 - 1 if state[1].dtype == tl.int32 else 2**62
    return (top, tl.min(tl.where(state[0] == tl.expand_dims(top, axis), state[1], far), axis))


@kernel
def _reduced(lanes, number, first, axis: tl.constexpr):
    top, at = _gathered((_rank(lanes[0]), lanes[1] + number), axis)
    return (top, first + at.to(tl.int64))


@kernel
def _nothing(shape: tl.constexpr):
    return (tl.full(shape, NONE, tl.int32), tl.zeros(shape, tl.int64))


@kernel
def _joined(before, after):
    later = after[0] > before[0]
    return (tl.where(later, after[0], before[0]), tl.where(later, after[1], before[1]))


@kernel
def _result(state):
    return state[1]


ARGMAX = Reduction(
    configs(__file__), lanes=_lanes, met=_met, reduced=_reduced, nothing=_nothing, joined=_joined, gathered=_gathered,
    result=_result, states=(torch.int32, torch.int64), none=-(2**31), other=float("-inf"), tiles=TILES,
)  # fmt: skip
forward = triton_forward(ARGMAX, torch.int64)
