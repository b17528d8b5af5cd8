"""Group normalisation."""

from __future__ import annotations

from pathlib import Path
from typing import Any, overload

import torch.nn.functional as F
from torch import Tensor

from kernelworks.build.kernels import triton_kernel
from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, two_names
from kernelworks.ops.norm.group_norm.contract import CONTRACT, TEMPLATE
from kernelworks.ops.norm.group_norm.mutants import MUTANTS

__all__ = ["OP", "group_norm"]


@overload
def group_norm(
    x: Array,
    num_groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@overload
def group_norm(
    input: Array,
    num_groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@two_names
def group_norm(
    x: Any = ABSENT,
    num_groups: Any = ABSENT,
    weight: Any = None,
    bias: Any = None,
    eps: Any = 1e-5,
    *,
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """Group normalisation: mean and variance of a group of channels of a sample.

    ``output = z * weight[c] + bias[c]`` with ``z = (x - mean) / sqrt(var + eps)``.

    Args:
        x: [N, C, *], float32, bfloat16 or float16, any strides.
        num_groups: G, which divides C; a group is C / G channels side by side.
        weight: [C] of x's dtype or float32, or None for ones.
        bias: [C] of weight's dtype, or None for zeros.
        eps: added to the variance (the biased one).
        out: where to write: a tensor like the result.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` of x's shape; channels_last where x is, else contiguous.

    Error bound: |output - exact| <= u |output| + 2^-24 (|output| + c (|z| + 1) |weight|), u the unit roundoff of the
    dtype, c = max(min(n, 4096)/32, min(n, 128)/4) + 12, n the elements of a group; a large mean does not enter it.
    Cost: 8 flop an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Wu and He 2018, arXiv:1803.08494.
    """
    if torchs:
        return TORCH_SIGNATURE((x, num_groups, weight, bias, eps), torchs, {}, out, kernel)
    return OP.call(x, num_groups, weight, bias, eps, out, kernel)


TRITON = triton_kernel(Path(__file__).parent, in_place=True)

OP = TEMPLATE.op(CONTRACT, ahead=[TRITON], mutants=MUTANTS)


def _ours(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> tuple[Any, ...]:
    return input, num_groups, weight, bias, eps


TORCH_SIGNATURE = TorchSignature(OP, F.group_norm, _ours, {"input": "x"})
