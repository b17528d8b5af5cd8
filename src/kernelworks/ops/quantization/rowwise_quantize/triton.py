"""rowwise_quantize on a GPU: a program a row, first its largest magnitude, then its codes."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, configs, kernel
from kernelworks.ops.quantization.rowwise_quantize.contract import MOST

CONFIGS = configs(__file__)


@kernel
def _whole(q):
    """The nearest whole number, of less than 2^22 in size; halves go to the even one."""
    return (q + 12582912.0) - 12582912.0


@kernel
def _float8(q):
    """The code of the nearest number of e4m3, of up to 448 in size, by the bits of float32. NaN is 127."""
    bits = q.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - 960
    small = _whole(tl.abs(q) * 512.0).to(tl.int32)  # units of 2^-9, up to the smallest normal one
    code = tl.where(size < 0x3C800000, small, normal) | ((bits >> 24) & 128)
    return tl.where(size > 0x7F800000, 127, code)


@kernel
def _quantized(codes, scale, x, K, MOST: tl.constexpr, BLOCK: tl.constexpr):
    """Of magnitudes the bits are ordered as they are, NaN above infinity: so the largest of whole numbers is NaN."""
    row = tl.program_id(0).to(tl.int64)
    number = tl.arange(0, BLOCK)
    largest = tl.zeros([BLOCK], tl.int32)
    for first in range(0, K, BLOCK):
        k = first + number
        v = tl.load(x + row * K + k, mask=k < K, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, v.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    step = tl.div_rn(tl.max(largest, 0).to(tl.float32, bitcast=True), MOST)
    tl.store(scale + row, step)
    for first in range(0, K, BLOCK):
        k = first + number
        v = tl.load(x + row * K + k, mask=k < K, other=0.0).to(tl.float32)
        q = tl.div_rn(v, tl.zeros([BLOCK], tl.float32) + step)
        q = tl.where(step == 0.0, 0.0, q)
        q = tl.where(q > MOST, MOST, tl.where(q < -MOST, -MOST, q))  # NaN stays
        if MOST == 448.0:
            code = _float8(q)
        else:
            code = _whole(tl.where(q == q, q, 0.0)).to(tl.int32)
        tl.store(codes + row * K + k, code.to(tl.int8), mask=k < K)


QUANTIZE_ROWS = Kernel(_quantized)


def forward(x: Tensor, dtype: str, out: Any = None) -> tuple[Tensor, Tensor]:
    if out is None:
        out = x.new_empty(x.shape, dtype=torch.int8), x.new_empty(x.shape[:-1], dtype=torch.float32)
    codes, scale = out
    if scale.numel():
        settings = CONFIGS.pick("quantized", K=x.shape[-1])
        launch = QUANTIZE_ROWS.at(MOST=MOST[dtype], **settings)
        launch((scale.numel(), 1, 1), codes, scale, x.contiguous(), x.shape[-1])
    return codes, scale
