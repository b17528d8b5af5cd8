"""conv2d on the GPU: an implicit matrix product, positions times filters of a group, over the window's places and the
channels of a group. Pictures and filters of any strides are read in place; channels_last is what its tiles are made
for."""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs
from kernelworks.ops.convolution.conv2d.contract import windows_of
from kernelworks.templates.window import like_picture

CONFIGS = configs(__file__)


@triton.jit
def _forward(
    output, x, weight, bias, positions, H, W, OH, OW, filters, channels, down, right, top, left, apart_h, apart_w,
    out_b, out_o, out_h, out_w, x_b, x_c, x_h, x_w, weight_o, weight_c, weight_h, weight_w, bias_o,
    KH: tl.constexpr, KW: tl.constexpr, POSITIONS: tl.constexpr, FILTERS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(2).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * POSITIONS + tl.arange(0, POSITIONS)
    filter_ = tl.program_id(1) * FILTERS + tl.arange(0, FILTERS)
    b, oh, ow = place // (OH * OW), place // OW % OH, place % OW
    there, wanted = place < positions, filter_ < filters
    o = group * filters + filter_
    total = tl.zeros([POSITIONS, FILTERS], tl.float32)
    x += group * channels * x_c
    for tap in range(KH * KW):
        i, j = tap // KW, tap % KW
        h, w = oh * down - top + i * apart_h, ow * right - left + j * apart_w
        inside = there & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        from_x = x + b * x_b + h * x_h + w * x_w
        from_weight = weight + o * weight_o + i * weight_h + j * weight_w
        for first in range(0, channels, DEPTH):
            c = first + tl.arange(0, DEPTH)
            some = c < channels
            inputs = tl.load(from_x[:, None] + c[None, :] * x_c, mask=inside[:, None] & some[None, :], other=0.0)
            taps = tl.load(
                from_weight[None, :] + c[:, None] * weight_c, mask=wanted[None, :] & some[:, None], other=0.0
            )
            total = tl.dot(inputs, taps, total, input_precision="ieee")
    if bias is not None:
        total += tl.load(bias + o * bias_o, mask=wanted, other=0.0).to(tl.float32)[None, :]
    to = output + (b * out_b + oh * out_h + ow * out_w)[:, None] + (o * out_o)[None, :]
    tl.store(to, total.to(output.dtype.element_ty), mask=there[:, None] & wanted[None, :])


FORWARD = Kernel(_forward)


@functools.cache
def _at(filters: int, channels: int, size: tuple[int, int], dtype: torch.dtype) -> tuple[Launch, int, int]:
    """The launch, and the positions and filters of a program; filters and channels up to the next power of two."""
    chosen = CONFIGS.pick("forward", filters=filters, dtype=dtype)
    across, depth = min(chosen.pop("FILTERS"), max(16, filters)), min(chosen.pop("DEPTH"), max(16, channels))
    positions = chosen.pop("POSITIONS")
    launch = FORWARD.at(
        KH=size[0], KW=size[1], POSITIONS=positions, FILTERS=across, DEPTH=depth, **chosen
    )  # fmt: skip
    return launch, positions, across


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int,
    out: Any = None,
) -> Tensor:  # fmt: skip
    windows = windows_of(weight, stride, padding, dilation)
    OH, OW = windows.counts((x.shape[2], x.shape[3]))
    output: Tensor = like_picture(x, (x.shape[0], weight.shape[0], OH, OW), weight) if out is None else out
    filters, channels = weight.shape[0] // groups, weight.shape[1]
    positions = x.shape[0] * OH * OW
    if not positions:
        return output
    launch, many, across = _at(
        triton.next_power_of_2(filters), triton.next_power_of_2(channels), windows.size, x.dtype
    )  # fmt: skip
    launch(
        (-(-positions // many), -(-filters // across), groups), output, x, weight, bias, positions, x.shape[2],
        x.shape[3], OH, OW, filters, channels, *windows.stride, *windows.padding, *windows.dilation, *output.stride(),
        *x.stride(), *weight.stride(), 0 if bias is None else bias.stride(0),
    )  # fmt: skip
    return output
