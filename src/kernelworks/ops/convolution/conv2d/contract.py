"""What conv2d promises."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import UNIT_ROUNDOFF, Case, Contract, Cost, Request, rounding
from kernelworks.contract.arguments import Arguments, check_of, errors_of
from kernelworks.contract.cases import draw, normal
from kernelworks.contract.int_pair import Groups, IntPair
from kernelworks.contract.tensor_argument import T
from kernelworks.templates.product import gamma
from kernelworks.templates.window import KINDS, SHAPES, Slide, Windows, in_format

__all__ = ["ARGUMENTS", "CONTRACT", "reference", "windows_of"]

SMALLEST = 2.0**-149  # of float32's subnormals
RETURNS = ("x", "weight", "bias")
ARGUMENTS: Arguments = {
    "x": T("B C H W"),
    "weight": T("O G KH KW", like="x", where=("O >= 1", "G >= 1", "KH >= 1", "KW >= 1", "C >= 1", "divides(G, C)")),
    "bias": T("O", like="x", optional=True),
    "stride": IntPair(1),
    "padding": IntPair(0),
    "dilation": IntPair(1),
    "groups": Groups("x", "weight"),
}
_check = check_of(ARGUMENTS)


def windows_of(weight: Any, stride: Any, padding: Any, dilation: Any) -> Windows:
    """How a filter's windows lie."""
    return Windows.of(tuple(weight.shape[2:]), stride, padding, dilation)


def check(**call: Any) -> None:
    _check(**call)
    windows = windows_of(call["weight"], call["stride"], call["padding"], call["dilation"])
    windows.need_room("x", tuple(call["x"].shape[2:]))


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:  # fmt: skip
    """The definition: the sum over the places of a window."""
    filters = weight.unflatten(0, (groups, -1))
    total: Any = 0.0
    for i, j, part in windows_of(weight, stride, padding, dilation).taps(x):
        total = total + torch.einsum("bgchw,gfc->bgfhw", part.unflatten(1, (groups, -1)), filters[..., i, j])
    made: Tensor = total.flatten(1, 2)
    return made if bias is None else made + bias[:, None, None]


def reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> tuple[Tensor, ...]:  # fmt: skip
    return (convolve(x, weight, bias, stride, padding, dilation, groups),)


