"""Reductions, the ops of the table in ``contract.py``. Written by `make docs`: changes are lost."""

from typing import Any, overload

import torch

from kernelworks.dispatch.signature import ABSENT, Array, two_names
from kernelworks.ops.reduction.reduction_table.contract import TABLE

__all__ = [
    "AMAX",
    "AMIN",
    "LOGSUMEXP",
    "MEAN",
    "NORM",
    "STD",
    "VAR",
    "amax",
    "amin",
    "logsumexp",
    "mean",
    "norm",
    "std",
    "var",
]


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
    dim: int | tuple[int, ...] | list[int] | None = (),
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

    ``output = max over dim of x; NaN where there is one``.

    Computed in float64 whatever the dtype, and rounded once.

    Args:
        x: any shape, float32, bfloat16 or float16, any strides.
        dim: dimensions, also counted from the end: one, a list of them, or None for all.
        keepdim: whether the output keeps the dimensions, with one element.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output``, of x's dtype.

    Error bound: none, it is exact.
    The same bits for any number of threads.
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
    dim: int | tuple[int, ...] | list[int] | None = (),
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

    ``output = min over dim of x; NaN where there is one``.

    Computed in float64 whatever the dtype, and rounded once.

    Args:
        x: any shape, float32, bfloat16 or float16, any strides.
        dim: dimensions, also counted from the end: one, a list of them, or None for all.
        keepdim: whether the output keeps the dimensions, with one element.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output``, of x's dtype.

    Error bound: none, it is exact.
    The same bits for any number of threads.
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

    ``output = (sum over dim of x) / n``.

    Computed in float64 whatever the dtype, and rounded once.

    Args:
        x: any shape, float32, bfloat16 or float16, any strides.
        dim: dimensions, also counted from the end: one, a list of them, or None for all.
        keepdim: whether the output keeps the dimensions, with one element.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output``, of x's dtype; nan where a line has no elements.

    Error bound: u |output| + (n + 2) 2^-53 mean |x|.
    The same bits for any number of threads.
    Cost: 1 operations an element; reads x once for each stage and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.mean.
    """
    if torchs or rest:
        return MEAN.torch_signature((x, dim, *rest), torchs, {"keepdim": keepdim}, out, kernel)
    return MEAN.call(x, dim, keepdim, out, kernel)


MEAN = TABLE.op("mean")


@overload
def var(
    x: Array,
    dim: int | tuple[int, ...] | list[int] | None = None,
    *,
    keepdim: bool = False,
    correction: float = 1.0,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@overload
def var(
    input: Array,
    dim: int | tuple[int, ...] | list[int] | None = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: float | None = 1.0,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@two_names
def var(
    x: Any = ABSENT,
    dim: Any = None,
    *rest: Any,
    keepdim: Any = False,
    correction: Any = 1.0,
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """The variance of the elements along dimensions, or of all.

    ``output = (sum over dim of (x - mean)^2) / max(n - correction, 0)``.

    Computed in float64 whatever the dtype, and rounded once.

    Args:
        x: any shape, float32, bfloat16 or float16, any strides.
        dim: dimensions, also counted from the end: one, a list of them, or None for all.
        correction: a number, finite in float32.
        keepdim: whether the output keeps the dimensions, with one element.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output``, of x's dtype; nan where a line has no elements.

    Error bound: u |output| + ((n + 8) 2^-53 sum (x - mean)^2 + n ((n + 2) 2^-53 mean |x|)^2) / (n - correction).
    The same bits for any number of threads.
    Cost: 4 operations an element; reads x once for each stage and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Chan, Golub and LeVeque, Algorithms for Computing the Sample Variance, Am. Stat. 37(3), 1983.
    """
    if torchs or rest:
        return VAR.torch_signature((x, dim, *rest), torchs, {"keepdim": keepdim, "correction": correction}, out, kernel)
    return VAR.call(x, dim, keepdim, correction, out, kernel)


VAR = TABLE.op("var")


@overload
def std(
    x: Array,
    dim: int | tuple[int, ...] | list[int] | None = None,
    *,
    keepdim: bool = False,
    correction: float = 1.0,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@overload
def std(
    input: Array,
    dim: int | tuple[int, ...] | list[int] | None = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: float | None = 1.0,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@two_names
def std(
    x: Any = ABSENT,
    dim: Any = None,
    *rest: Any,
    keepdim: Any = False,
    correction: Any = 1.0,
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """The standard deviation of the elements along dimensions, or of all.

    ``output = sqrt((sum over dim of (x - mean)^2) / max(n - correction, 0))``.

    Computed in float64 whatever the dtype, and rounded once.

    Args:
        x: any shape, float32, bfloat16 or float16, any strides.
        dim: dimensions, also counted from the end: one, a list of them, or None for all.
        correction: a number, finite in float32.
        keepdim: whether the output keeps the dimensions, with one element.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output``, of x's dtype; nan where a line has no elements.

    Error bound: u |output| + min(e / output, sqrt(e)), e the variance's.
    The same bits for any number of threads.
    Cost: 4 operations an element; reads x once for each stage and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.std.
    """
    if torchs or rest:
        return STD.torch_signature((x, dim, *rest), torchs, {"keepdim": keepdim, "correction": correction}, out, kernel)
    return STD.call(x, dim, keepdim, correction, out, kernel)


STD = TABLE.op("std")


@overload
def logsumexp(
    x: Array,
    dim: int | tuple[int, ...] | list[int],
    *,
    keepdim: bool = False,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@overload
def logsumexp(
    input: Array,
    dim: int | tuple[int, ...] | list[int],
    keepdim: bool = False,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@two_names
def logsumexp(
    x: Any = ABSENT,
    dim: Any = ABSENT,
    *rest: Any,
    keepdim: Any = False,
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """The logarithm of the sum of exponentials along dimensions.

    ``output = log(sum over dim of e^x)``.

    Computed in float64 whatever the dtype, and rounded once.

    Args:
        x: any shape, float32, bfloat16 or float16, any strides.
        dim: dimensions, also counted from the end: one, or a list of them.
        keepdim: whether the output keeps the dimensions, with one element.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output``, of x's dtype; -inf where a line has no elements.

    Error bound: u |output| + 2^-22 + n 2^-53 + 2^-51 max |x|.
    The same bits for any number of threads.
    Cost: 4 operations an element and 1 exponentials; reads x once for each stage and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Blanchard, Higham and Higham, Accurately Computing the Log-Sum-Exp, IMA J. Numer. Anal. 41(4), 2021.
    """
    if torchs or rest:
        return LOGSUMEXP.torch_signature((x, dim, *rest), torchs, {"keepdim": keepdim}, out, kernel)
    return LOGSUMEXP.call(x, dim, keepdim, out, kernel)


LOGSUMEXP = TABLE.op("logsumexp")


@overload
def norm(
    x: Array,
    p: float = 2.0,
    dim: int | tuple[int, ...] | list[int] | None = None,
    *,
    keepdim: bool = False,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@overload
def norm(
    input: Array,
    p: float | str | None = "fro",
    dim: int | tuple[int, ...] | list[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@two_names
def norm(
    x: Any = ABSENT,
    p: Any = 2.0,
    dim: Any = None,
    *rest: Any,
    keepdim: Any = False,
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """The norm of the elements along dimensions, or of all.

    ``output = (sum over dim of |x|^p)^(1 / p); max |x| where p is infinite``.

    Computed in float64 whatever the dtype, and rounded once.

    Args:
        x: any shape, float32, bfloat16 or float16, any strides.
        dim: dimensions, also counted from the end: one, a list of them, or None for all.
        p: 2 or 1 or inf.
        keepdim: whether the output keeps the dimensions, with one element.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output``, of x's dtype; 0 where a line has no elements.

    Error bound: u output + (n + 4) 2^-53 output; nothing where p is infinite.
    The same bits for any number of threads.
    Cost: 2 operations an element; reads x once for each stage and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.linalg.vector_norm.
    """
    if torchs or rest or p == "fro":
        return NORM.torch_signature((x, p, dim, *rest), torchs, {"keepdim": keepdim}, out, kernel)
    return NORM.call(x, dim, keepdim, p, out, kernel)


NORM = TABLE.op("norm")
