"""linear on any GPU: one blocked product with any of the four layouts serves the forward and both gradients."""

import functools
import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs, interpreting
from kernelworks.contract.memory_layout import as_rows

CONFIGS = configs(__file__)
GROUP = 8  # rows of tiles that are finished before the next columns: they share a part of b in L2


@triton.jit
def _product(
    a, b, bias, out, a_stride, b_stride, M, N, K,
    A_TURNED: tl.constexpr, B_TURNED: tl.constexpr, WIDEN: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # out[m, n] = sum over k of a[m, k] b[n, k] + bias[n]; a turned operand has its k along the rows in memory
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    program = tl.program_id(0)
    group = program // (GROUP * tiles_n)
    first = group * GROUP
    height = min(tiles_m - first, GROUP)
    inside = program - group * GROUP * tiles_n
    m = ((first + inside % height) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    n = (inside // height * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    k = tl.arange(0, BLOCK_K).to(tl.int64)
    if A_TURNED:
        a += k[None, :] * a_stride + m[:, None]
        a_step = BLOCK_K * tl.cast(a_stride, tl.int64)
    else:
        a += m[:, None] * a_stride + k[None, :]
        a_step = tl.cast(BLOCK_K, tl.int64)
    if B_TURNED:
        b += k[:, None] * b_stride + n[None, :]
        b_step = BLOCK_K * tl.cast(b_stride, tl.int64)
    else:
        b += n[None, :] * b_stride + k[:, None]
        b_step = tl.cast(BLOCK_K, tl.int64)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for done in range(0, K, BLOCK_K):
        here = k < K - done
        left = tl.load(a, mask=(m < M)[:, None] & here[None, :], other=0.0)
        right = tl.load(b, mask=here[:, None] & (n < N)[None, :], other=0.0)
        if WIDEN:  # the interpreter takes bfloat16 numbers for integers in a product
            left, right = left.to(tl.float32), right.to(tl.float32)
        total = tl.dot(left, right, total, input_precision="ieee")
        a += a_step
        b += b_step
    if bias is not None:
        total += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    tl.store(out + m[:, None] * N + n[None, :], total, mask=(m < M)[:, None] & (n < N)[None, :])


@triton.jit
def _column_sums(grad, partial, stride, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    part, parts = tl.program_id(1), tl.num_programs(1)
    n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    total = tl.zeros([BLOCK_N], tl.float32)
    for first in range(part * BLOCK_M, M, parts * BLOCK_M):
        m = (first + tl.arange(0, BLOCK_M)).to(tl.int64)
        mask = (m < M)[:, None] & (n < N)[None, :]
        total += tl.sum(tl.load(grad + m[:, None] * stride + n[None, :], mask=mask, other=0.0).to(tl.float32), 0)
    tl.store(partial + part.to(tl.int64) * N + n, total, mask=n < N)


PRODUCT, COLUMN_SUMS = Kernel(_product), Kernel(_column_sums)
SUM_ROWS, SUM_COLUMNS, SUM_PARTS = 32, 64, 64  # a tile of the gradient, and how many programs share its rows at most


@functools.cache
def _product_at(m: int, n: int, k: int, dtype: torch.dtype, a_turned: bool, b_turned: bool) -> tuple[int, Launch]:
    """How many tiles, and the launch."""
    chosen = CONFIGS.pick("product", M=m, N=n, K=k, dtype=dtype)
    widen = interpreting() and dtype == torch.bfloat16
    launch = PRODUCT.at(A_TURNED=a_turned, B_TURNED=b_turned, WIDEN=widen, GROUP=GROUP, **chosen)
    return triton.cdiv(m, chosen["BLOCK_M"]) * triton.cdiv(n, chosen["BLOCK_N"]), launch


def _multiply(
    a: Tensor, a_stride: int, a_turned: bool, b: Tensor, b_stride: int, b_turned: bool, bias: Tensor | None,
    out: Tensor, m: int, n: int, k: int,
) -> None:  # fmt: skip
    if m and n:
        tiles, launch = _product_at(m, n, k, a.dtype, a_turned, b_turned)
        launch((tiles, 1, 1), a, b, bias, out, a_stride, b_stride, m, n, k)


def _weight(weight: Tensor) -> tuple[Tensor, int, bool]:
    """The weight as it lies or copied: the tensor, the distance of its lines, and whether it is turned."""
    if weight.stride(1) == 1:
        return weight, weight.stride(0), False
    if weight.stride(0) == 1:
        return weight, weight.stride(1), True
    return weight.contiguous(), weight.shape[1], False


def _stride(rows: Tensor) -> int:
    return rows.stride(0) if rows.dim() == 2 else rows.shape[-1]


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, out: Any = None) -> Any:
    n, k = weight.shape
    output = torch.empty((*x.shape[:-1], n), dtype=x.dtype, device=x.device) if out is None else out
    rows = as_rows(x)
    matrix, stride, turned = _weight(weight)
    if bias is not None and not bias.is_contiguous():
        bias = bias.contiguous()
    m = output.numel() // max(n, 1)
    _multiply(rows, _stride(rows), False, matrix, stride, turned, bias, output, m, n, k)
    return output


def backward(
    grad: Tensor, x: Tensor, weight: Tensor, needs: list[bool], out: Any = None
) -> tuple[Tensor, Tensor, Tensor]:
    n, k = weight.shape
    m = math.prod(x.shape[:-1])
    grads = as_rows(grad)
    grad_x = x.new_empty(x.shape if needs[0] else 0) if out is None else out[0]
    grad_weight = weight.new_empty(weight.shape if needs[1] else 0)
    grad_bias = weight.new_empty(0)
    if needs[0]:
        matrix, stride, turned = _weight(weight)
        _multiply(grads, _stride(grads), False, matrix, stride, not turned, None, grad_x, m, k, n)
    if needs[1]:
        rows = as_rows(x)
        _multiply(grads, _stride(grads), True, rows, _stride(rows), True, None, grad_weight, n, k, m)
    if needs[2]:
        parts = max(1, min(SUM_PARTS, triton.cdiv(m, SUM_ROWS)))
        partial = weight.new_empty((parts, n), dtype=torch.float32)
        if n:
            launch = COLUMN_SUMS.at(BLOCK_M=SUM_ROWS, BLOCK_N=SUM_COLUMNS, num_warps=4)
            launch((triton.cdiv(n, SUM_COLUMNS), parts, 1), grads, partial, _stride(grads), m, n)
        grad_bias = partial.sum(0).to(weight.dtype)
    return grad_x, grad_weight, grad_bias