def _magnitudes(args: dict[str, Any], x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A call's convolution of other tensors."""
    return convolve(x, weight, bias, args["stride"], args["padding"], args["dilation"], args["groups"])


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    x, weight, bias = args["x"], args["weight"], args["bias"]
    terms = math.prod(weight.shape[1:])
    magnitude = _magnitudes(args, x.abs(), weight.abs(), None if bias is None else bias.abs())
    inside = gamma(terms + 1) * magnitude + (terms + 1) * SMALLEST
    return (rounding(outputs[0], dtype) + (1.0 + UNIT_ROUNDOFF[dtype]) * inside,)


def gradient_bound(
    args: dict[str, Any], grads: tuple[Tensor, ...], gradients: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    x, weight, flow = args["x"], args["weight"], grads[0].abs()
    with torch.enable_grad():  # the gradients of magnitudes are the sums of the magnitudes of products
        sizes = x.abs().requires_grad_(), weight.abs().requires_grad_()
        found = torch.autograd.grad(_magnitudes(args, *sizes), sizes, flow)
    places = flow[:, 0].numel()
    filters = weight.shape[0] // args["groups"] * math.prod(weight.shape[2:])
    inside = {
        "x": gamma(filters) * found[0] + filters * SMALLEST,
        "weight": gamma(places) * found[1] + places * SMALLEST,
        "bias": gamma(places) * flow.sum((0, 2, 3)),
    }
    u = UNIT_ROUNDOFF[dtype]
    return {name: rounding(g, dtype) + (1.0 + u) * inside[name] for name, g in gradients.items()}


# ---------------------------------------------------------------- cost


def _counts(request: Request) -> tuple[int, int]:
    args = request.args
    windows = windows_of(args["weight"], args["stride"], args["padding"], args["dilation"])
    return windows.counts(tuple(args["x"].shape[2:]))


def cost(request: Request) -> Cost:
    x, weight, size = request.args["x"], request.args["weight"], request.args["x"].dtype.itemsize
    written = x.shape[0] * weight.shape[0] * math.prod(_counts(request))
    products = 2.0 * written * math.prod(weight.shape[1:])
    if request.pass_ == "backward":
        read = (written + x.numel + weight.numel) * size
        return Cost(2.0 * products + written, 0.0, read, (x.numel + weight.numel + weight.shape[0]) * size)
    has_bias = request.args.get("bias") is not None
    read = x.nbytes + weight.nbytes + weight.shape[0] * size * has_bias
    return Cost(products + written * has_bias, 0.0, read, written * size)


def dims(request: Request) -> dict[str, int]:
    """Those of the product: positions, filters of a group, and what is added up."""
    args = request.args
    weight, groups = args["weight"], args["groups"]
    positions = args["x"].shape[0] * math.prod(_counts(request))
    return {"M": positions, "N": weight.shape[0] // groups, "K": math.prod(weight.shape[1:]), "groups": groups}


def bucket(request: Request) -> dict[str, Any]:
    """What makes another computation of the same product: the window, and how the picture lies."""
    args = request.args
    w = windows_of(args["weight"], args["stride"], args["padding"], args["dilation"])
    x = args["x"]
    return {"window": (w.size, w.stride, w.padding, w.dilation), "channels_last": x.stride[1] == 1 and x.stride[3] != 1}


# ---------------------------------------------------------------- cases


def _make(
    generator: Generator, dtype: torch.dtype, slide: Slide, channels: tuple[int, int, int], *, kind: str = "normal",
    bias: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """``channels``: of the picture, filters, groups."""
    C, filters, groups = channels
    size = slide.size if isinstance(slide.size, tuple) else (slide.size, slide.size)
    x = draw(kind, generator, dtype, slide.picture[0], C, *slide.picture[1:])
    scale = (C // groups * math.prod(size)) ** -0.5
    weight = normal(generator, dtype, filters, C // groups, *size, scale=scale)
    return {
        "x": in_format(x, slide.channels_last),
        "weight": in_format(weight, slide.channels_last and filters % 2 == 0),
        "bias": normal(generator, dtype, filters) if bias else None,
        "stride": slide.stride, "padding": slide.padding, "dilation": slide.dilation, "groups": groups,
    }  # fmt: skip


def _case(slide: Slide, channels: tuple[int, int, int], text: str = "", **more: Any) -> Case:
    own = {key: more.pop(key) for key in ("gradients", "layouts", "dtypes") if key in more}
    name = f"{slide}, {channels[0]} to {channels[1]}" + f" in {channels[2]} groups" * (channels[2] > 1) + text
    return Case(name, lambda g, d: _make(g, d, slide, channels, **more), **own)


USUAL = Slide((2, 6, 7), padding=1)
LAST = Slide((2, 6, 7), padding=1, channels_last=True)
# Channels of the picture, filters, groups: groups of 4 to 16, depthwise, several filters a channel.
CHANNELS = ((1, 1, 1), (3, 5, 1), (16, 7, 1), (8, 16, 4), (32, 16, 2), (12, 12, 3), (5, 5, 5), (17, 17, 17), (4, 12, 4))


def _cases() -> Iterator[Case]:
    for i, slide in enumerate(SHAPES):
        yield _case(slide, (3, 4, 1), bias=i % 3 != 0)
        yield _case(slide, (6, 6, 6), bias=i % 3 == 0)
    for i, channels in enumerate(CHANNELS):
        for slide in (USUAL, LAST):
            yield _case(slide, channels, layouts=i in (1, 3, 7), bias=i % 2 == 0)
    for kind, gradients in KINDS.items():
        for slide in (USUAL, LAST):
            yield _case(slide, (2, 3, 1), f", {kind}", kind=kind, gradients=gradients)
            yield _case(slide, (3, 3, 3), f", {kind}", kind=kind, gradients=gradients)
    for slide in (Slide((1, 3, 4), 1), Slide((1, 3, 4), 1, channels_last=True)):
        yield _case(slide, (1, 2, 1), ", one term", bias=False)
    yield _case(Slide((1, 5, 5), padding=1), (70, 3, 1), ", many terms")  # more than are added up at once
    yield _case(Slide((1, 9, 9), padding=1), (2, 29, 1), ", many filters")
    yield _case(Slide((2, 3, 3), 3), (40, 33, 1), ", one place")
    yield _case(Slide((1, 40, 300), 5, padding=2), (2, 2, 2), ", rows in strips")


BENCH = (
    (Slide((1, 56, 56), 3, padding=1), (64, 64, 1)),
    (Slide((1, 56, 56), 3, padding=1, channels_last=True), (64, 64, 1)),
    (Slide((1, 112, 112), 3, padding=1), (96, 96, 96)),
    (Slide((1, 28, 28), 7, padding=3, channels_last=True), (192, 192, 192)),
    (Slide((1, 28, 28), 1), (128, 256, 1)),
)
DEVICE_BENCH = (
    (Slide((32, 56, 56), 3, padding=1, channels_last=True), (256, 256, 1)),
    (Slide((32, 56, 56), 1, channels_last=True), (256, 512, 1)),
    (Slide((16, 256, 256), padding=1), (64, 64, 64)),
    (Slide((32, 112, 112), padding=1, channels_last=True), (96, 96, 96)),
)


# Depthwise: neighbours in several blocks, rows that end in a strip, as many strips as programs; filters of 5 by 5 and 7
# by 7; a stride, a dilation, several filters a channel.
DEPTHWISE = (
    (Slide((3, 61, 515), padding=1), (5, 5, 5)), (Slide((2, 40, 150), 5, padding=2), (24, 24, 24)),
    (Slide((2, 33, 56), 7, padding=3), (40, 40, 40)), (Slide((2, 65, 100), 3, stride=2, padding=1), (12, 12, 12)),
    (Slide((2, 50, 70), (3, 7), padding=(2, 9), dilation=(2, 3)), (7, 7, 7)),
    (Slide((2, 30, 41), padding=1), (6, 18, 6)), (Slide((64, 14, 14), padding=1), (96, 96, 96)),
)  # fmt: skip


def _device_cases() -> Iterator[Case]:
    for slide, channels in DEPTHWISE:
        yield _case(slide, channels)
        yield _case(replace(slide, channels_last=True), channels)
    for channels in ((64, 96, 1), (32, 32, 32)):
        for last in (False, True):
            yield _case(Slide((4, 30, 31), padding=1, channels_last=last), channels)


CONTRACT = Contract(
    name="conv2d",
    family="convolution",
    formula="output[b, o, h, w] = bias[o] + sum_{c, i, j} weight[o, c, i, j] x[b, first(o) + c, h stride + i dilation "
    "- padding, w stride + j dilation - padding], x is 0 outside",
    source="torch.nn.functional.conv2d; Dumoulin and Visin, A guide to convolution arithmetic, 2016 (arXiv:1603.07285)",
    outputs=("output",),
    differentiable=RETURNS,
    check=check,
    reference=reference,
    bound=bound,
    gradient_bound=gradient_bound,
    cost=cost,
    dims=dims,
    bucket=bucket,
    arithmetic="products",
    cases=tuple(_cases()),
    bench_cases=tuple(_case(s, c, bias=False, dtypes=(torch.float32,)) for s, c in BENCH),
    device_cases=tuple(_device_cases()),
    device_bench_cases=tuple(_case(s, c, bias=False, dtypes=(torch.bfloat16,)) for s, c in DEVICE_BENCH),
    errors=errors_of(ARGUMENTS),
)
