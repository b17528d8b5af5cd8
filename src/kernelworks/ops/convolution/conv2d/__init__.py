"""Convolution of pictures."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, in_float64, into, python_kernel, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract import Request
from kernelworks.contract.arguments import schema_of
from kernelworks.contract.int_pair import pair
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature
from kernelworks.ops.convolution.conv2d.contract import ARGUMENTS, CONTRACT, windows_of
from kernelworks.ops.convolution.conv2d.mutants import MUTANTS
from kernelworks.templates.window import Windows, like_picture

__all__ = ["OP", "conv2d"]

Pairs = int | Sequence[int]


@overload
def conv2d(
    x: Array, weight: Array, bias: Array | None = None, stride: Pairs = 1, padding: Pairs = 0, dilation: Pairs = 1,
    groups: int = 1, *, out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def conv2d(
    *, input: Array, weight: Array, bias: Array | None = None, stride: Pairs = 1, padding: Pairs | str = 0,
    dilation: Pairs = 1, groups: int = 1, out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
def conv2d(
    x: Any = ABSENT, weight: Any = ABSENT, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: Any = 1, *, out: Any = None, kernel: str | None = None, **torchs: Any,
) -> Any:  # fmt: skip
    """Two-dimensional convolution (a cross-correlation, as torch has it) over a batch of pictures.

    ``output[b, o, h, w] = bias[o] + sum_{c, i, j} weight[o, c, i, j] x[b, first(o) + c, h', w']`` with ``h' = h stride
    + i dilation - padding``, and so w'; x is 0 outside, first(o) the first channel of o's group.

    Args:
        x: [B, C, H, W], float32, bfloat16 or float16, any strides; channels_last is read in place.
        weight: [O, C / groups, KH, KW] of x's dtype, any strides.
        bias: [O] of x's dtype, or None for zeros.
        stride: an int or a pair (along H, along W) of at least 1.
        padding: zeros on either side, an int or a pair of at least 0. In torch's signature also "valid" and "same".
        dilation: how far apart the elements of a window are, an int or a pair of at least 1.
        groups: into how many groups channels and filters are divided; C and O must be multiples of it.
        out: where to write: a tensor of the output's shape, contiguous or in its memory format.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [B, O, OH, OW], channels_last if x or weight is, with ``OH = (H + 2 padding - dilation (KH - 1) - 1)
        // stride + 1``.

    Error bound: ``u |output| + gamma(n + 1) (sum |weight x| + |bias|)``, n = C / groups KH KW terms of a sum, gamma(n)
    = n 2^-24 / (1 - n 2^-24), u the unit roundoff of the dtype.
    Cost: 2 n flop an element of the output; reads x and weight once and writes the output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.conv2d; Dumoulin and Visin 2016, arXiv:1603.07285.
    """
    if torchs or isinstance(padding, str):
        return TORCH_SIGNATURE((x, weight, bias, stride, padding, dilation, groups), torchs, {}, out, kernel)
    return OP.call(x, weight, bias, stride, padding, dilation, groups, out, kernel)


MOST_TAPS, ROOM, TILE = 1024, 16384, 64  # as simd.cpp has them
CHANNELS, ROWS, PRODUCT = 1, 2, 0  # its loops
MOST_REACHED = 128  # elements of a picture that one output of triton_depthwise may hold in registers


def _output(x: Tensor, weight: Tensor, windows: Windows) -> Tensor:
    shape = (x.shape[0], weight.shape[0], *windows.counts((x.shape[2], x.shape[3])))
    return like_picture(x, shape, weight)


def _loop(x: Tensor, weight: Tensor, output: Tensor, windows: Windows, groups: int) -> int:
    """Which of the loops of simd.cpp serves a call."""
    if groups != x.shape[1]:
        return PRODUCT
    if x.stride(1) == output.stride(1) == 1 and weight.shape[0] == groups and weight[0].numel() <= MOST_TAPS:
        return CHANNELS
    right = windows.stride[1]
    per = output.shape[3] + (windows.size[1] - 1) * windows.dilation[1] // right + 1
    return ROWS if ROOM // (per * right) >= windows.reach(0) else PRODUCT


def _forward(
    lib: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int,
    out: Any = None,
) -> Tensor:  # fmt: skip
    windows = windows_of(weight, stride, padding, dilation)
    output: Tensor = _output(x, weight, windows) if out is None else out
    if not output.numel():
        return output
    loop, wide = _loop(x, weight, output, windows, groups), weight.float()
    taps = wide.flatten(1).T.contiguous() if loop == CHANNELS else wide.contiguous()
    run, threads = choose_threads(lib.conv2d, output.numel() * weight[0].numel() / 8)
    scratch = None if loop else torch.empty(threads * weight.shape[0] // groups * TILE, dtype=torch.float32)
    run(
        output, x, taps, bias if bias is None else bias.contiguous(), *windows.size, *windows.stride, *windows.padding,
        *windows.dilation, groups, loop, scratch, threads,
    )  # fmt: skip
    return output


def _plain_forward(
    lib: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int,
    out: Any = None,
) -> Tensor:  # fmt: skip
    windows = windows_of(weight, stride, padding, dilation)
    output: Tensor = _output(x, weight, windows) if out is None else out
    sums = torch.zeros(output.shape, dtype=torch.float64)
    lib.conv2d(output, x, weight, bias, *windows.stride, *windows.padding, *windows.dilation, groups, sums)
    return output


def _plain_backward(
    lib: Any, grad: Tensor, x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int,
    needs: list[bool], out: Any = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    windows = windows_of(weight, stride, padding, dilation)
    made = _gradients(x, weight, needs) if out is None else out
    shapes = (x.shape, weight.shape, weight.shape[:1])
    sums = [
        torch.zeros(shape, dtype=torch.float64) if want else None for shape, want in zip(shapes, needs, strict=True)
    ]
    lib.conv2d_backward(*sums, grad, x, weight, *windows.stride, *windows.padding, *windows.dilation, groups)
    for target, found in zip(made, sums, strict=True):
        if found is not None:
            target.copy_(found.float())
    return made


def _gradients(x: Tensor, weight: Tensor, needs: Sequence[bool]) -> tuple[Tensor, Tensor, Tensor]:
    """Tensors for the gradients, in the formats of what they are gradients of; those that nobody asks for are empty."""
    return (
        torch.empty_like(x) if needs[0] else x.new_empty(0),
        torch.empty_like(weight) if needs[1] else x.new_empty(0),
        x.new_empty(weight.shape[0] if needs[2] else 0),
    )


def _torch_backward(
    grad: Tensor, x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int, needs: list[bool],
    out: Any = None, compute: torch.dtype | None = None,
) -> Any:  # fmt: skip
    """torch's own operator, which is differentiable again."""
    wide = [t.to(compute or t.dtype) for t in (grad, x, weight)]
    found = torch.ops.aten.convolution_backward(
        *wide, [weight.shape[0]], pair(stride), pair(padding), pair(dilation), False, (0, 0), groups, needs
    )
    made = tuple(x.new_empty(0) if g is None else g.to(x.dtype) for g in found)
    return into(made, out)


