"""adamw8bit_ on the GPU: a program takes some blocks of 256 elements, with their scales."""

from __future__ import annotations

import functools
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs
from kernelworks.ops.optimizer.adamw8bit import numbers_of

CONFIGS = configs(__file__)


@triton.jit
def _decoded(code, K: tl.constexpr):
    normal = ((code + (112 << K)) << (23 - K)).to(tl.float32, bitcast=True)
    return tl.where(code < (1 << K), code.to(tl.float32) * (1.0 / (1 << (14 + K))), normal)


@triton.jit
def _encoded(x, K: tl.constexpr):
    """The nearest code of a number from 0 to 2 - 2^-K. Added to 2^(9 - K), a small one ends in its steps."""
    bits = x.to(tl.int32, bitcast=True)
    normal = ((bits + ((1 << (22 - K)) - 1) + ((bits >> (23 - K)) & 1)) >> (23 - K)) - (112 << K)
    small = (x + (1 << (9 - K)) * 1.0).to(tl.int32, bitcast=True) & 31
    return tl.where(x < 0.00006103515625, small, normal)


@triton.jit
def _scale(size, finite, K: tl.constexpr):
    most = tl.max(size, 1)
    scale = tl.where(most < 7.888609052210118e-31, 0.0, tl.div_rn(most, 2.0 - 1.0 / (1 << K)))
    return tl.where(finite, scale, float("nan"))


@triton.jit
def _step(
    param, grad, average, average_scale, root, root_scale, N, sign, keep, take, keep2, take2, rate, floor, decay,
    BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    at = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside, whole = at < N, block * BLOCK < N
    code = tl.load(average + at, mask=inside, other=0).to(tl.int32)
    m = _decoded(code & 127, 3) * tl.load(average_scale + block, mask=whole, other=0.0)[:, None]
    r = _decoded(tl.load(root + at, mask=inside, other=0).to(tl.int32), 4)
    r *= tl.load(root_scale + block, mask=whole, other=0.0)[:, None]
    g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32) * sign
    p = tl.load(param + at, mask=inside, other=0.0).to(tl.float32)
    m = keep * tl.where(code > 127, -m, m) + take * g
    size = tl.maximum(r, tl.abs(g))  # the squares of what is huge or tiny are taken of a power of two of it
    down = tl.where(size > 1.152921504606847e18, 5.421010862427522e-20, 1.0)
    down = tl.where(size < 8.673617379884035e-19, 1.8446744073709552e19, down)
    up = tl.where(size > 1.152921504606847e18, 1.8446744073709552e19, 1.0)
    up = tl.where(size < 8.673617379884035e-19, 5.421010862427522e-20, up)
    r *= down
    r = tl.sqrt_rn(keep2 * r * r + take2 * (g * down) * (g * down)) * up
    p = p * decay - rate * tl.div_rn(m, r + floor)
    tl.store(param + at, p.to(param.dtype.element_ty), mask=inside)
    lost = (tl.abs(m) <= 3.4028234663852886e38) & (r <= 3.4028234663852886e38)
    finite = tl.min(lost.to(tl.int32), 1) > 0
    to_m, to_r = _scale(tl.abs(m), finite, 3), _scale(r, finite, 4)
    tl.store(average_scale + block, to_m, mask=whole)
    tl.store(root_scale + block, to_r, mask=whole)
    some_m, some_r = (to_m > 0.0)[:, None], (to_r > 0.0)[:, None]
    code = _encoded(tl.div_rn(tl.where(some_m, tl.abs(m), 0.0), tl.where(some_m, to_m[:, None], 1.0)), 3)
    code = tl.where((m < 0.0) & (code > 0), code + 128, code)
    tl.store(average + at, code.to(tl.uint8), mask=inside)
    code = _encoded(tl.div_rn(tl.where(some_r, r, 0.0), tl.where(some_r, to_r[:, None], 1.0)), 4)
    tl.store(root + at, code.to(tl.uint8), mask=inside)


STEP = Kernel(_step)


@functools.cache
def _at(dtype: Any) -> tuple[Launch, int]:
    chosen = CONFIGS.pick("step", dtype=dtype)
    return STEP.at(BLOCK=256, **chosen), 256 * chosen["BLOCKS"]


def forward(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_scale: Tensor, rms: Tensor, rms_scale: Tensor, *numbers: Any,
    out: Any = None,
) -> None:  # fmt: skip
    count = param.numel()
    if count:
        launch, taken = _at(param.dtype)
        states = (exp_avg, exp_avg_scale, rms, rms_scale)
        launch((triton.cdiv(count, taken), 1, 1), param, grad, *states, count, *numbers_of(*numbers))
