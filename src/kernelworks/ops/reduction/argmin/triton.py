"""argmin on the GPU: argmax's functions on elements with the other sign."""

import torch
import triton.language as tl

from kernelworks.build.triton import configs, kernel
from kernelworks.ops.reduction.argmax import triton as largest
from kernelworks.templates.reduction import triton_forward
from kernelworks.tile.reduction import Reduction

met_largest = largest._met


@kernel
def _met(lanes, v, offset):
    return met_largest(lanes, -v.to(tl.float32), offset)


ARGMIN = Reduction(
    configs(__file__), lanes=largest._lanes, met=_met, reduced=largest._reduced, nothing=largest._nothing,
    joined=largest._joined, gathered=largest._gathered, result=largest._result, states=(torch.int32, torch.int64),
    none=-(2**31), other=float("inf"), tiles=largest.TILES,
)  # fmt: skip
forward = triton_forward(ARGMIN, torch.int64)
