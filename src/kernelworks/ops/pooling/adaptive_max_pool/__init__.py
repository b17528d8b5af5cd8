"""The largest elements of windows that follow from the size of the output, of lines, pictures and volumes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

from kernelworks.dispatch.signature import ABSENT, Array
from kernelworks.ops.pooling.adaptive_max_pool.contract import TABLE

__all__ = [
    "ADAPTIVE_MAX_POOL1D", "ADAPTIVE_MAX_POOL2D", "ADAPTIVE_MAX_POOL3D", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "adaptive_max_pool3d",
]  # fmt: skip

Ints = int | Sequence[int]
TorchInts = int | Sequence[int | None]


@overload
def adaptive_max_pool1d(
    x: Array, output_size: Ints, return_indices: Literal[False] = False, *, out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def adaptive_max_pool1d(
    x: Array, output_size: Ints, return_indices: Literal[True], *, out: tuple[Array, Array] | None = None,
    kernel: str | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip
@overload
def adaptive_max_pool1d(
    *, input: Array, output_size: Ints, return_indices: Literal[False] = False, out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def adaptive_max_pool1d(
    *, input: Array, output_size: Ints, return_indices: Literal[True], out: tuple[Array, Array] | None = None,
    kernel: str | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip
def adaptive_max_pool1d(
    x: Any = ABSENT, output_size: Any = ABSENT, return_indices: Any = False, *, out: Any = None,
    kernel: str | None = None, **torchs: Any,
) -> Any:  # fmt: skip
    """The largest elements of windows of a batch of lines, as many as are asked for.

    ``output[b, c, o] = max of x[b, c, floor(o N / O)], ..., x[b, c, ceil((o + 1) N / O) - 1]`` along each of L, of
    N elements and O outputs. NaN is the largest.

    Args:
        x: [B, C, L], float32, bfloat16 or float16, any strides.
        output_size: an int or a list of one of at least 1.
        return_indices: whether to return ``indices``, too.
        out: where to write: a tensor like the result, or a pair of them.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [B, C, OL] of x's dtype, contiguous. With ``return_indices`` also
        ``indices``, int64, of the same shape: where the element stands in its channel, counted through. Of equal
        elements the first, of several NaN the last.

    Error bound: none, an element itself. Gradient: ``u |sum| + n 2^-24 sum |grad|`` of n + 1 windows that an element is
    the largest of.
    Cost: a comparison for each element of a window; reads x once and writes the results once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.adaptive_max_pool1d.
    """
    if torchs:
        return ADAPTIVE_MAX_POOL1D.torch_signature((x, output_size, return_indices), torchs, {}, out, kernel)
    return ADAPTIVE_MAX_POOL1D.call(x, output_size, return_indices, out, kernel)


@overload
def adaptive_max_pool2d(
    x: Array, output_size: Ints, return_indices: Literal[False] = False, *, out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def adaptive_max_pool2d(
    x: Array, output_size: Ints, return_indices: Literal[True], *, out: tuple[Array, Array] | None = None,
    kernel: str | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip
@overload
def adaptive_max_pool2d(
    *, input: Array, output_size: TorchInts, return_indices: Literal[False] = False, out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def adaptive_max_pool2d(
    *, input: Array, output_size: TorchInts, return_indices: Literal[True], out: tuple[Array, Array] | None = None,
    kernel: str | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip
def adaptive_max_pool2d(
    x: Any = ABSENT, output_size: Any = ABSENT, return_indices: Any = False, *, out: Any = None,
    kernel: str | None = None, **torchs: Any,
) -> Any:  # fmt: skip
    """The largest elements of windows of a batch of pictures, as many as are asked for.

    ``output[b, c, o] = max of x[b, c, floor(o N / O)], ..., x[b, c, ceil((o + 1) N / O) - 1]`` along each of H, W, of
    N elements and O outputs. NaN is the largest.

    Args:
        x: [B, C, H, W], float32, bfloat16 or float16, any strides. channels_last is read in place.
        output_size: an int or a pair (H, W) of at least 1. As ``F.adaptive_max_pool2d`` it may hold None,
            for a dimension that stays as it is.
        return_indices: whether to return ``indices``, too.
        out: where to write: a tensor like the result, or a pair of them.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [B, C, OH, OW] of x's dtype, channels_last if x is. With ``return_indices`` also
        ``indices``, int64, of the same shape: where the element stands in its channel, counted through. Of equal
        elements the first, of several NaN the last.

    Error bound: none, an element itself. Gradient: ``u |sum| + n 2^-24 sum |grad|`` of n + 1 windows that an element is
    the largest of.
    Cost: a comparison for each element of a window; reads x once and writes the results once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.adaptive_max_pool2d.
    """
    if torchs or (isinstance(output_size, (list, tuple)) and None in output_size):
        return ADAPTIVE_MAX_POOL2D.torch_signature((x, output_size, return_indices), torchs, {}, out, kernel)
    return ADAPTIVE_MAX_POOL2D.call(x, output_size, return_indices, out, kernel)


@overload
def adaptive_max_pool3d(
    x: Array, output_size: Ints, return_indices: Literal[False] = False, *, out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def adaptive_max_pool3d(
    x: Array, output_size: Ints, return_indices: Literal[True], *, out: tuple[Array, Array] | None = None,
    kernel: str | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip
@overload
def adaptive_max_pool3d(
    *, input: Array, output_size: TorchInts, return_indices: Literal[False] = False, out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def adaptive_max_pool3d(
    *, input: Array, output_size: TorchInts, return_indices: Literal[True], out: tuple[Array, Array] | None = None,
    kernel: str | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip
def adaptive_max_pool3d(
    x: Any = ABSENT, output_size: Any = ABSENT, return_indices: Any = False, *, out: Any = None,
    kernel: str | None = None, **torchs: Any,
) -> Any:  # fmt: skip
    """The largest elements of windows of a batch of volumes, as many as are asked for.

    ``output[b, c, o] = max of x[b, c, floor(o N / O)], ..., x[b, c, ceil((o + 1) N / O) - 1]`` along each of D H W, of
    N elements and O outputs. NaN is the largest.

    Args:
        x: [B, C, D, H, W], float32, bfloat16 or float16, any strides.
        output_size: an int or three (D, H, W) of at least 1. As ``F.adaptive_max_pool3d`` it may hold None,
            for a dimension that stays as it is.
        return_indices: whether to return ``indices``, too.
        out: where to write: a tensor like the result, or a pair of them.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [B, C, OD, OH, OW] of x's dtype, contiguous. With ``return_indices`` also
        ``indices``, int64, of the same shape: where the element stands in its channel, counted through. Of equal
        elements the first, of several NaN the last.

    Error bound: none, an element itself. Gradient: ``u |sum| + n 2^-24 sum |grad|`` of n + 1 windows that an element is
    the largest of.
    Cost: a comparison for each element of a window; reads x once and writes the results once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.adaptive_max_pool3d.
    """
    if torchs or (isinstance(output_size, (list, tuple)) and None in output_size):
        return ADAPTIVE_MAX_POOL3D.torch_signature((x, output_size, return_indices), torchs, {}, out, kernel)
    return ADAPTIVE_MAX_POOL3D.call(x, output_size, return_indices, out, kernel)


ADAPTIVE_MAX_POOL1D = TABLE.op("adaptive_max_pool1d")
ADAPTIVE_MAX_POOL2D = TABLE.op("adaptive_max_pool2d")
ADAPTIVE_MAX_POOL3D = TABLE.op("adaptive_max_pool3d")
