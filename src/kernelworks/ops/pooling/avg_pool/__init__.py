"""Means of windows of lines, pictures and volumes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from kernelworks.dispatch.signature import ABSENT, Array
from kernelworks.ops.pooling.avg_pool.contract import TABLE

__all__ = ["AVG_POOL1D", "AVG_POOL3D", "avg_pool1d", "avg_pool3d"]

Ints = int | Sequence[int]


@overload
def avg_pool1d(
    x: Array, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, *, out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def avg_pool1d(
    *, input: Array, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
def avg_pool1d(
    x: Any = ABSENT, kernel_size: Any = ABSENT, stride: Any = None, padding: Any = 0, ceil_mode: Any = False,
    count_include_pad: Any = True, *, out: Any = None, kernel: str | None = None, **torchs: Any,
) -> Any:  # fmt: skip
    """Means of windows of a batch of lines.

    ``output[b, c, o] = sum_i x[b, c, o stride + i - padding] / count`` along each of L; x is 0 outside.

    Args:
        x: [B, C, L], float32, bfloat16 or float16, any strides.
        kernel_size: the window, an int or a list of one of at least 1.
        stride: an int or a list of one of at least 1; None for windows side by side.
        padding: zeros on either side, as kernel_size, at most half of it.
        ceil_mode: whether a last window may reach over the end.
        count_include_pad: whether ``count`` is the size of the window, padding included, or what of it lies in x. What
            ``ceil_mode`` adds behind the padding is not counted.
        out: where to write: a contiguous tensor like the result.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [B, C, OL] of x's dtype, contiguous.

    Error bound: ``u |output| + gamma(n + 1) mean |x|``, n elements of a window, gamma(n) = n 2^-24 / (1 - n 2^-24).
    Cost: n + 1 flop an element of the output; reads x once and writes the output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.avg_pool1d.
    """
    if torchs:
        given = (x, kernel_size, stride, padding, ceil_mode, count_include_pad)
        return AVG_POOL1D.torch_signature(given, torchs, {}, out, kernel)
    return AVG_POOL1D.call(x, kernel_size, stride, padding, ceil_mode, count_include_pad, out, kernel)


@overload
def avg_pool3d(
    x: Array, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None, *, out: Array | None = None, kernel: str
    | None = None,
) -> Array: ...  # fmt: skip
@overload
def avg_pool3d(
    *, input: Array, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None, out: Array | None = None, kernel: str |
    None = None,
) -> Array: ...  # fmt: skip
def avg_pool3d(
    x: Any = ABSENT, kernel_size: Any = ABSENT, stride: Any = None, padding: Any = 0, ceil_mode: Any = False,
    count_include_pad: Any = True, divisor_override: Any = None, *, out: Any = None, kernel: str | None = None,
    **torchs: Any,
) -> Any:  # fmt: skip
    """Means of windows of a batch of volumes.

    ``output[b, c, o] = sum_i x[b, c, o stride + i - padding] / count`` along each of D, H, W; x is 0 outside.

    Args:
        x: [B, C, D, H, W], float32, bfloat16 or float16, any strides.
        kernel_size: the window, an int or three (along D, H, W) of at least 1.
        stride: an int or three (along D, H, W) of at least 1; None for windows side by side.
        padding: zeros on either side, as kernel_size, at most half of it.
        ceil_mode: whether a last window may reach over the end.
        count_include_pad: whether ``count`` is the size of the window, padding included, or what of it lies in x. What
            ``ceil_mode`` adds behind the padding is not counted.
        divisor_override: what each sum is divided by, at least 1; None for ``count``.
        out: where to write: a contiguous tensor like the result.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [B, C, OD, OH, OW] of x's dtype, contiguous.

    Error bound: ``u |output| + gamma(n + 1) mean |x|``, n elements of a window, gamma(n) = n 2^-24 / (1 - n 2^-24).
    Cost: n + 1 flop an element of the output; reads x once and writes the output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.avg_pool3d.
    """
    if torchs:
        given = (x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
        return AVG_POOL3D.torch_signature(given, torchs, {}, out, kernel)
    return AVG_POOL3D.call(x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, out, kernel)


AVG_POOL1D = TABLE.op("avg_pool1d")
AVG_POOL3D = TABLE.op("avg_pool3d")
