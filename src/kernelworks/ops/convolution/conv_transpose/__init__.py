"""Transposed convolutions of lines, pictures and volumes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from kernelworks.dispatch.signature import ABSENT, Array
from kernelworks.ops.convolution.conv_transpose.contract import TABLE

__all__ = [
    "CONV_TRANSPOSE1D",
    "CONV_TRANSPOSE2D",
    "CONV_TRANSPOSE3D",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
]

Ints = int | Sequence[int]


@overload
def conv_transpose1d(
    x: Array, weight: Array, bias: Array | None = None, stride: Ints = 1, padding: Ints = 0, output_padding:
    Ints = 0, groups: int = 1, dilation: Ints = 1, *, out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def conv_transpose1d(
    *, input: Array, weight: Array, bias: Array | None = None, stride: Ints = 1, padding: Ints = 0,
    output_padding: Ints = 0, groups: int = 1, dilation: Ints = 1, out: Array | None = None, kernel: str | None
    = None,
) -> Array: ...  # fmt: skip
def conv_transpose1d(
    x: Any = ABSENT, weight: Any = ABSENT, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding:
    Any = 0, groups: Any = 1, dilation: Any = 1, *, out: Any = None, kernel: str | None = None, **torchs: Any,
) -> Any:  # fmt: skip
    """Transposed convolution of a batch of lines: what a convolution's input gets back from its output.

    ``output[b, o, p] = bias[o] + sum_{c, k} weight[c, o, k] x[b, c, (p + padding - k dilation) / stride]`` along L, of
    the places that divide; x is 0 outside, c runs over the channels of o's group.

    Args:
        x: [B, C, L], float32, bfloat16 or float16, any strides.
        weight: [C, O / groups, KL] of x's dtype, any strides.
        bias: [O] of x's dtype, or None for zeros.
        stride: an int or a list of one of at least 1.
        padding: by how much the output is cut on either side, an int or a list of one of at least 0.
        output_padding: by how much the output is longer at its end, an int or a list of one, below stride or dilation.
        groups: into how many groups channels and filters are divided; C and O must be multiples of it.
        dilation: how far apart the elements of a window are, an int or a list of one of at least 1.
        out: where to write: a tensor of the output's shape, contiguous or in its memory format.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [B, O, OL], each ``(n - 1) stride - 2 padding + dilation (k - 1) + output_padding + 1`` long.

    Error bound: ``u |output| + gamma(n + 1) (sum |weight x| + |bias|)``, n = C / groups times the window's size,
    gamma(n) = n 2^-24 / (1 - n 2^-24), u the unit roundoff of the dtype.
    Cost: 2 flop for each product; reads x and weight once and writes the output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.conv_transpose1d; Dumoulin and Visin 2016, arXiv:1603.07285.
    """
    if torchs:
        given = (x, weight, bias, stride, padding, output_padding, groups, dilation)
        return CONV_TRANSPOSE1D.torch_signature(given, torchs, {}, out, kernel)
    return CONV_TRANSPOSE1D.call(x, weight, bias, stride, padding, output_padding, groups, dilation, out, kernel)


@overload
def conv_transpose2d(
    x: Array, weight: Array, bias: Array | None = None, stride: Ints = 1, padding: Ints = 0, output_padding:
    Ints = 0, groups: int = 1, dilation: Ints = 1, *, out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def conv_transpose2d(
    *, input: Array, weight: Array, bias: Array | None = None, stride: Ints = 1, padding: Ints = 0,
    output_padding: Ints = 0, groups: int = 1, dilation: Ints = 1, out: Array | None = None, kernel: str | None
    = None,
) -> Array: ...  # fmt: skip
def conv_transpose2d(
    x: Any = ABSENT, weight: Any = ABSENT, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding:
    Any = 0, groups: Any = 1, dilation: Any = 1, *, out: Any = None, kernel: str | None = None, **torchs: Any,
) -> Any:  # fmt: skip
    """Transposed convolution of a batch of pictures: what a convolution's input gets back from its output.

    ``output[b, o, p] = bias[o] + sum_{c, k} weight[c, o, k] x[b, c, (p + padding - k dilation) / stride]`` along H
    and W, of the places that divide; x is 0 outside, c runs over the channels of o's group.

    Args:
        x: [B, C, H, W], float32, bfloat16 or float16, any strides.
        weight: [C, O / groups, KH, KW] of x's dtype, any strides.
        bias: [O] of x's dtype, or None for zeros.
        stride: an int or a pair of at least 1.
        padding: by how much the output is cut on either side, an int or a pair of at least 0.
        output_padding: by how much the output is longer at its end, an int or a pair, below stride or dilation.
        groups: into how many groups channels and filters are divided; C and O must be multiples of it.
        dilation: how far apart the elements of a window are, an int or a pair of at least 1.
        out: where to write: a tensor of the output's shape, contiguous or in its memory format.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [B, O, OH, OW], each ``(n - 1) stride - 2 padding + dilation (k - 1) + output_padding + 1`` long. A
        result lies channels_last if x or weight does.

    Error bound: ``u |output| + gamma(n + 1) (sum |weight x| + |bias|)``, n = C / groups times the window's size,
    gamma(n) = n 2^-24 / (1 - n 2^-24), u the unit roundoff of the dtype.
    Cost: 2 flop for each product; reads x and weight once and writes the output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.conv_transpose2d; Dumoulin and Visin 2016, arXiv:1603.07285.
    """
    if torchs:
        given = (x, weight, bias, stride, padding, output_padding, groups, dilation)
        return CONV_TRANSPOSE2D.torch_signature(given, torchs, {}, out, kernel)
    return CONV_TRANSPOSE2D.call(x, weight, bias, stride, padding, output_padding, groups, dilation, out, kernel)


@overload
def conv_transpose3d(
    x: Array, weight: Array, bias: Array | None = None, stride: Ints = 1, padding: Ints = 0, output_padding:
    Ints = 0, groups: int = 1, dilation: Ints = 1, *, out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def conv_transpose3d(
    *, input: Array, weight: Array, bias: Array | None = None, stride: Ints = 1, padding: Ints = 0,
    output_padding: Ints = 0, groups: int = 1, dilation: Ints = 1, out: Array | None = None, kernel: str | None
    = None,
) -> Array: ...  # fmt: skip
def conv_transpose3d(
    x: Any = ABSENT, weight: Any = ABSENT, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding:
    Any = 0, groups: Any = 1, dilation: Any = 1, *, out: Any = None, kernel: str | None = None, **torchs: Any,
) -> Any:  # fmt: skip
    """Transposed convolution of a batch of volumes: what a convolution's input gets back from its output.

    ``output[b, o, p] = bias[o] + sum_{c, k} weight[c, o, k] x[b, c, (p + padding - k dilation) / stride]`` along D, H
    and W, of the places that divide; x is 0 outside, c runs over the channels of o's group.

    Args:
        x: [B, C, D, H, W], float32, bfloat16 or float16, any strides.
        weight: [C, O / groups, KD, KH, KW] of x's dtype, any strides.
        bias: [O] of x's dtype, or None for zeros.
        stride: an int or three of at least 1.
        padding: by how much the output is cut on either side, an int or three of at least 0.
        output_padding: by how much the output is longer at its end, an int or three, below stride or dilation.
        groups: into how many groups channels and filters are divided; C and O must be multiples of it.
        dilation: how far apart the elements of a window are, an int or three of at least 1.
        out: where to write: a tensor of the output's shape, contiguous or in its memory format.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [B, O, OD, OH, OW], each ``(n - 1) stride - 2 padding + dilation (k - 1) + output_padding + 1``
        long. A result lies channels_last if x or weight does.

    Error bound: ``u |output| + gamma(n + 1) (sum |weight x| + |bias|)``, n = C / groups times the window's size,
    gamma(n) = n 2^-24 / (1 - n 2^-24), u the unit roundoff of the dtype.
    Cost: 2 flop for each product; reads x and weight once and writes the output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.conv_transpose3d; Dumoulin and Visin 2016, arXiv:1603.07285.
    """
    if torchs:
        given = (x, weight, bias, stride, padding, output_padding, groups, dilation)
        return CONV_TRANSPOSE3D.torch_signature(given, torchs, {}, out, kernel)
    return CONV_TRANSPOSE3D.call(x, weight, bias, stride, padding, output_padding, groups, dilation, out, kernel)


CONV_TRANSPOSE1D = TABLE.op("conv_transpose1d")
CONV_TRANSPOSE2D = TABLE.op("conv_transpose2d")
CONV_TRANSPOSE3D = TABLE.op("conv_transpose3d")
