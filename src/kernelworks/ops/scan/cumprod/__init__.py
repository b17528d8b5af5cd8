"""The running product along a dimension."""

from __future__ import annotations

from typing import Any, overload

import torch

from kernelworks.dispatch.signature import ABSENT, Array, two_names
from kernelworks.ops.scan.cumprod.contract import CONTRACT, TEMPLATE

__all__ = ["OP", "cumprod"]


@overload
def cumprod(x: Array, dim: int, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def cumprod(
    input: Array, dim: int, *, dtype: torch.dtype | None = None, out: Array | None = None, kernel: str | None = None
) -> Array: ...
@two_names
def cumprod(
    x: Any = ABSENT, dim: Any = ABSENT, *rest: Any, out: Any = None, kernel: str | None = None, **torchs: Any
) -> Any:
    """The running product of the elements along a dimension.

    ``output[i] = x[0] ... x[i]`` along dim, carried in float64 whatever the dtype.

    Args:
        x: any shape, float32, bfloat16 or float16, any strides.
        dim: the dimension, also counted from the end.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output``, of x's shape and dtype. Another ``dtype`` than x's, and integers, are left to torch.

    Error bound: |output - exact| <= u |output| + 2^-52 (i + 1) |output| at element i, u the dtype's unit roundoff; in
    16 bits 2^-24 |output| + 2^-150 more. The same bits for any number of threads. The gradient ``sum over i >= k of
    grad[i] x[0] ... x[k - 1] x[k + 1] ... x[i]`` divides by nothing, so zeros are as any other number: u |grad_x| and
    2^-51 N times the same sum of magnitudes, with N elements a line.
    Cost: 1 flop an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Blelloch 1990, Prefix Sums and Their Applications.
    """
    if torchs or rest:
        return TORCH_SIGNATURE((x, dim, *rest), torchs, {}, out, kernel)
    return OP.call(x, dim, out, kernel)


OP = TEMPLATE.op(CONTRACT)
TORCH_SIGNATURE = TEMPLATE.torch_signature(OP)
