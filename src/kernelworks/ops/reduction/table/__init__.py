"""Reductions, the ops of the table in ``contract.py``. Written by `make docs`: changes are lost."""

from typing import Any, overload

import torch

from kernelworks.dispatch.signature import ABSENT, Array, two_names
from kernelworks.ops.reduction.table.contract import TABLE

__all__ = ["AMAX", "AMIN", "MEAN", "amax", "amin", "mean"]


@overload
def amax(
    x: Array,
    dim: int | tuple[int, ...] | list[int] | None = None,
    *,
    keepdim: bool = False,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@overload
def amax(
    input: Array,
    dim: int | tuple[int, ...] | list[int] = (),
    keepdim: bool = False,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@two_names
def amax(
    x: Any = ABSENT,
    dim: Any = None,
    *rest: Any,
    keepdim: Any = False,
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """The largest element along dimensions, or of all.

    ``output = max over dim of x; NaN where there is one``. Computed in float64 whatever the dtype, and rounded once.

    Args:
        x: any shape, float32, bfloat16 or float16, any strides.
        dim: dimensions, also counted from the end: one, a list of them, or None for all.
        keepdim: whether the output keeps the dimensions, with one element.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output``, of x's dtype.

    Error bound: none, it is exact. The same bits for any number of threads.
    Cost: 1 operations an element; reads x once for each stage and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.amax.
    """
    if torchs or rest:
        return AMAX.torch_signature((x, dim, *rest), torchs, {"keepdim": keepdim}, out, kernel)
    return AMAX.call(x, dim, keepdim, out, kernel)


AMAX = TABLE.op("amax")


@overload
def amin(
    x: Array,
    dim: int | tuple[int, ...] | list[int] | None = None,
    *,
    keepdim: bool = False,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@overload
def amin(
    input: Array,
    dim: int | tuple[int, ...] | list[int] = (),
    keepdim: bool = False,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@two_names
def amin(
    x: Any = ABSENT,
    dim: Any = None,
    *rest: Any,
    keepdim: Any = False,
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """The smallest element along dimensions, or of all.

    ``output = min over dim of x; NaN where there is one``. Computed in float64 whatever the dtype, and rounded once.

    Args:
        x: any shape, float32, bfloat16 or float16, any strides.
        dim: dimensions, also counted from the end: one, a list of them, or None for all.
        keepdim: whether the output keeps the dimensions, with one element.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output``, of x's dtype.

    Error bound: none, it is exact. The same bits for any number of threads.
    Cost: 1 operations an element; reads x once for each stage and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.amin.
    """
    if torchs or rest:
        return AMIN.torch_signature((x, dim, *rest), torchs, {"keepdim": keepdim}, out, kernel)
    return AMIN.call(x, dim, keepdim, out, kernel)


AMIN = TABLE.op("amin")


@overload
def mean(
    x: Array,
    dim: int | tuple[int, ...] | list[int] | None = None,
    *,
    keepdim: bool = False,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@overload
def mean(
    input: Array,
    dim: int | tuple[int, ...] | list[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@two_names
def mean(
    x: Any = ABSENT,
    dim: Any = None,
    *rest: Any,
    keepdim: Any = False,
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """The mean of the elements along dimensions, or of all.

    ``output = (sum over dim of x) / n``. Computed in float64 whatever the dtype, and rounded once.

    Args:
        x: any shape, float32, bfloat16 or float16, any strides.
        dim: dimensions, also counted from the end: one, a list of them, or None for all.
        keepdim: whether the output keeps the dimensions, with one element.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output``, of x's dtype; nan where a line has no elements.

    Error bound: u |output| + (n + 2) 2^-53 mean |x|. The same bits for any number of threads.
    Cost: 1 operations an element; reads x once for each stage and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.mean.
    """
    if torchs or rest:
        return MEAN.torch_signature((x, dim, *rest), torchs, {"keepdim": keepdim}, out, kernel)
    return MEAN.call(x, dim, keepdim, out, kernel)


MEAN = TABLE.op("mean")
