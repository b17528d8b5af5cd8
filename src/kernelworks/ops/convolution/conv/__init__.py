"""Convolutions of lines and volumes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from kernelworks.dispatch.signature import ABSENT, Array
from kernelworks.ops.convolution.conv.contract import TABLE

__all__ = ["CONV1D", "CONV3D", "conv1d", "conv3d"]

Ints = int | Sequence[int]


@overload
def conv1d(
    x: Array, weight: Array, bias: Array | None = None, stride: Ints = 1, padding: Ints = 0, dilation: Ints = 1,
    groups: int = 1, *, out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def conv1d(
    *, input: Array, weight: Array, bias: Array | None = None, stride: Ints = 1, padding: Ints | str = 0,
    dilation: Ints = 1, groups: int = 1, out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
def conv1d(
    x: Any = ABSENT, weight: Any = ABSENT, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any =
    1, groups: Any = 1, *, out: Any = None, kernel: str | None = None, **torchs: Any,
) -> Any:  # fmt: skip
    """Convolution (a cross-correlation, as torch has it) of a batch of lines.

    ``output[b, o, p] = bias[o] + sum_{c, k} weight[o, c, k] x[b, c, p stride + k dilation - padding]`` along L; x is 0
    outside, c runs over the channels of o's group.

    Args:
        x: [B, C, L], float32, bfloat16 or float16, any strides.
        weight: [O, C / groups, KL] of x's dtype, any strides.
        bias: [O] of x's dtype, or None for zeros.
        stride: an int or a list of one of at least 1.
        padding: zeros on either side, an int or a list of one of at least 0. In torch's signature also "valid" and
            "same".
        dilation: how far apart the elements of a window are, an int or a list of one of at least 1.
        groups: into how many groups channels and filters are divided; C and O must be multiples of it.
        out: where to write: a tensor of the output's shape, contiguous or in its memory format.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [B, O, OL], each ``(n + 2 padding - dilation (k - 1) - 1) // stride + 1`` long.

    Error bound: ``u |output| + gamma(n + 1) (sum |weight x| + |bias|)``, n = C / groups times the window's size,
    gamma(n) = n 2^-24 / (1 - n 2^-24), u the unit roundoff of the dtype.
    Cost: 2 flop for each product; reads x and weight once and writes the output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.conv1d; Dumoulin and Visin 2016, arXiv:1603.07285.
    """
    if torchs or isinstance(padding, str):
        given = (x, weight, bias, stride, padding, dilation, groups)
        return CONV1D.torch_signature(given, torchs, {}, out, kernel)
    return CONV1D.call(x, weight, bias, stride, padding, dilation, groups, out, kernel)


@overload
def conv3d(
    x: Array, weight: Array, bias: Array | None = None, stride: Ints = 1, padding: Ints = 0, dilation: Ints = 1,
    groups: int = 1, *, out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def conv3d(
    *, input: Array, weight: Array, bias: Array | None = None, stride: Ints = 1, padding: Ints | str = 0,
    dilation: Ints = 1, groups: int = 1, out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
def conv3d(
    x: Any = ABSENT, weight: Any = ABSENT, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any =
    1, groups: Any = 1, *, out: Any = None, kernel: str | None = None, **torchs: Any,
) -> Any:  # fmt: skip
    """Convolution (a cross-correlation, as torch has it) of a batch of volumes.

    ``output[b, o, p] = bias[o] + sum_{c, k} weight[o, c, k] x[b, c, p stride + k dilation - padding]`` along D, H and
    W; x is 0 outside, c runs over the channels of o's group.

    Args:
        x: [B, C, D, H, W], float32, bfloat16 or float16, any strides.
        weight: [O, C / groups, KD, KH, KW] of x's dtype, any strides.
        bias: [O] of x's dtype, or None for zeros.
        stride: an int or three of at least 1.
        padding: zeros on either side, an int or three of at least 0. In torch's signature also "valid" and "same".
        dilation: how far apart the elements of a window are, an int or three of at least 1.
        groups: into how many groups channels and filters are divided; C and O must be multiples of it.
        out: where to write: a tensor of the output's shape, contiguous or in its memory format.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [B, O, OD, OH, OW], each ``(n + 2 padding - dilation (k - 1) - 1) // stride + 1`` long. A result
        lies channels_last if x or weight does.

    Error bound: ``u |output| + gamma(n + 1) (sum |weight x| + |bias|)``, n = C / groups times the window's size,
    gamma(n) = n 2^-24 / (1 - n 2^-24), u the unit roundoff of the dtype.
    Cost: 2 flop for each product; reads x and weight once and writes the output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.conv3d; Dumoulin and Visin 2016, arXiv:1603.07285.
    """
    if torchs or isinstance(padding, str):
        given = (x, weight, bias, stride, padding, dilation, groups)
        return CONV3D.torch_signature(given, torchs, {}, out, kernel)
    return CONV3D.call(x, weight, bias, stride, padding, dilation, groups, out, kernel)


CONV1D = TABLE.op("conv1d")
CONV3D = TABLE.op("conv3d")