def _composite(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:  # fmt: skip
    return F.conv2d(x, weight, bias, pair(stride), pair(padding), pair(dilation), groups)


def _reference(*args: Any, out: Any = None) -> Any:
    return in_float64(CONTRACT.reference, CONTRACT.results_in_order)(*args, out=out)


def _declines_depthwise(request: Request) -> str | None:
    """What a thread cannot hold, and what is a product of matrices."""
    args = request.args
    weight, channels = args["weight"], args["x"].shape[1]
    if weight.shape[1] != 1 or args["groups"] != channels:
        return f"takes filters of one channel each (groups == channels), got {args['groups']} groups of {channels}"
    windows = windows_of(weight, args["stride"], args["padding"], args["dilation"])
    reached = windows.reach(0) * windows.size[1]
    if reached > MOST_REACHED:
        return f"takes windows that reach over {MOST_REACHED} elements, dilation counted along H, got {reached}"
    if not args["x"].shape[0] * weight.shape[0] * math.prod(windows.counts(args["x"].shape[2:])) < 2**31:
        return "takes outputs of up to 2^31 elements"
    if request.pass_ != "forward" and (windows.stride != (1, 1) or weight.shape[0] != channels):
        return "makes gradients of a stride of 1 and of one filter a channel"
    return None


OPTIONS = "int[2] stride, int[2] padding, int[2] dilation, int groups"
PACKAGE = Path(__file__).parent
OP = Op(
    CONTRACT,
    [
        triton_kernel(PACKAGE, name="triton_depthwise", module="triton_depthwise", guard=_declines_depthwise),
        triton_kernel(PACKAGE, passes=("forward",)),
        *cpp_kernels(PACKAGE, forward=_forward, targets={"avx512": "simd.cpp", "avx2": "simd.cpp"}),
        *cpp_kernels(PACKAGE, forward=_plain_forward, backward=_plain_backward, targets={"scalar": "scalar.cpp"}),
        python_kernel("torch", lambda *args, out=None: into(_composite(*args), out), _torch_backward),
        python_kernel("reference", _reference, functools.partial(_torch_backward, compute=torch.float64)),
    ],
    op_package=__file__,
    forward=Pass(
        f"conv2d({schema_of(ARGUMENTS)}, str? op_kernel=None) -> Tensor",
        lambda x, weight, bias, stride, padding, dilation, groups: _output(
            x, weight, windows_of(weight, stride, padding, dilation)
        ),
    ),
    backward=Pass(
        f"conv2d_backward(Tensor grad_output, Tensor x, Tensor weight, {OPTIONS}, bool[] needs, str? op_kernel=None) "
        "-> (Tensor, Tensor, Tensor)",
        lambda grad, x, weight, stride, padding, dilation, groups, needs: _gradients(x, weight, needs),
        returns=("x", "weight", "bias"),
        reads={"x": ("weight",), "weight": ("x",), "bias": ()},
    ),
    composite=_composite,
    mutants=MUTANTS,
)


def _ours(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: Any = 1
) -> tuple[Any, ...] | str:  # fmt: skip
    if isinstance(padding, str):
        if padding == "valid":
            padding = 0
        elif padding == "same" and pair(stride) == (1, 1):
            reach = [d * (k - 1) for d, k in zip(pair(dilation), weight.shape[2:], strict=False)]
            if any(n % 2 for n in reach):
                return "padding='same' puts more on one side than on the other here"
            padding = tuple(n // 2 for n in reach)
        else:
            return f"padding={padding!r} is torch's to refuse"
    return input, weight, bias, stride, padding, dilation, groups


TORCH_SIGNATURE = TorchSignature(OP, F.conv2d, _ours, {"input": "x"})
