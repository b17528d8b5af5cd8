"""Means of windows that follow from the size of the output, of lines, pictures and volumes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from kernelworks.dispatch.signature import ABSENT, Array
from kernelworks.ops.pooling.adaptive_avg_pool.contract import TABLE

__all__ = [
    "ADAPTIVE_AVG_POOL1D", "ADAPTIVE_AVG_POOL2D", "ADAPTIVE_AVG_POOL3D", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
]  # fmt: skip

Ints = int | Sequence[int]
TorchInts = int | Sequence[int | None]


@overload
def adaptive_avg_pool1d(
    x: Array, output_size: Ints, *, out: Array | None = None, kernel: str | None = None
) -> Array: ...
@overload
def adaptive_avg_pool1d(
    *, input: Array, output_size: TorchInts, out: Array | None = None, kernel: str | None = None
) -> Array: ...
def adaptive_avg_pool1d(
    x: Any = ABSENT, output_size: Any = ABSENT, *, out: Any = None, kernel: str | None = None, **torchs: Any
) -> Any:
    """Means of windows of a batch of lines, as many as are asked for.

    ``output[b, c, o] = the mean of x[b, c, floor(o N / O)], ..., x[b, c, ceil((o + 1) N / O) - 1]`` along each of
    L, of N elements and O outputs.

    Args:
        x: [B, C, L], float32, bfloat16 or float16, any strides.
        output_size: an int or a list of one of at least 1. As ``F.adaptive_avg_pool1d`` it may hold None, for a
            dimension that stays as it is.
        out: where to write: a contiguous tensor like the result.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [B, C, OL] of x's dtype, contiguous.

    Error bound: ``u |output| + gamma(n + 1) mean |x|``, n elements of a window, gamma(n) = n 2^-24 / (1 - n 2^-24).
    Cost: n + 1 flop an element of the output; reads x once and writes the output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.adaptive_avg_pool1d.
    """
    if torchs or (isinstance(output_size, (list, tuple)) and None in output_size):
        return ADAPTIVE_AVG_POOL1D.torch_signature((x, output_size), torchs, {}, out, kernel)
    return ADAPTIVE_AVG_POOL1D.call(x, output_size, out, kernel)


@overload
def adaptive_avg_pool2d(
    x: Array, output_size: Ints, *, out: Array | None = None, kernel: str | None = None
) -> Array: ...
@overload
def adaptive_avg_pool2d(
    *, input: Array, output_size: TorchInts, out: Array | None = None, kernel: str | None = None
) -> Array: ...
def adaptive_avg_pool2d(
    x: Any = ABSENT, output_size: Any = ABSENT, *, out: Any = None, kernel: str | None = None, **torchs: Any
) -> Any:
    """Means of windows of a batch of pictures, as many as are asked for.

    ``output[b, c, o] = the mean of x[b, c, floor(o N / O)], ..., x[b, c, ceil((o + 1) N / O) - 1]`` along each of
    H W, of N elements and O outputs.

    Args:
        x: [B, C, H, W], float32, bfloat16 or float16, any strides.
        output_size: an int or a pair (H, W) of at least 1. As ``F.adaptive_avg_pool2d`` it may hold None, for a
            dimension that stays as it is.
        out: where to write: a contiguous tensor like the result.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [B, C, OH, OW] of x's dtype, channels_last if x is.

    Error bound: ``u |output| + gamma(n + 1) mean |x|``, n elements of a window, gamma(n) = n 2^-24 / (1 - n 2^-24).
    Cost: n + 1 flop an element of the output; reads x once and writes the output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.adaptive_avg_pool2d.
    """
    if torchs or (isinstance(output_size, (list, tuple)) and None in output_size):
        return ADAPTIVE_AVG_POOL2D.torch_signature((x, output_size), torchs, {}, out, kernel)
    return ADAPTIVE_AVG_POOL2D.call(x, output_size, out, kernel)


@overload
def adaptive_avg_pool3d(
    x: Array, output_size: Ints, *, out: Array | None = None, kernel: str | None = None
) -> Array: ...
@overload
def adaptive_avg_pool3d(
    *, input: Array, output_size: TorchInts, out: Array | None = None, kernel: str | None = None
) -> Array: ...
def adaptive_avg_pool3d(
    x: Any = ABSENT, output_size: Any = ABSENT, *, out: Any = None, kernel: str | None = None, **torchs: Any
) -> Any:
    """Means of windows of a batch of volumes, as many as are asked for.

    ``output[b, c, o] = the mean of x[b, c, floor(o N / O)], ..., x[b, c, ceil((o + 1) N / O) - 1]`` along each of
    D H W, of N elements and O outputs.

    Args:
        x: [B, C, D, H, W], float32, bfloat16 or float16, any strides.
        output_size: an int or three (D, H, W) of at least 1. As ``F.adaptive_avg_pool3d`` it may hold None, for a
            dimension that stays as it is.
        out: where to write: a contiguous tensor like the result.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [B, C, OD, OH, OW] of x's dtype, channels_last if x is.

    Error bound: ``u |output| + gamma(n + 1) mean |x|``, n elements of a window, gamma(n) = n 2^-24 / (1 - n 2^-24).
    Cost: n + 1 flop an element of the output; reads x once and writes the output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.adaptive_avg_pool3d.
    """
    if torchs or (isinstance(output_size, (list, tuple)) and None in output_size):
        return ADAPTIVE_AVG_POOL3D.torch_signature((x, output_size), torchs, {}, out, kernel)
    return ADAPTIVE_AVG_POOL3D.call(x, output_size, out, kernel)


ADAPTIVE_AVG_POOL1D = TABLE.op("adaptive_avg_pool1d")
ADAPTIVE_AVG_POOL2D = TABLE.op("adaptive_avg_pool2d")
ADAPTIVE_AVG_POOL3D = TABLE.op("adaptive_avg_pool3d")
