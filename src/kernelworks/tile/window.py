"""Pooling and convolution of [B, C, D, H, W] by Triton.

Of a pooling an output, or an element of a gradient, is one thread's, and so is its window.

A gradient is gathered: of every window that an element is in, what flows in is added if the element is its largest, or
over its count. So no sum hangs on the order of threads.

A convolution is a matrix product, positions times filters of a group, over the places of a window and the channels of a
group. A transposed convolution, which is also the gradient of the input, differs from it in what a place of a window
finds.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Configs, Kernel, kernel

__all__ = ["Convolve", "Pooling"]


class WindowNumbers(Protocol):
    """Size, stride, padding and dilation along three dimensions."""

    @property
    def numbers(self) -> tuple[int, ...]: ...


class PoolingCall(Protocol):
    """What a call's numbers say."""

    @property
    def grid(self) -> WindowNumbers: ...
    @property
    def whole(self) -> bool: ...
    @property
    def divisor(self) -> int: ...


@kernel
def _position(place, C, D, H, W, LAST: tl.constexpr):
    """Batch, channel and position of elements that are counted as they lie."""
    if LAST:
        c, place = place % C, place // C
    w, place = place % W, place // W
    h, place = place % H, place // H
    d, place = place % D, place // D
    if LAST:
        return place, c, d, h, w
    else:
        return place // C, place % C, d, h, w


@kernel
def _divided(begin, size, n, padding, WHOLE: tl.constexpr):
    """How much of a window counts along one dimension."""
    end = tl.minimum(begin + size, n + padding)
    if WHOLE:
        return end - begin
    else:
        return tl.minimum(end, n) - tl.maximum(begin, 0)


