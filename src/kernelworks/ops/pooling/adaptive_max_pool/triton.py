"""Adaptive maxima on the GPU: a program takes some outputs and their windows as tiles; of a gradient, some elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, configs, kernel
from kernelworks.contract.window_grid import volume
from kernelworks.ops.pooling.adaptive_avg_pool.contract import longest
from kernelworks.ops.pooling.adaptive_max_pool.contract import TABLE, AdaptiveMaxPool

NOWHERE = tl.constexpr(2**62)  # the index of no element


@kernel
def _begin(o, n, outputs):
    return o * n // outputs


@kernel
def _end(o, n, outputs):
    return ((o + 1) * n + outputs - 1) // outputs


@kernel
def _later(value, at, more, there):
    """Whether the second is the larger one: NaN above all, of several the last; of equals the first."""
    nan = more != more
    was = value != value
    return (nan & ((value == value) | (there > at))) | ((more > value) & (was == 0)) | ((more == value) & (there < at))


@kernel
def _larger(value, at, more, there):
    after = _later(value, at, more, there)
    return tl.where(after, more, value), tl.where(after, there, at)


@kernel
def _largest(
    x, output, indices, total, C, D, H, W, OD, OH, OW, KD, KH, KW, out_b, out_c, out_d, out_h, out_w, x_b, x_c, x_d,
    x_h, x_w, OUTPUTS: tl.constexpr, TAPS: tl.constexpr,
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
    value = tl.full([OUTPUTS, TAPS], float("-inf"), tl.float32)
    found = tl.full([OUTPUTS, TAPS], NOWHERE, tl.int64)
    for begin in range(0, KD * KH * KW, TAPS):
        tap = (begin + tl.arange(0, TAPS)).to(tl.int64)[None, :]
        d, h, w = tap // (KH * KW), tap // KW % KH, tap % KW
        inside = there[:, None] & (d < size_d[:, None]) & (h < size_h[:, None]) & (w < size_w[:, None])
        at = x + corner[:, None] + d * x_d + h * x_h + w * x_w
        more = tl.load(at, mask=inside, other=float("-inf")).to(tl.float32)
        index = ((first_d[:, None] + d) * H + first_h[:, None] + h) * W + first_w[:, None] + w
        value, found = _larger(value, found, more, tl.where(inside, index, NOWHERE))
    best, where = tl.reduce((value, found), 1, _larger)
    to = b * out_b + c * out_c + od * out_d + oh * out_h + ow * out_w
    if output is not None:
        tl.store(output + to, best.to(output.dtype.element_ty), mask=there)
    if indices is not None:
        tl.store(indices + to, where, mask=there)


@kernel
def _largest_back(
    grad_x, grad, indices, total, C, D, H, W, OD, OH, OW, KD, KH, KW, g_b, g_c, g_d, g_h, g_w, x_b, x_c, x_d, x_h, x_w,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """KD, KH and KW are how many windows an element may be in; ``indices`` is contiguous."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = place < total
    w, rest = place % W, place // W
    h, rest = rest % H, rest // H
    d, rest = rest % D, rest // D
    c, b = rest % C, rest // C
    own = (d * H + h) * W + w
    first_d, first_h, first_w = _begin(d, OD, D), _begin(h, OH, H), _begin(w, OW, W)
    last_d, last_h, last_w = _end(d, OD, D), _end(h, OH, H), _end(w, OW, W)
    flow = tl.zeros([BLOCK], tl.float32)
    for tap in range(KD * KH * KW):
        od, oh, ow = first_d + tap // (KH * KW), first_h + tap // KW % KH, first_w + tap % KW
        inside = there & (od < last_d) & (oh < last_h) & (ow < last_w)
        at = tl.load(indices + (((b * C + c) * OD + od) * OH + oh) * OW + ow, mask=inside, other=-1)
        chosen = inside & (at == own)
        flow += tl.load(grad + b * g_b + c * g_c + od * g_d + oh * g_h + ow * g_w, mask=chosen, other=0.0).to(
            tl.float32
        )
    to = grad_x + b * x_b + c * x_c + d * x_d + h * x_h + w * x_w
    tl.store(to, flow.to(grad_x.dtype.element_ty), mask=there)


LARGEST, LARGEST_BACK = Kernel(_largest), Kernel(_largest_back)
CONFIGS = configs(__file__)


def _find(x: Tensor, output: Tensor | None, indices: Tensor | None) -> None:
    """Writes the largest elements, where they stand, or both, of equal strides. All are [B, C, D, H, W]."""
    target = indices if output is None else output
    assert target is not None
    if not (total := target.numel()):
        return
    windows = tuple(map(longest, x.shape[2:], target.shape[2:]))
    chosen = CONFIGS.pick("forward", dtype=x.dtype)
    block, most = chosen.pop("BLOCK"), chosen.pop("TAPS")
    taps = min(most, int(triton.next_power_of_2(math.prod(windows))))
    LARGEST.at(OUTPUTS=block // taps, TAPS=taps, **chosen)(
        (triton.cdiv(total, block // taps), 1, 1), x, output, indices, total, *x.shape[1:], *target.shape[2:], *windows,
        *target.stride(), *x.stride(),
    )  # fmt: skip


def _functions(pool: AdaptiveMaxPool) -> tuple[Callable[..., Any], Callable[..., Tensor]]:
    def forward(x: Tensor, output_size: Any, return_indices: bool, out: Any = None) -> Any:
        output, indices = pool.outputs(x, output_size, return_indices, out)
        where = indices
        if indices is not None and indices.stride() != output.stride():  # of an out that lies otherwise
            where = torch.empty_strided(output.shape, output.stride(), dtype=torch.int64, device=x.device)
        _find(volume(x), volume(output), None if where is None else volume(where))
        if indices is None:
            return output
        if where is not None and where is not indices:
            indices.copy_(where)
        return output, indices

    def backward(grad: Tensor, x: Tensor, output_size: Any, return_indices: bool, out: Tensor | None = None) -> Tensor:
        made = x.new_empty(x.shape) if out is None else out
        if total := made.numel():
            wide, flow = volume(made), volume(grad)
            indices = torch.empty(flow.shape, dtype=torch.int64, device=x.device)
            _find(volume(x), None, indices)
            windows = tuple(map(longest, flow.shape[2:], wide.shape[2:]))
            chosen = CONFIGS.pick("backward", dtype=x.dtype)
            LARGEST_BACK.at(**chosen)(
                (triton.cdiv(total, chosen["BLOCK"]), 1, 1), wide, flow, indices, total, *wide.shape[1:],
                *flow.shape[2:], *windows, *flow.stride(), *wide.stride(),
            )  # fmt: skip
        return made

    return forward, backward


adaptive_max_pool1d_forward, adaptive_max_pool1d_backward = _functions(TABLE.entries["adaptive_max_pool1d"])
adaptive_max_pool2d_forward, adaptive_max_pool2d_backward = _functions(TABLE.entries["adaptive_max_pool2d"])
adaptive_max_pool3d_forward, adaptive_max_pool3d_backward = _functions(TABLE.entries["adaptive_max_pool3d"])
