"""Means of a picture's windows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, into
from kernelworks.build.sharing import choose_threads
from kernelworks.contract import Request
from kernelworks.contract.arguments import schema_of
from kernelworks.contract.int_pair import pair
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature
from kernelworks.ops.pooling.avg_pool2d.contract import ARGUMENTS, CONTRACT, windows_of
from kernelworks.ops.pooling.avg_pool2d.mutants import MUTANTS
from kernelworks.templates.torch_kernels import python_kernels
from kernelworks.templates.window import is_channels_last, like_picture

__all__ = ["OP", "avg_pool2d"]

Pairs = int | Sequence[int]
WIDEST = 8192  # as simd.cpp has it


@overload
def avg_pool2d(
    x: Array, kernel_size: Pairs, stride: Pairs | None = None, padding: Pairs = 0, *, count_include_pad: bool = True,
    out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def avg_pool2d(
    *, input: Array, kernel_size: Pairs, stride: Pairs | None = None, padding: Pairs = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None, out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...  # fmt: skip
def avg_pool2d(
    x: Any = ABSENT, kernel_size: Any = ABSENT, stride: Any = None, padding: Any = 0, *torchs_more: Any,
    count_include_pad: Any = True, out: Any = None, kernel: str | None = None, **torchs: Any,
) -> Any:  # fmt: skip
    """Means of windows of a batch of pictures.

    ``output[b, c, h, w] = sum_{i, j} x[b, c, h stride + i - padding, w stride + j - padding] / count``, x is 0 outside.

    Args:
        x: [B, C, H, W], float32, bfloat16 or float16, any strides; channels_last is read in place.
        kernel_size: the window, an int or a pair (along H, along W) of at least 1.
        stride: an int or a pair of at least 1; None for windows side by side.
        padding: zeros on either side, an int or a pair, at most half of kernel_size.
        count_include_pad: whether ``count`` is the size of the window, or what of it lies in the picture.
        out: where to write: a tensor of the output's shape, contiguous or in its memory format.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [B, C, OH, OW], channels_last if x is, with ``OH = (H + 2 padding - kernel_size) // stride + 1``.

    Error bound: ``u |output| + gamma(n + 1) mean |x|``, n elements of a window, gamma(n) = n 2^-24 / (1 - n 2^-24).
    Cost: n + 1 flop an element of the output; reads x once and writes the output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.avg_pool2d.
    """
    if torchs or torchs_more:
        own = {"count_include_pad": count_include_pad} if count_include_pad is not True else {}
        return TORCH_SIGNATURE((x, kernel_size, stride, padding, *torchs_more), torchs | own, {}, out, kernel)
    return OP.call(x, kernel_size, stride, padding, count_include_pad, out, kernel)


def _narrow(request: Request) -> str | None:
    W = request.args["x"].shape[3]
    return f"takes pictures up to {WIDEST} wide, got {W}" if W > WIDEST else None


def _output(x: Tensor, kernel_size: Any, stride: Any, padding: Any) -> Tensor:
    counts = windows_of(kernel_size, stride, padding).counts((x.shape[2], x.shape[3]))
    return like_picture(x, (x.shape[0], x.shape[1], *counts))


def _forward(
    lib: Any, x: Tensor, kernel_size: Any, stride: Any, padding: Any, count_include_pad: bool, out: Any = None
) -> Tensor:  # fmt: skip
    output: Tensor = _output(x, kernel_size, stride, padding) if out is None else out
    windows = windows_of(kernel_size, stride, padding)
    channels = is_channels_last(x) and output.stride(1) == 1
    if not channels and x.stride(3) != 1:
        x = x.contiguous()
    run, threads = choose_threads(lib.avg_pool2d, x.numel())
    run(
        output, x, *windows.size, *windows.stride, *windows.padding, count_include_pad, channels, threads
    )  # fmt: skip
    return output


def _plain_backward(
    lib: Any, grad: Tensor, x: Tensor, kernel_size: Any, stride: Any, padding: Any, count_include_pad: bool,
    out: Any = None,
) -> Tensor:  # fmt: skip
    windows, sums = windows_of(kernel_size, stride, padding), torch.zeros(x.shape, dtype=torch.float64)
    lib.avg_pool2d_backward(sums, grad, *windows.size, *windows.stride, *windows.padding, count_include_pad)
    made: Tensor = (torch.empty_like(x) if out is None else out).copy_(sums.float())
    return made


def _composite(x: Tensor, kernel_size: Any, stride: Any, padding: Any, count_include_pad: bool) -> Tensor:
    steps = pair(kernel_size if stride is None else stride)
    return F.avg_pool2d(x, pair(kernel_size), steps, pair(padding), False, count_include_pad)


def _torch_backward(
    grad: Tensor, x: Tensor, kernel_size: Any, stride: Any, padding: Any, count_include_pad: bool, out: Any = None
) -> Any:  # fmt: skip
    """torch's own operator, which is differentiable again."""
    steps = pair(kernel_size if stride is None else stride)
    made = torch.ops.aten.avg_pool2d_backward(
        grad, x, pair(kernel_size), steps, pair(padding), False, count_include_pad, None
    )
    return into(made, out)


FORWARD = Pass(
    f"avg_pool2d({schema_of(ARGUMENTS)}, str? op_kernel=None) -> Tensor",
    lambda x, kernel_size, stride, padding, count: _output(x, kernel_size, stride, padding),
)
BACKWARD = Pass(
    f"avg_pool2d_backward(Tensor grad_output, {schema_of(ARGUMENTS)}, str? op_kernel=None) -> Tensor",
    lambda grad, x, *others: torch.empty_like(x),
    returns=("x",),
    reads={"x": ()},
)
PACKAGE = Path(__file__).parent
OP: Op = Op(
    CONTRACT,
    [
        *cpp_kernels(PACKAGE, forward=_forward, targets={"avx512": "simd.cpp", "avx2": "simd.cpp"}, guard=_narrow),
        *cpp_kernels(PACKAGE, forward=_forward, backward=_plain_backward, targets={"scalar": "scalar.cpp"}),
        *python_kernels(CONTRACT, FORWARD, BACKWARD, _composite, lambda: OP, torch_backward=_torch_backward),
    ],
    op_package=__file__,
    forward=FORWARD,
    backward=BACKWARD,
    composite=_composite,
    mutants=MUTANTS,
)


def _ours(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: Any = None,
) -> tuple[Any, ...] | str:  # fmt: skip
    if ceil_mode or divisor_override is not None:
        return "ceil_mode and divisor_override are torch's alone"
    stride = None if isinstance(stride, (list, tuple)) and not stride else stride
    return input, kernel_size, stride, padding, count_include_pad


TORCH_SIGNATURE = TorchSignature(OP, F.avg_pool2d, _ours, {"input": "x"})
