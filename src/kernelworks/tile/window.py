"""Pooling of [B, C, D, H, W] by Triton: an output, or an element of a gradient, is one thread's, and so is its window.

A gradient is gathered: of every window that an element is in, what flows in is added if the element is its largest, or
over its count. So no sum hangs on the order of threads.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Configs, Kernel, kernel

__all__ = ["Pooling"]


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


AHEAD = 9  # taps of a window that a thread asks for at once
NARROW = 2**31 - 2**16  # elements that int32 counts, and a block behind them


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
    x, output, indices, total, C, D, H, W, OD, OH, OW, step_d, step_h, step_w, pad_d, pad_h, pad_w, apart_d,
    apart_h, apart_w, divisor, out_b, out_c, out_d, out_h, out_w, x_b, x_c, x_d, x_h, x_w,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, LARGEST: tl.constexpr, WHOLE: tl.constexpr,
    LAST: tl.constexpr, WIDE: tl.constexpr, AHEAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    if WIDE:
        program = program.to(tl.int64)
    place = program * BLOCK + tl.arange(0, BLOCK)
    there = place < total
    b, c, od, oh, ow = _position(place, C, OD, OH, OW, LAST)
    first_d, first_h, first_w = od * step_d - pad_d, oh * step_h - pad_h, ow * step_w - pad_w
    value = tl.full([BLOCK], float("-inf") if LARGEST else 0.0, tl.float32)
    at = place * 0 - 1
    x += b * x_b + c * x_c
    for tap in tl.range(0, KD * KH * KW, loop_unroll_factor=AHEAD):
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
    grad_x, grad, indices, total, C, D, H, W, OD, OH, OW, step_d, step_h, step_w, pad_d, pad_h, pad_w,
    apart_d, apart_h, apart_w, divisor, out_b, out_c, out_d, out_h, out_w, x_b, x_c, x_d, x_h, x_w,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, LARGEST: tl.constexpr, WHOLE: tl.constexpr,
    LAST: tl.constexpr, WIDE: tl.constexpr, AHEAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``indices`` is contiguous; the strides ``out`` are those of grad. WIDE: int32 does not count all elements."""
    program = tl.program_id(0)
    if WIDE:
        program = program.to(tl.int64)
    place = program * BLOCK + tl.arange(0, BLOCK)
    there = place < total
    b, c, d, h, w = _position(place, C, D, H, W, LAST)
    own = (d * H + h) * W + w
    total_flow = tl.zeros([BLOCK], tl.float32)
    for tap in tl.range(0, KD * KH * KW, loop_unroll_factor=AHEAD):
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
        launch = POOLED.at(LARGEST=fold == "max", LAST=_last(target), **_window(call, x, target), **chosen)
        if total := target.numel():
            launch(
                (triton.cdiv(total, chosen["BLOCK"]), 1, 1), x, output, where, total, *x.shape[1:], *target.shape[2:],
                *call.grid.numbers[3:], call.divisor, *target.stride(), *x.stride(),
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
        launch = POOLED_BACK.at(LARGEST=fold == "max", LAST=_last(grad_x), **_window(call, grad_x, grad), **chosen)
        launch(
            (triton.cdiv(total, chosen["BLOCK"]), 1, 1), grad_x, grad, indices, total, *x.shape[1:], *grad.shape[2:],
            *call.grid.numbers[3:], call.divisor, *grad.stride(), *grad_x.stride(),
        )  # fmt: skip


def _window(call: PoolingCall, *given: Tensor) -> dict[str, Any]:
    """What is compiled for: a window's size, and how far apart elements may lie."""
    size = call.grid.numbers[:3]
    most = max(1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) for x in given)
    return {
        **dict(zip(("KD", "KH", "KW"), size, strict=True)), "WHOLE": call.whole, "WIDE": most > NARROW,
        "AHEAD": min(math.prod(size), AHEAD),
    }  # fmt: skip


def _last(x: Tensor) -> Any:
    """Whether channels are next to each other."""
    return x.stride(1) == 1 and x.stride(4) != 1
