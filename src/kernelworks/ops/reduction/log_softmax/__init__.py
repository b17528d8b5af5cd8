"""The logarithm of softmax along any dimension."""

from __future__ import annotations

from typing import Any, overload

import torch
import torch.nn.functional as F

from kernelworks.dispatch.signature import ABSENT, Array, two_names
from kernelworks.ops.reduction.log_softmax.contract import CONTRACT, TEMPLATE
from kernelworks.ops.reduction.log_softmax.mutants import MUTANTS

__all__ = ["OP", "log_softmax"]


@overload
def log_softmax(x: Array, dim: int = -1, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def log_softmax(
    input: Array,
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: torch.dtype | None = None,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@two_names
def log_softmax(
    x: Any = ABSENT, dim: Any = -1, *rest: Any, out: Any = None, kernel: str | None = None, **torchs: Any
) -> Any:
    """The logarithm of softmax along one dimension, which underflows nowhere.

    ``output = x - max(x) - log(sum(e^(x - max(x))))`` along ``dim``.

    Args:
        x: any shape of at least one dimension, float32, bfloat16 or float16, any strides.
        dim: the dimension, also counted from the end.
        out: where to write: a contiguous tensor like x.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output``, of x's shape. A line that holds NaN or +inf, or nothing but -inf, is NaN.

    Error bound: |output - exact| <= u |output| + 2^-24 (|output| + |d| + 3 |d - output| + 1.05 mean |d| + min(N, 128) +
    12), with d = x - max(x), its mean weighted by softmax, u the unit roundoff of the dtype.
    Cost: 4 flop and an exponential an element; reads x once from memory and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Blanchard, Higham and Higham 2021, IMA Journal of Numerical Analysis 41(4).
    """
    if torchs or rest:
        return TORCH_SIGNATURE((x, dim, *rest), torchs, {}, out, kernel)
    return OP.call(x, dim, out, kernel)


OP = TEMPLATE.op(CONTRACT, mutants=MUTANTS)
TORCH_SIGNATURE = TEMPLATE.torch_signature(OP, F.log_softmax)
