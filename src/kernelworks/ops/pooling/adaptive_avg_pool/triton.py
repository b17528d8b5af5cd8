"""Adaptive means on the GPU: a program takes some outputs and their windows as tiles; of a gradient, some elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, configs, kernel
from kernelworks.contract.window_grid import volume
from kernelworks.ops.pooling.adaptive_avg_pool.contract import TABLE, AdaptivePool, longest


@kernel
def _begin(o, n, outputs):
    return o * n // outputs


@kernel
def _end(o, n, outputs):
    return ((o + 1) * n + outputs - 1) // outputs


@kernel
def _mean(
    x, output, total, C, D, H, W, OD, OH, OW, KD, KH, KW, out_b, out_c, out_d, out_h, out_w, x_b, x_c, x_d, x_h, x_w,
    OUTPUTS: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """KD, KH and KW are those of the longest windows."""
    place = tl.program_id(0).to(tl.int64) * OUTPUTS + tl.arange(0, OUTPUTS)
    there = place < total
    ow, rest = place % OW, place // OW
    oh, rest = rest % OH, rest // OH
    od, rest = rest % OD, rest // OD
    c, b = rest % C, rest // C
    first_d, first_h, first_w = _begin(od, D, OD), _begin(oh, H, OH), _begin(ow, W, OW)
    size_d, size_h, size_w = _end(od, D, OD) - first_d, _end(oh, H, OH) - first_h, _end(ow, W, OW) - first_w
    corner = b * x_b + c * x_c + first_d * x_d + first_h * x_h + first_w * x_w
    sums = tl.zeros([OUTPUTS, TAPS], tl.float32)
    for begin in range(0, KD * KH * KW, TAPS):
        tap = (begin + tl.arange(0, TAPS)).to(tl.int64)[None, :]
        d, h, w = tap // (KH * KW), tap // KW % KH, tap % KW
        inside = there[:, None] & (d < size_d[:, None]) & (h < size_h[:, None]) & (w < size_w[:, None])
        at = x + corner[:, None] + d * x_d + h * x_h + w * x_w
        sums += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    value = tl.div_rn(tl.sum(sums, 1), (size_d * size_h * size_w).to(tl.float32))
    to = output + b * out_b + c * out_c + od * out_d + oh * out_h + ow * out_w
    tl.store(to, value.to(output.dtype.element_ty), mask=there)


@kernel
def _mean_back(
    grad_x, grad, total, C, D, H, W, OD, OH, OW, KD, KH, KW, g_b, g_c, g_d, g_h, g_w, x_b, x_c, x_d, x_h, x_w,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """KD, KH and KW are how many windows an element may be in."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = place < total
    w, rest = place % W, place // W
    h, rest = rest % H, rest // H
    d, rest = rest % D, rest // D
    c, b = rest % C, rest // C
    first_d, first_h, first_w = _begin(d, OD, D), _begin(h, OH, H), _begin(w, OW, W)
    last_d, last_h, last_w = _end(d, OD, D), _end(h, OH, H), _end(w, OW, W)
    flow = tl.zeros([BLOCK], tl.float32)
    for tap in range(KD * KH * KW):
        od, oh, ow = first_d + tap // (KH * KW), first_h + tap // KW % KH, first_w + tap % KW
        inside = there & (od < last_d) & (oh < last_h) & (ow < last_w)
        count = (_end(od, D, OD) - _begin(od, D, OD)) * (_end(oh, H, OH) - _begin(oh, H, OH))
        count = count * (_end(ow, W, OW) - _begin(ow, W, OW))
        at = grad + b * g_b + c * g_c + od * g_d + oh * g_h + ow * g_w
        flow += tl.div_rn(tl.load(at, mask=inside, other=0.0).to(tl.float32), count.to(tl.float32))
    to = grad_x + b * x_b + c * x_c + d * x_d + h * x_h + w * x_w
    tl.store(to, flow.to(grad_x.dtype.element_ty), mask=there)


MEAN, MEAN_BACK = Kernel(_mean), Kernel(_mean_back)
CONFIGS = configs(__file__)


def _functions(pool: AdaptivePool) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    def forward(x: Tensor, output_size: Any, out: Tensor | None = None) -> Tensor:
        output = pool.empty_output(x, output_size) if out is None else out
        if total := output.numel():
            wide, to = volume(x), volume(output)
            longest_windows = tuple(map(longest, wide.shape[2:], to.shape[2:]))
            chosen = CONFIGS.pick("forward", dtype=x.dtype)
            block, most = chosen.pop("BLOCK"), chosen.pop("TAPS")
            taps = min(most, int(triton.next_power_of_2(math.prod(longest_windows))))
            MEAN.at(OUTPUTS=block // taps, TAPS=taps, **chosen)(
                (triton.cdiv(total, block // taps), 1, 1), wide, to, total, *wide.shape[1:], *to.shape[2:],
                *longest_windows, *to.stride(), *wide.stride(),
            )  # fmt: skip
        return output

    def backward(grad: Tensor, x: Tensor, output_size: Any, out: Tensor | None = None) -> Tensor:
        made = x.new_empty(x.shape) if out is None else out
        if total := made.numel():
            wide, flow = volume(made), volume(grad)
            windows = tuple(map(longest, flow.shape[2:], wide.shape[2:]))
            chosen = CONFIGS.pick("backward", dtype=x.dtype)
            MEAN_BACK.at(**chosen)(
                (triton.cdiv(total, chosen["BLOCK"]), 1, 1), wide, flow, total, *wide.shape[1:], *flow.shape[2:],
                *windows, *flow.stride(), *wide.stride(),
            )  # fmt: skip
        return made

    return forward, backward


adaptive_avg_pool1d_forward, adaptive_avg_pool1d_backward = _functions(TABLE.entries["adaptive_avg_pool1d"])
adaptive_avg_pool2d_forward, adaptive_avg_pool2d_backward = _functions(TABLE.entries["adaptive_avg_pool2d"])
adaptive_avg_pool3d_forward, adaptive_avg_pool3d_backward = _functions(TABLE.entries["adaptive_avg_pool3d"])
