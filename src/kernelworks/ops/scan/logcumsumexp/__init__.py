"""The running logarithm of a sum of exponentials along a dimension."""

from __future__ import annotations

from typing import Any, overload

import torch
from torch import Tensor

from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, two_names
from kernelworks.ops.scan.logcumsumexp.contract import CONTRACT, TEMPLATE

__all__ = ["OP", "logcumsumexp"]


@overload
def logcumsumexp(x: Array, dim: int, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def logcumsumexp(input: Array, dim: int, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@two_names
def logcumsumexp(
    x: Any = ABSENT, dim: Any = ABSENT, *rest: Any, out: Any = None, kernel: str | None = None, **torchs: Any
) -> Any:
    """The running logarithm of the sum of exponentials along a dimension.

    ``output[i] = log(e^x[0] + ... + e^x[i])`` along dim, carried in float64 whatever the dtype.

    Args:
        x: any shape, float32, bfloat16 or float16, any strides.
        dim: the dimension, also counted from the end.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output``, of x's shape and dtype: -inf while all is, inf from the first inf, NaN from the first NaN on.

    Error bound: |output - exact| <= u |output| + 2^-52 (i + 1) (40 + log N + max |x|) at element i of N, the maximum of
    the finite elements up to it, u the dtype's unit roundoff; in 16 bits 2^-24 |output| + 2^-150 more. The same bits
    for any number of threads. The gradient ``sum over i >= k of grad[i] e^(x[k] - output[i])``: u |grad_x| and 2^-51 N
    (40 + log N + max |x|) times the same sum of magnitudes. As torch's it is 0 at -inf, and NaN where output is -inf.
    Cost: 4 flop, an exponential and a logarithm an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Blelloch 1990, Prefix Sums and Their Applications; torch.logcumsumexp.
    """
    if torchs or rest:
        return TORCH_SIGNATURE((x, dim, *rest), torchs, {}, out, kernel)
    return OP.call(x, dim, out, kernel)


OP = TEMPLATE.op(CONTRACT)


def _ours(input: Tensor, dim: int) -> tuple[Any, ...]:
    return input, dim


TORCH_SIGNATURE = TorchSignature(OP, torch.logcumsumexp, _ours, {"input": "x"})
