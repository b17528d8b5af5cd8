"""rowwise_linear on a GPU, for few rows of x: codes become floats where their bytes are read."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs
from kernelworks.ops.quantization.rowwise_linear.contract import EIGHT

CONFIGS = configs(__file__)


@triton.jit
def _wide(code, FLOAT8: tl.constexpr):
    """The numbers of bytes. float8's are taken apart here: not every GPU knows them."""
    if FLOAT8:
        size = code & 127
        normal = ((size + 960) << 20).to(tl.float32, bitcast=True)
        x = tl.where(size < 8, size.to(tl.float32) * 0.001953125, normal)
        x = tl.where(size == 127, float("nan"), x)
        x = tl.where(code > 127, -x, x)
    else:
        x = tl.where(code > 127, code - 256, code).to(tl.float32)
    return x


@triton.jit
def _rows(
    out, x, weight, scale, bias, M, N, K, FLOAT8: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    there = n < N
    rows = weight + n.to(tl.int64)[:, None] * K
    total = tl.zeros([BLOCK_M, BLOCK_N, BLOCK_K], tl.float32)
    for first in range(0, K, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        code = tl.load(rows + k[None, :], mask=there[:, None] & (k < K)[None, :], other=0).to(tl.int32)
        one = tl.load(x + m.to(tl.int64)[:, None] * K + k[None, :], mask=(m < M)[:, None] & (k < K)[None, :], other=0.0)
        total += _wide(code, FLOAT8)[None, :, :] * one.to(tl.float32)[:, None, :]
    result = tl.sum(total, 2) * tl.load(scale + n, mask=there, other=0.0)[None, :]
    if bias is not None:
        result += tl.load(bias + n, mask=there, other=0.0).to(tl.float32)[None, :]
    tl.store(out + m.to(tl.int64)[:, None] * N + n[None, :], result, mask=(m < M)[:, None] & there[None, :])


ROWS = Kernel(_rows)


@functools.cache
def _at(m: int, k: int, is_float8: bool) -> tuple[Launch, int, int]:
    chosen = CONFIGS.pick("rows", M=m, K=k)
    return ROWS.at(FLOAT8=is_float8, **chosen), chosen["BLOCK_M"], chosen["BLOCK_N"]


def forward(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, out: Any = None) -> Tensor:
    N, K = weight.shape
    output: Tensor = x.new_empty((*x.shape[:-1], N)) if out is None else out
    if output.numel():
        M = output.numel() // N
        launch, taken_m, taken_n = _at(M, K, weight.dtype == EIGHT)
        more = None if bias is None else bias.contiguous()
        grid = (triton.cdiv(N, taken_n), triton.cdiv(M, taken_m), 1)
        launch(grid, output, x.contiguous(), weight.view(torch.uint8), scale.contiguous(), more, M, N, K)
    return output


def prepare_forward(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Callable[..., Tensor]:
    """The launch itself. A replay names tensors by their addresses: it would hand on the weight for its view, and the
    kernel would be compiled for float8 where another call's weight is not aligned as this one's."""
    return forward
