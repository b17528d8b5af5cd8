"""Convolutions on the GPU, and transposed ones: a matrix product, positions times filters of a group, over the places
of a window and the channels of a group. A transposed convolution, which is also the gradient of the input, differs from
it in what a place of a window finds. Tensors are [B, C, D, H, W]."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Configs, Kernel, configs, kernel
from kernelworks.ops.convolution.conv.contract import TABLE
from kernelworks.templates.convolution import triton_functions


class WindowNumbers(Protocol):
    """Size, stride, padding and dilation along three dimensions."""

    @property
    def numbers(self) -> tuple[int, ...]: ...


@kernel
def _found(position, tap, step, padding, apart, n, TRANSPOSED: tl.constexpr):
    """Where a place of a window finds a position's element along one dimension, and whether there is one."""
    if TRANSPOSED:
        far = position + padding - tap * apart
        at = far // step
        return at, (far >= 0) & (at * step == far) & (at < n)
    else:
        at = position * step - padding + tap * apart
        return at, (at >= 0) & (at < n)


@kernel
def _convolved(
    output, x, filters, bias, positions, D, H, W, OD, OH, OW, many, channels, KD, KH, KW, step_d, step_h, step_w, pad_d,
    pad_h, pad_w, apart_d, apart_h, apart_w, out_b, out_o, out_d, out_h, out_w, x_b, x_c, x_d, x_h, x_w,
    TRANSPOSED: tl.constexpr, POSITIONS: tl.constexpr, FILTERS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """filters [groups, taps, channels, many], in order."""
    group = tl.program_id(2).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * POSITIONS + tl.arange(0, POSITIONS)
    filter_ = tl.program_id(1) * FILTERS + tl.arange(0, FILTERS)
    there, wanted = place < positions, filter_ < many
    ow, line = place % OW, place // OW
    oh, line = line % OH, line // OH
    od, b = line % OD, line // OD
    total = tl.zeros([POSITIONS, FILTERS], tl.float32)
    x += group * channels * x_c
    taps = KD * KH * KW
    for tap in range(taps):
        d, in_d = _found(od, tap // (KH * KW), step_d, pad_d, apart_d, D, TRANSPOSED)
        h, in_h = _found(oh, tap // KW % KH, step_h, pad_h, apart_h, H, TRANSPOSED)
        w, in_w = _found(ow, tap % KW, step_w, pad_w, apart_w, W, TRANSPOSED)
        inside = there & in_d & in_h & in_w
        from_x = x + b * x_b + d * x_d + h * x_h + w * x_w
        from_filters = filters + (group * taps + tap) * channels * many + filter_
        for first in range(0, channels, DEPTH):
            c = first + tl.arange(0, DEPTH)
            some = c < channels
            inputs = tl.load(from_x[:, None] + c[None, :] * x_c, mask=inside[:, None] & some[None, :], other=0.0)
            held = tl.load(from_filters[None, :] + c[:, None] * many, mask=wanted[None, :] & some[:, None], other=0.0)
            total = tl.dot(inputs, held, total, input_precision="ieee")
    o = group * many + filter_
    if bias is not None:
        total += tl.load(bias + o, mask=wanted, other=0.0).to(tl.float32)[None, :]
    to = output + (b * out_b + od * out_d + oh * out_h + ow * out_w)[:, None] + (o * out_o)[None, :]
    tl.store(to, total.to(output.dtype.element_ty), mask=there[:, None] & wanted[None, :])


@kernel
def _of_filters(
    output, grad, x, positions, D, H, W, OD, OH, OW, many, channels, KD, KH, KW, step_d, step_h, step_w, pad_d, pad_h,
    pad_w, apart_d, apart_h, apart_w, g_b, g_o, g_d, g_h, g_w, x_b, x_c, x_d, x_h, x_w, blocks,
    POSITIONS: tl.constexpr, FILTERS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """output [groups, many, channels, taps]: a program has FILTERS filters and DEPTH channels of one tap, and goes
    through all positions in order."""
    taps = KD * KH * KW
    group, tap = tl.program_id(2).to(tl.int64) // taps, tl.program_id(2) % taps
    filter_ = tl.program_id(0) * FILTERS + tl.arange(0, FILTERS)
    c = tl.program_id(1) * DEPTH + tl.arange(0, DEPTH)
    wanted, some = filter_ < many, c < channels
    total = tl.zeros([FILTERS, DEPTH], tl.float32)
    place = tl.arange(0, POSITIONS).to(tl.int64)
    for _ in range(blocks):
        there = place < positions
        ow, line = place % OW, place // OW
        oh, line = line % OH, line // OH
        od, b = line % OD, line // OD
        d, in_d = _found(od, tap // (KH * KW), step_d, pad_d, apart_d, D, False)
        h, in_h = _found(oh, tap // KW % KH, step_h, pad_h, apart_h, H, False)
        w, in_w = _found(ow, tap % KW, step_w, pad_w, apart_w, W, False)
        inside = there & in_d & in_h & in_w
        from_x = x + b * x_b + d * x_d + h * x_h + w * x_w
        from_grad = grad + b * g_b + od * g_d + oh * g_h + ow * g_w
        channel, o = group * channels + c, group * many + filter_
        inputs = tl.load(from_x[:, None] + (channel * x_c)[None, :], mask=inside[:, None] & some[None, :], other=0.0)
        flow = tl.load(from_grad[None, :] + (o * g_o)[:, None], mask=there[None, :] & wanted[:, None], other=0.0)
        total = tl.dot(flow, inputs, total, input_precision="ieee")
        place += POSITIONS
    to = output + ((group * many + filter_)[:, None] * channels + c[None, :]) * taps + tap
    tl.store(to, total.to(output.dtype.element_ty), mask=wanted[:, None] & some[None, :])


CONVOLVED, OF_FILTERS = Kernel(_convolved), Kernel(_of_filters)


class Convolve:
    """Launches both kernels, with the configurations ``convolve`` and ``filters``. Tensors are [B, C, D, H, W]."""

    def __init__(self, configs: Configs) -> None:
        self.configs = configs

    def _shape(
        self, which: str, filters: int, channels: int, dtype: torch.dtype
    ) -> tuple[dict[str, Any], int, int, int]:
        chosen = dict(self.configs.pick(which, dtype=dtype))
        chosen["FILTERS"] = min(chosen["FILTERS"], max(16, triton.next_power_of_2(filters)))
        chosen["DEPTH"] = min(chosen["DEPTH"], max(16, triton.next_power_of_2(channels)))
        return chosen, chosen["POSITIONS"], chosen["FILTERS"], chosen["DEPTH"]

    def convolve(
        self, output: Tensor, x: Tensor, filters: Tensor, bias: Tensor | None, grid: WindowNumbers, transposed: bool
    ) -> None:
        """``filters`` [groups, filters, channels, taps]."""
        groups, many, channels, _ = filters.shape
        positions = output.numel() // max(1, output.shape[1])
        if not output.numel():
            return
        chosen, height, width, _ = self._shape("convolve", many, channels, x.dtype)
        CONVOLVED.at(TRANSPOSED=transposed, **chosen)(
            (triton.cdiv(positions, height), triton.cdiv(many, width), groups), output, x,
            filters.permute(0, 3, 2, 1).contiguous(), None if bias is None else bias.contiguous(), positions,
            *x.shape[2:], *output.shape[2:], many, channels, *grid.numbers, *output.stride(), *x.stride(),
        )  # fmt: skip

    def filters(self, output: Tensor, grad: Tensor, x: Tensor, grid: WindowNumbers) -> None:
        """The gradient of the filters, [groups, filters, channels, taps], contiguous."""
        groups, many, channels, taps = output.shape
        positions = grad.numel() // max(1, grad.shape[1])
        chosen, height, width, depth = self._shape("filters", many, channels, x.dtype)
        OF_FILTERS.at(**chosen)(
            (triton.cdiv(many, width), triton.cdiv(channels, depth), groups * taps), output, grad, x, positions,
            *x.shape[2:], *grad.shape[2:], many, channels, *grid.numbers, *grad.stride(), *x.stride(),
            triton.cdiv(positions, height),
        )  # fmt: skip


CONVOLVE = Convolve(configs(__file__))
conv1d_forward, conv1d_backward = triton_functions(TABLE.entries["conv1d"], CONVOLVE)
conv3d_forward, conv3d_backward = triton_functions(TABLE.entries["conv3d"], CONVOLVE)
