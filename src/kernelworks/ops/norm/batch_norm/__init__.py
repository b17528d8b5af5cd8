"""Batch normalisation."""

from __future__ import annotations

from pathlib import Path
from typing import Any, overload

import torch.nn.functional as F
from torch import Tensor

from kernelworks.build.kernels import triton_kernel
from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, two_names
from kernelworks.ops.norm.batch_norm.contract import CONTRACT, TEMPLATE
from kernelworks.ops.norm.batch_norm.mutants import MUTANTS

__all__ = ["OP", "batch_norm"]


@overload
def batch_norm(
    x: Array,
    running_mean: Array | None,
    running_var: Array | None,
    weight: Array | None = None,
    bias: Array | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@overload
def batch_norm(
    input: Array,
    running_mean: Array | None,
    running_var: Array | None,
    weight: Array | None = None,
    bias: Array | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@two_names
def batch_norm(
    x: Any = ABSENT,
    running_mean: Any = ABSENT,
    running_var: Any = ABSENT,
    weight: Any = None,
    bias: Any = None,
    training: Any = False,
    momentum: Any = 0.1,
    eps: Any = 1e-5,
    *,
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """Batch normalisation: mean and variance of a channel over all samples, or the running ones.

    ``output = z * weight[c] + bias[c]`` with ``z = (x - mean) / sqrt(var + eps)``. With ``training``::

        running_mean <- (1 - momentum) running_mean + momentum mean
        running_var  <- (1 - momentum) running_var + momentum var n / (n - 1)

    Args:
        x: [N, C, *], float32, bfloat16 or float16, any strides; n values per channel.
        running_mean: [C] of x's dtype or float32, or None; written to with ``training``.
        running_var: [C] like running_mean, given with it.
        weight: [C] of their dtype, or None for ones.
        bias: [C] of their dtype, or None for zeros.
        training: True for the statistics of x, of more than one value per channel; False for the running ones.
        momentum: how far the running statistics move.
        eps: added to the variance (the biased one).
        out: where to write: a tensor like the result.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` of x's shape; channels_last where x is, else contiguous.

    Error bound: |output - exact| <= u |output| + 2^-24 (|output| + c (|z| + 1) |weight|), u the unit roundoff of the
    dtype, c = max(min(n, 4096)/32, min(n, 128)/4) + 12; a large mean does not enter it. Running statistics: their
    rounding, and 2^-24 momentum c times the spread, or twice the variance.
    Cost: 8 flop an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Ioffe and Szegedy 2015, arXiv:1502.03167.
    """
    if torchs:
        given = (x, running_mean, running_var, weight, bias, training, momentum, eps)
        return TORCH_SIGNATURE(given, torchs, {}, out, kernel)
    return OP.call(x, running_mean, running_var, weight, bias, training, momentum, eps, out, kernel)


TRITON = triton_kernel(Path(__file__).parent, in_place=True)

OP = TEMPLATE.op(CONTRACT, ahead=[TRITON], mutants=MUTANTS)


def _ours(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: Any = 1e-5,
) -> tuple[Any, ...] | str:  # fmt: skip
    if training and isinstance(eps, (int, float)) and eps <= 0:
        return "torch's function takes no eps of 0 in training"
    return input, running_mean, running_var, weight, bias, training, momentum, eps


TORCH_SIGNATURE = TorchSignature(OP, F.batch_norm, _ours, {"input": "x"})
