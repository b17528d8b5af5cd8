"""Instance normalisation."""

from __future__ import annotations

from pathlib import Path
from typing import Any, overload

import torch.nn.functional as F
from torch import Tensor

from kernelworks.build.kernels import triton_kernel
from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, two_names
from kernelworks.ops.norm.instance_norm.contract import CONTRACT, TEMPLATE
from kernelworks.ops.norm.instance_norm.mutants import MUTANTS

__all__ = ["OP", "instance_norm"]


@overload
def instance_norm(
    x: Array,
    running_mean: Array | None = None,
    running_var: Array | None = None,
    weight: Array | None = None,
    bias: Array | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@overload
def instance_norm(
    input: Array,
    running_mean: Array | None = None,
    running_var: Array | None = None,
    weight: Array | None = None,
    bias: Array | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@two_names
def instance_norm(
    x: Any = ABSENT,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: Any = True,
    momentum: Any = 0.1,
    eps: Any = 1e-5,
    *,
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """Instance normalisation: mean and variance of a channel of a sample, or the running ones.

    ``output = z * weight[c] + bias[c]`` with ``z = (x - mean) / sqrt(var + eps)``. With ``use_input_stats``::

        running_mean <- (1 - momentum) running_mean + momentum (mean, averaged over samples)
        running_var  <- (1 - momentum) running_var + momentum (var n / (n - 1), averaged over samples)

    Args:
        x: [N, C, *], float32, bfloat16 or float16, any strides; n values per channel of a sample.
        running_mean: [C] of x's dtype or float32, or None; written to with ``use_input_stats``.
        running_var: [C] like running_mean, given with it.
        weight: [C] of their dtype, or None for ones.
        bias: [C] of their dtype, or None for zeros.
        use_input_stats: True for the statistics of x, of more than one value per channel; False for the running ones.
        momentum: how far the running statistics move.
        eps: added to the variance (the biased one).
        out: where to write: a tensor like the result.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` of x's shape; channels_last where x is, else contiguous.

    Error bound: as batch_norm's, n the values of a channel of a sample.
    Cost: 8 flop an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Ulyanov, Vedaldi and Lempitsky 2016, arXiv:1607.08022.
    """
    if torchs:
        given = (x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
        return TORCH_SIGNATURE(given, torchs, {}, out, kernel)
    return OP.call(x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps, out, kernel)


TRITON = triton_kernel(Path(__file__).parent, in_place=True)

OP = TEMPLATE.op(CONTRACT, ahead=[TRITON], mutants=MUTANTS)


def _ours(
    input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None, weight: Tensor | None = None,
    bias: Tensor | None = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> tuple[Any, ...]:  # fmt: skip
    return input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps


TORCH_SIGNATURE = TorchSignature(OP, F.instance_norm, _ours, {"input": "x"})