@kernel
def _pooled(
    x, output, indices, total, C, D, H, W, OD, OH, OW, KD, KH, KW, step_d, step_h, step_w, pad_d, pad_h, pad_w, apart_d,
    apart_h, apart_w, divisor, out_b, out_c, out_d, out_h, out_w, x_b, x_c, x_d, x_h, x_w,
    LARGEST: tl.constexpr, WHOLE: tl.constexpr, LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = place < total
    b, c, od, oh, ow = _position(place, C, OD, OH, OW, LAST)
    first_d, first_h, first_w = od * step_d - pad_d, oh * step_h - pad_h, ow * step_w - pad_w
    value = tl.full([BLOCK], float("-inf") if LARGEST else 0.0, tl.float32)
    at = tl.full([BLOCK], -1, tl.int64)
    x += b * x_b + c * x_c
    for tap in range(KD * KH * KW):
        d = first_d + tap // (KH * KW) * apart_d
        h = first_h + tap // KW % KH * apart_h
        w = first_w + tap % KW * apart_w
        inside = there & (d >= 0) & (d < D) & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        v = tl.load(x + d * x_d + h * x_h + w * x_w, mask=inside, other=0.0).to(tl.float32)
        if LARGEST:
            after = inside & ((v > value) | (v != v) | (at < 0))
            value = tl.where(after, v, value)
            at = tl.where(after, (d * H + h) * W + w, at)
        else:
            value += v
    if not LARGEST:
        count = _divided(first_d, KD, D, pad_d, WHOLE) * _divided(first_h, KH, H, pad_h, WHOLE)
        count = count * _divided(first_w, KW, W, pad_w, WHOLE)
        value = tl.div_rn(value, tl.where(divisor > 0, divisor, count).to(tl.float32))
    to = b * out_b + c * out_c + od * out_d + oh * out_h + ow * out_w
    if output is not None:
        tl.store(output + to, value.to(output.dtype.element_ty), mask=there)
    if indices is not None:
        tl.store(indices + to, at, mask=there)


@kernel
def _pooled_back(
    grad_x, grad, indices, total, C, D, H, W, OD, OH, OW, KD, KH, KW, step_d, step_h, step_w, pad_d, pad_h, pad_w,
    apart_d, apart_h, apart_w, divisor, out_b, out_c, out_d, out_h, out_w, x_b, x_c, x_d, x_h, x_w,
    LARGEST: tl.constexpr, WHOLE: tl.constexpr, LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``indices`` is contiguous; the strides ``out`` are those of grad."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = place < total
    b, c, d, h, w = _position(place, C, D, H, W, LAST)
    own = (d * H + h) * W + w
    total_flow = tl.zeros([BLOCK], tl.float32)
    for tap in range(KD * KH * KW):
        far_d = d + pad_d - tap // (KH * KW) * apart_d
        far_h = h + pad_h - tap // KW % KH * apart_h
        far_w = w + pad_w - tap % KW * apart_w
        od, oh, ow = far_d // step_d, far_h // step_h, far_w // step_w
        begins = (far_d >= 0) & (far_h >= 0) & (far_w >= 0)
        begins = begins & (od * step_d == far_d) & (oh * step_h == far_h) & (ow * step_w == far_w)
        inside = there & begins & (od < OD) & (oh < OH) & (ow < OW)
        flow = tl.load(
            grad + b * out_b + c * out_c + od * out_d + oh * out_h + ow * out_w, mask=inside, other=0.0
        ).to(tl.float32)  # fmt: skip
        if LARGEST:
            at = tl.load(indices + (((b * C + c) * OD + od) * OH + oh) * OW + ow, mask=inside, other=-1)
            total_flow += tl.where(at == own, flow, 0.0)
        else:
            count = _divided(od * step_d - pad_d, KD, D, pad_d, WHOLE) * _divided(
                oh * step_h - pad_h, KH, H, pad_h, WHOLE
            )
            count = count * _divided(ow * step_w - pad_w, KW, W, pad_w, WHOLE)
            count = tl.where(inside, tl.where(divisor > 0, divisor, count), 1)
            total_flow += tl.div_rn(flow, count.to(tl.float32))
    to = grad_x + b * x_b + c * x_c + d * x_d + h * x_h + w * x_w
    tl.store(to, total_flow.to(grad_x.dtype.element_ty), mask=there)


POOLED, POOLED_BACK = Kernel(_pooled), Kernel(_pooled_back)


class Pooling:
    """Launches poolings, with the configurations ``forward`` and ``backward``. Tensors are [B, C, D, H, W]."""

    def __init__(self, configs: Configs) -> None:
        self.configs = configs

    def forward(self, fold: str, output: Tensor | None, indices: Tensor | None, x: Tensor, call: PoolingCall) -> None:
        target = output if output is not None else indices
        assert target is not None
        where = indices
        if indices is not None and indices.stride() != target.stride():  # of an out that lies otherwise
            where = torch.empty_strided(target.shape, target.stride(), dtype=indices.dtype, device=indices.device)
        chosen = self.configs.pick("forward", dtype=x.dtype)
        launch = POOLED.at(LARGEST=fold == "max", WHOLE=call.whole, LAST=_last(target), **chosen)
        if total := target.numel():
            launch(
                (triton.cdiv(total, chosen["BLOCK"]), 1, 1), x, output, where, total, *x.shape[1:], *target.shape[2:],
                *call.grid.numbers, call.divisor, *target.stride(), *x.stride(),
            )  # fmt: skip
        if where is not indices and where is not None and indices is not None:
            indices.copy_(where)

    def backward(self, fold: str, grad_x: Tensor, grad: Tensor, x: Tensor, call: PoolingCall) -> None:
        indices: Tensor | None = None
        total = math.prod(grad_x.shape)
        if not total:
            return
        if fold == "max":
            indices = torch.empty(grad.shape, dtype=torch.int64, device=x.device)
            self.forward(fold, None, indices, x, call)
        chosen = self.configs.pick("backward", dtype=x.dtype)
        launch = POOLED_BACK.at(LARGEST=fold == "max", WHOLE=call.whole, LAST=_last(grad_x), **chosen)
        launch(
            (triton.cdiv(total, chosen["BLOCK"]), 1, 1), grad_x, grad, indices, total, *x.shape[1:], *grad.shape[2:],
            *call.grid.numbers, call.divisor, *grad.stride(), *grad_x.stride(),
        )  # fmt: skip


def _last(x: Tensor) -> Any:
    """Whether channels are next to each other."""
    return x.stride(1) == 1 and x.stride(4) != 1


# ---------------------------------------------------------------- convolutions


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
