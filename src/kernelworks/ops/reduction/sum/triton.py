"""sum on the GPU: float32 in lanes and in the tree over them, float64 from there on."""

import torch
import triton.language as tl

from kernelworks.build.triton import configs, kernel
from kernelworks.templates.reduction import backward as backward
from kernelworks.templates.reduction import triton_forward
from kernelworks.tile.reduction import Reduction

TILES = 64  # additions of a lane: what the bound leaves room for beside the tree


@kernel
def _lanes(shape: tl.constexpr):
    return (tl.zeros(shape, tl.float32),)


@kernel
def _met(lanes, v, offset):
    return (lanes[0] + v.to(tl.float32),)  # what is not inside was loaded as 0


@kernel
def _reduced(lanes, number, first, axis: tl.constexpr):
    return (tl.sum(lanes[0], axis).to(tl.float64),)


@kernel
def _nothing(shape: tl.constexpr):
    return (tl.zeros(shape, tl.float64),)


@kernel
def _joined(before, after):
    return (before[0] + after[0],)


@kernel
def _gathered(state, axis: tl.constexpr):
    return (tl.sum(state[0], axis),)


@kernel
def _result(state):
    return state[0].to(tl.float32)


SUM = Reduction(
    configs(__file__), lanes=_lanes, met=_met, reduced=_reduced, nothing=_nothing, joined=_joined, gathered=_gathered,
    result=_result, states=(torch.float64,), none=0.0, other=0.0, tiles=TILES,
)  # fmt: skip
forward = triton_forward(SUM)
