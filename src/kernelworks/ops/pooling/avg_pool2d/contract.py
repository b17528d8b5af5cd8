"""What avg_pool2d promises."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import UNIT_ROUNDOFF, Case, Contract, Cost, Request, rounding
from kernelworks.contract.arguments import Arguments, Flag, check_of, errors_of
from kernelworks.contract.cases import draw
from kernelworks.contract.int_pair import IntPair, pair
from kernelworks.contract.tensor_argument import T
from kernelworks.templates.product import gamma
from kernelworks.templates.window import KINDS, SHAPES, Slide, Windows, in_format

__all__ = ["ARGUMENTS", "CONTRACT", "windows_of"]

SMALLEST = 2.0**-149  # of float32's subnormals
ARGUMENTS: Arguments = {
    "x": T("B C H W"),
    "kernel_size": IntPair(1, usual=2),
    "stride": IntPair(1, optional=True),
    "padding": IntPair(0, usual=0),
    "count_include_pad": Flag(),
}
_check = check_of(ARGUMENTS)


def windows_of(kernel_size: Any, stride: Any, padding: Any) -> Windows:
    """How the windows lie; without a stride side by side."""
    return Windows.of(kernel_size, kernel_size if stride is None else stride, padding, 1)


def check(**call: Any) -> None:
    _check(**call)
    size, padding = pair(call["kernel_size"]), pair(call["padding"])
    if any(p > n // 2 for p, n in zip(padding, size, strict=True)):
        raise ValueError(f"padding must be at most half of kernel_size {size}, got {padding}")
    windows_of(size, call["stride"], padding).need_room("x", tuple(call["x"].shape[2:]))


def _count(x: Tensor, windows: Windows, count_include_pad: bool) -> Tensor | int:
    """By how many each sum is divided."""
    if count_include_pad:
        return math.prod(windows.size)
    ones = torch.ones(1, 1, *x.shape[2:], dtype=torch.float64, device=x.device)
    return sum((part for _, _, part in windows.taps(ones)), torch.zeros((), dtype=torch.float64))


def reference(
    x: Tensor, kernel_size: Any, stride: Any, padding: Any, count_include_pad: bool
) -> tuple[Tensor, ...]:  # fmt: skip
    windows = windows_of(kernel_size, stride, padding)
    total: Any = sum(part for _, _, part in windows.taps(x))
    return (total / _count(x, windows, count_include_pad),)


def _magnitudes(args: dict[str, Any], x: Tensor) -> Tensor:
    return reference(x, args["kernel_size"], args["stride"], args["padding"], args["count_include_pad"])[0]


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    terms = math.prod(pair(args["kernel_size"]))
    inside = (
        gamma(terms + 1) * _magnitudes(args, args["x"].abs()) + SMALLEST
    )  # a division, or a factor of two roundings
    return (rounding(outputs[0], dtype) + (1.0 + UNIT_ROUNDOFF[dtype]) * inside,)


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    with torch.enable_grad():
        x = args["x"].clone().requires_grad_()
        (found,) = torch.autograd.grad(_magnitudes(args, x), x, grads[0].abs())
    terms = math.prod(pair(args["kernel_size"]))
    inside = gamma(terms + 1) * found + terms * SMALLEST
    return {"x": rounding(gradients["x"], dtype) + (1.0 + UNIT_ROUNDOFF[dtype]) * inside}


def _windows(request: Request) -> Windows:
    return windows_of(request.args["kernel_size"], request.args["stride"], request.args["padding"])


def cost(request: Request) -> Cost:
    x, windows = request.args["x"], _windows(request)
    made = x.shape[0] * x.shape[1] * math.prod(windows.counts(tuple(x.shape[2:])))
    size, flop = x.dtype.itemsize, float(made * (math.prod(windows.size) + 1))
    if request.pass_ == "backward":
        return Cost(flop, 0.0, made * size, x.nbytes)
    return Cost(flop, 0.0, x.nbytes, made * size)


def dims(request: Request) -> dict[str, int]:
    B, C, H, W = request.args["x"].shape
    return {"B": B, "C": C, "H": H, "W": W}


def bucket(request: Request) -> dict[str, Any]:
    """What makes another computation of the same picture: the window, and how the picture lies."""
    x, windows = request.args["x"], _windows(request)
    return {"window": (windows.size, windows.stride), "channels_last": x.stride[1] == 1 and x.stride[3] != 1}


def _make(
    generator: Generator, dtype: torch.dtype, slide: Slide, channels: int, kind: str = "normal", whole: bool = True
) -> dict[str, Any]:
    x = draw(kind, generator, dtype, slide.picture[0], channels, *slide.picture[1:])
    padding = tuple(min(p, n // 2) for p, n in zip(pair(slide.padding), pair(slide.size), strict=True))
    return {
        "x": in_format(x, slide.channels_last), "kernel_size": slide.size, "stride": slide.stride, "padding": padding,
        "count_include_pad": whole,
    }  # fmt: skip


def _case(slide: Slide, channels: int, text: str = "", layouts: bool = False, **more: Any) -> Case:
    gradients = more.pop("gradients", True)
    name = f"{slide}, {channels} channels{text}"
    return Case(name, lambda g, d: _make(g, d, slide, channels, **more), layouts=layouts, gradients=gradients)


def _cases() -> Iterator[Case]:
    for i, slide in enumerate(s for s in SHAPES if pair(s.dilation) == (1, 1)):
        whole = i // 2 % 2 == 0
        yield _case(slide, (1, 3, 17)[i % 3], ", all counted" * whole, layouts=i in (0, 1, 12), whole=whole)
    for kind, gradients in KINDS.items():
        yield _case(Slide((2, 6, 7), 2, stride=2), 3, f", {kind}", kind=kind, gradients=gradients)
        yield _case(Slide((2, 6, 7), 2, channels_last=True), 19, f", {kind}", kind=kind, gradients=gradients)
    yield Case("side by side", lambda g, d: _make(g, d, Slide((2, 9, 8), (3, 2)), 2) | {"stride": None})
    yield _case(Slide((1, 3, 4), 1), 2, ", one term")
    yield _case(Slide((2, 12, 11), (12, 11)), 5, ", all of a picture")


BENCH = (
    (Slide((8, 56, 56), 2, stride=2), 64),
    (Slide((8, 56, 56), 2, stride=2, channels_last=True), 64),
    (Slide((1, 112, 112), 3, stride=2, padding=1), 64),
)
CONTRACT = Contract(
    name="avg_pool2d",
    family="pooling",
    formula="output[b, c, h, w] = sum_{i, j} x[b, c, h stride + i - padding, w stride + j - padding] / count",
    source="torch.nn.functional.avg_pool2d",
    outputs=("output",),
    differentiable=("x",),
    check=check,
    reference=reference,
    bound=bound,
    gradient_bound=gradient_bound,
    cost=cost,
    dims=dims,
    bucket=bucket,
    cases=tuple(_cases()),
    bench_cases=tuple(
        Case(f"{s}", lambda g, d, s=s, c=c: _make(g, d, s, c), dtypes=(torch.float32,)) for s, c in BENCH
    ),
    errors=errors_of(ARGUMENTS),
)
