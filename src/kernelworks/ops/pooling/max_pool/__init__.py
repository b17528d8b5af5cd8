"""The largest elements of windows of lines, pictures and volumes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

from kernelworks.dispatch.signature import ABSENT, Array
from kernelworks.ops.pooling.max_pool.contract import TABLE

__all__ = ["MAX_POOL1D", "MAX_POOL2D", "MAX_POOL3D", "max_pool1d", "max_pool2d", "max_pool3d"]

Ints = int | Sequence[int]


@overload
def max_pool1d(
    x: Array, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, dilation: Ints = 1, ceil_mode:
    bool = False, return_indices: Literal[False] = False, *, out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def max_pool1d(
    x: Array, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, dilation: Ints = 1, ceil_mode:
    bool = False, *, return_indices: Literal[True], out: tuple[Array, Array] | None = None, kernel: str | None =
    None,
) -> tuple[Array, Array]: ...  # fmt: skip
@overload
def max_pool1d(
    *, input: Array, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, dilation: Ints = 1,
    ceil_mode: bool = False, return_indices: Literal[False] = False, out: Array | None = None, kernel: str | None
    = None,
) -> Array: ...  # fmt: skip
@overload
def max_pool1d(
    *, input: Array, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, dilation: Ints = 1,
    ceil_mode: bool = False, return_indices: Literal[True], out: tuple[Array, Array] | None = None, kernel: str |
    None = None,
) -> tuple[Array, Array]: ...  # fmt: skip
def max_pool1d(
    x: Any = ABSENT, kernel_size: Any = ABSENT, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: Any = False, return_indices: Any = False, *, out: Any = None, kernel: str | None = None, **torchs: Any,
) -> Any:  # fmt: skip
    """The largest element of each window of a batch of lines.

    ``output[b, c, o] = max_i x[b, c, o stride + i dilation - padding]`` along each of L; what lies outside counts
    for nothing. NaN is the largest.

    Args:
        x: [B, C, L], float32, bfloat16 or float16, any strides.
        kernel_size: the window, an int or a list of one of at least 1.
        stride: an int or a list of one of at least 1; None for windows side by side.
        padding: how far windows reach over either side, as kernel_size, at most half of it.
        dilation: how far apart the elements of a window are, as kernel_size, at least 1.
        ceil_mode: whether a last window may reach over the end.
        return_indices: whether to return ``indices``, too.
        out: where to write: a tensor like the result, or a pair of them.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [B, C, OL] of x's dtype; with ``return_indices`` also ``indices``, int64, of the same shape:
        where the element stands in [L], counted through. Of equal elements the first, of several NaN the last.

    Error bound: none, an element itself. Gradient: ``u |sum| + n 2^-24 sum |grad|`` of n + 1 windows that an
    element is the largest of.
    Cost: a comparison for each element of a window; reads x once and writes the results once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.max_pool1d.
    """
    if torchs:
        given = (x, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
        return MAX_POOL1D.torch_signature(given, torchs, {}, out, kernel)
    return MAX_POOL1D.call(x, kernel_size, stride, padding, dilation, ceil_mode, return_indices, out, kernel)


@overload
def max_pool2d(
    x: Array, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, dilation: Ints = 1, ceil_mode:
    bool = False, return_indices: Literal[False] = False, *, out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def max_pool2d(
    x: Array, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, dilation: Ints = 1, ceil_mode:
    bool = False, *, return_indices: Literal[True], out: tuple[Array, Array] | None = None, kernel: str | None =
    None,
) -> tuple[Array, Array]: ...  # fmt: skip
@overload
def max_pool2d(
    *, input: Array, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, dilation: Ints = 1,
    ceil_mode: bool = False, return_indices: Literal[False] = False, out: Array | None = None, kernel: str | None
    = None,
) -> Array: ...  # fmt: skip
@overload
def max_pool2d(
    *, input: Array, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, dilation: Ints = 1,
    ceil_mode: bool = False, return_indices: Literal[True], out: tuple[Array, Array] | None = None, kernel: str |
    None = None,
) -> tuple[Array, Array]: ...  # fmt: skip
def max_pool2d(
    x: Any = ABSENT, kernel_size: Any = ABSENT, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: Any = False, return_indices: Any = False, *, out: Any = None, kernel: str | None = None, **torchs: Any,
) -> Any:  # fmt: skip
    """The largest element of each window of a batch of pictures.

    ``output[b, c, o] = max_i x[b, c, o stride + i dilation - padding]`` along each of H, W; what lies outside counts
    for nothing. NaN is the largest.

    Args:
        x: [B, C, H, W], float32, bfloat16 or float16, any strides. channels_last is read in place.
        kernel_size: the window, an int or a pair (along H, along W) of at least 1.
        stride: an int or a pair (along H, along W) of at least 1; None for windows side by side.
        padding: how far windows reach over either side, as kernel_size, at most half of it.
        dilation: how far apart the elements of a window are, as kernel_size, at least 1.
        ceil_mode: whether a last window may reach over the end.
        return_indices: whether to return ``indices``, too.
        out: where to write: a tensor like the result, or a pair of them.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [B, C, OH, OW] of x's dtype; with ``return_indices`` also ``indices``, int64, of the same shape:
        where the element stands in [H, W], counted through. Of equal elements the first, of several NaN the last.

    Error bound: none, an element itself. Gradient: ``u |sum| + n 2^-24 sum |grad|`` of n + 1 windows that an
    element is the largest of.
    Cost: a comparison for each element of a window; reads x once and writes the results once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.max_pool2d.
    """
    if torchs:
        given = (x, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
        return MAX_POOL2D.torch_signature(given, torchs, {}, out, kernel)
    return MAX_POOL2D.call(x, kernel_size, stride, padding, dilation, ceil_mode, return_indices, out, kernel)


@overload
def max_pool3d(
    x: Array, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, dilation: Ints = 1, ceil_mode:
    bool = False, return_indices: Literal[False] = False, *, out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def max_pool3d(
    x: Array, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, dilation: Ints = 1, ceil_mode:
    bool = False, *, return_indices: Literal[True], out: tuple[Array, Array] | None = None, kernel: str | None =
    None,
) -> tuple[Array, Array]: ...  # fmt: skip
@overload
def max_pool3d(
    *, input: Array, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, dilation: Ints = 1,
    ceil_mode: bool = False, return_indices: Literal[False] = False, out: Array | None = None, kernel: str | None
    = None,
) -> Array: ...  # fmt: skip
@overload
def max_pool3d(
    *, input: Array, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, dilation: Ints = 1,
    ceil_mode: bool = False, return_indices: Literal[True], out: tuple[Array, Array] | None = None, kernel: str |
    None = None,
) -> tuple[Array, Array]: ...  # fmt: skip
def max_pool3d(
    x: Any = ABSENT, kernel_size: Any = ABSENT, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: Any = False, return_indices: Any = False, *, out: Any = None, kernel: str | None = None, **torchs: Any,
) -> Any:  # fmt: skip
    """The largest element of each window of a batch of volumes.

    ``output[b, c, o] = max_i x[b, c, o stride + i dilation - padding]`` along each of D, H, W; what lies outside
    counts
    for nothing. NaN is the largest.

    Args:
        x: [B, C, D, H, W], float32, bfloat16 or float16, any strides. channels_last is read in place.
        kernel_size: the window, an int or three (along D, H, W) of at least 1.
        stride: an int or three (along D, H, W) of at least 1; None for windows side by side.
        padding: how far windows reach over either side, as kernel_size, at most half of it.
        dilation: how far apart the elements of a window are, as kernel_size, at least 1.
        ceil_mode: whether a last window may reach over the end.
        return_indices: whether to return ``indices``, too.
        out: where to write: a tensor like the result, or a pair of them.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [B, C, OD, OH, OW] of x's dtype; with ``return_indices`` also ``indices``, int64, of the same shape:
        where the element stands in [D, H, W], counted through. Of equal elements the first, of several NaN the last.

    Error bound: none, an element itself. Gradient: ``u |sum| + n 2^-24 sum |grad|`` of n + 1 windows that an
    element is the largest of.
    Cost: a comparison for each element of a window; reads x once and writes the results once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.max_pool3d.
    """
    if torchs:
        given = (x, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
        return MAX_POOL3D.torch_signature(given, torchs, {}, out, kernel)
    return MAX_POOL3D.call(x, kernel_size, stride, padding, dilation, ceil_mode, return_indices, out, kernel)


MAX_POOL1D = TABLE.op("max_pool1d")
MAX_POOL2D = TABLE.op("max_pool2d")
MAX_POOL3D = TABLE.op("max_pool3d")
