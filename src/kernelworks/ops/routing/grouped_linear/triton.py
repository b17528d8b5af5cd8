"""grouped_linear on any GPU: a program looks up the group that its tile of rows belongs to.

How many tiles the groups have is not known without waiting for the GPU, so as many programs start as there may be: a
tile for each BLOCK_M rows, and one more for each group. Rows of no group are one more group, whose sums have no terms.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, Launch, configs, interpreting
from kernelworks.contract.memory_layout import as_rows

CONFIGS = configs(__file__)


@triton.jit
def _tile_of(ends, program, M, E, BLOCK_M: tl.constexpr, GROUPS: tl.constexpr):
    """The group of the program's tile, its first row, and the row behind the group's last. Ends that fall or lie
    beyond the rows are cut off, so that nothing is read or written elsewhere."""
    g = tl.arange(0, GROUPS)
    end = tl.where(g < E, tl.load(ends + g, mask=g < E, other=0).to(tl.int64), M)
    begin = tl.where((g > 0) & (g <= E), tl.load(ends + g - 1, mask=(g > 0) & (g <= E), other=0).to(tl.int64), 0)
    end = tl.minimum(tl.maximum(end, 0), M)
    begin = tl.minimum(tl.maximum(begin, 0), M)
    tiles = tl.where(g <= E, (tl.maximum(end - begin, 0) + BLOCK_M - 1) // BLOCK_M, 0)
    upto = tl.cumsum(tiles, 0)
    group = tl.sum((upto <= program).to(tl.int32), 0)
    here = g == group
    first = tl.sum(tl.where(here, begin + (program - (upto - tiles)) * BLOCK_M, 0), 0)
    return group, first, tl.sum(tl.where(here, end, 0), 0)


@triton.jit
def _product(
    a, b, ends, bias, out, a_stride, b_step, b_stride, bias_step, M, N, K, E,
    B_TURNED: tl.constexpr, WIDEN: tl.constexpr, GROUPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # out[m, n] = sum over k of a[m, k] b[g, n, k] + bias[g, n]; a turned b has its k along the rows in memory
    tiles_n = tl.cdiv(N, BLOCK_N)
    group, first, last = _tile_of(ends, tl.program_id(0) // tiles_n, M, E, BLOCK_M, GROUPS)
    if group > E:
        return
    m, n, k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    column = (tl.program_id(0) % tiles_n * BLOCK_N).to(tl.int64)
    # Where a tile begins is a number of 64 bits; where an element lies in it one of 32, which takes half the registers.
    a += first * a_stride
    of_a = m[:, None] * a_stride + k[None, :]
    b += group.to(tl.int64) * b_step
    if B_TURNED:
        b += column
        of_b = k[:, None] * b_stride + n[None, :]
        step = BLOCK_K * tl.cast(b_stride, tl.int64)
    else:
        b += column * b_stride
        of_b = n[None, :] * b_stride + k[:, None]
        step = tl.cast(BLOCK_K, tl.int64)
    here_m, here_n = m < last - first, n < N - column
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    terms = tl.where(group < E, K, 0)
    for done in range(0, terms, BLOCK_K):
        here = k < terms - done
        left = tl.load(a + of_a, mask=here_m[:, None] & here[None, :], other=0.0)
        right = tl.load(b + of_b, mask=here[:, None] & here_n[None, :], other=0.0)
        if WIDEN:  # the interpreter takes bfloat16 numbers for integers in a product
            left, right = left.to(tl.float32), right.to(tl.float32)
        total = tl.dot(left, right, total, input_precision="ieee")
        a += BLOCK_K
        b += step
    if bias is not None:
        offset = tl.load(bias + group.to(tl.int64) * bias_step + column + n, mask=here_n & (group < E), other=0.0)
        total += offset.to(tl.float32)[None, :]
    out += first * N + column
    tl.store(out + m[:, None] * N + n[None, :], total, mask=here_m[:, None] & here_n[None, :])


@triton.jit
def _of_weight(
    grad, x, ends, out, grad_stride, x_stride, M, N, K,
    WIDEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # out[g, n, k] = sum over the rows m of group g of grad[m, n] x[m, k]
    group, tiles_k = tl.program_id(1).to(tl.int64), tl.cdiv(K, BLOCK_K)
    end = tl.minimum(tl.maximum(tl.load(ends + group).to(tl.int64), 0), M)
    begin = tl.load(ends + group - 1, mask=group > 0, other=0).to(tl.int64)
    begin = tl.minimum(tl.maximum(begin, 0), M)
    n = (tl.program_id(0) // tiles_k * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    k = (tl.program_id(0) % tiles_k * BLOCK_K + tl.arange(0, BLOCK_K)).to(tl.int64)
    total = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    for first in range(begin, end, BLOCK_M):
        m = first + tl.arange(0, BLOCK_M)
        left = tl.load(
            grad + m[None, :] * grad_stride + n[:, None], mask=(m < end)[None, :] & (n < N)[:, None], other=0.0
        )
        right = tl.load(x + m[:, None] * x_stride + k[None, :], mask=(m < end)[:, None] & (k < K)[None, :], other=0.0)
        if WIDEN:
            left, right = left.to(tl.float32), right.to(tl.float32)
        total = tl.dot(left, right, total, input_precision="ieee")
    out += group * N * K
    tl.store(out + n[:, None] * K + k[None, :], total, mask=(n < N)[:, None] & (k < K)[None, :])


@triton.jit
def _of_bias(grad, ends, out, grad_stride, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    group = tl.program_id(1).to(tl.int64)
    end = tl.minimum(tl.maximum(tl.load(ends + group).to(tl.int64), 0), M)
    begin = tl.load(ends + group - 1, mask=group > 0, other=0).to(tl.int64)
    begin = tl.minimum(tl.maximum(begin, 0), M)
    n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    total = tl.zeros([BLOCK_N], tl.float32)
    for first in range(begin, end, BLOCK_M):
        m = first + tl.arange(0, BLOCK_M)
        tile = tl.load(
            grad + m[:, None] * grad_stride + n[None, :], mask=(m < end)[:, None] & (n < N)[None, :], other=0.0
        )
        total += tl.sum(tile.to(tl.float32), 0)
    tl.store(out + group * N + n, total, mask=n < N)


PRODUCT, OF_WEIGHT, OF_BIAS = Kernel(_product), Kernel(_of_weight), Kernel(_of_bias)
SUM_ROWS, SUM_COLUMNS = 32, 64


@functools.cache
def _product_at(m: int, n: int, k: int, experts: int, dtype: torch.dtype, turned: bool) -> tuple[int, Launch]:
    """How many programs, and the launch."""
    chosen = CONFIGS.pick("product", M=triton.cdiv(m, max(experts, 1)), N=n, K=k, dtype=dtype)
    widen = interpreting() and dtype == torch.bfloat16
    launch = PRODUCT.at(B_TURNED=turned, WIDEN=widen, GROUPS=triton.next_power_of_2(experts + 2), **chosen)
    return (m // chosen["BLOCK_M"] + min(m, experts + 1)) * triton.cdiv(n, chosen["BLOCK_N"]), launch


@functools.cache
def _weight_at(m: int, n: int, k: int, experts: int, dtype: torch.dtype) -> tuple[int, Launch]:
    chosen = CONFIGS.pick("of_weight", M=triton.cdiv(m, max(experts, 1)), N=n, K=k, dtype=dtype)
    launch = OF_WEIGHT.at(WIDEN=interpreting() and dtype == torch.bfloat16, **chosen)
    return triton.cdiv(n, chosen["BLOCK_N"]) * triton.cdiv(k, chosen["BLOCK_K"]), launch


def _matrices(weight: Tensor) -> tuple[Tensor, int, bool]:
    """The weight as it lies or copied: the tensor, the distance of the lines of a matrix, and whether it is turned."""
    if weight.stride(2) == 1:
        return weight, weight.stride(1), False
    if weight.stride(1) == 1:
        return weight, weight.stride(2), True
    return weight.contiguous(), weight.shape[2], False


def _multiply(
    rows: Tensor, weight: Tensor, turn: bool, offsets: Tensor, bias: Tensor | None, out: Tensor, n: int, k: int
) -> None:
    if out.numel():
        matrices, stride, turned = _matrices(weight)
        experts, m = weight.shape[0], out.shape[0]
        programs, launch = _product_at(m, n, k, experts, rows.dtype, turned is not turn)
        step = bias.stride(0) if bias is not None else 0
        launch(
            (programs, 1, 1), rows, matrices, offsets, bias, out, rows.stride(0), matrices.stride(0), stride, step, m,
            n, k, experts,
        )  # fmt: skip


def forward(x: Tensor, weight: Tensor, offsets: Tensor, bias: Tensor | None, out: Any = None) -> Any:
    _, n, k = weight.shape
    output = torch.empty((x.shape[0], n), dtype=x.dtype, device=x.device) if out is None else out
    if bias is not None and bias.stride(1) != 1:
        bias = bias.contiguous()
    _multiply(as_rows(x), weight, False, offsets.contiguous(), bias, output, n, k)
    return output


def backward(
    grad: Tensor, x: Tensor, weight: Tensor, offsets: Tensor, needs: list[bool], out: Any = None
) -> tuple[Tensor, Tensor, Tensor]:
    experts, n, k = weight.shape
    grads, ends, m = as_rows(grad), offsets.contiguous(), x.shape[0]
    grad_x = x.new_empty(x.shape if needs[0] else 0) if out is None else out[0]
    grad_weight = weight.new_empty(weight.shape if needs[1] else 0) if out is None else out[1]
    grad_bias = weight.new_empty((experts, n) if needs[2] else 0) if out is None else out[2]
    if needs[0]:
        _multiply(grads, weight, True, ends, None, grad_x, k, n)
    if needs[1] and grad_weight.numel():
        rows = as_rows(x)
        tiles, launch = _weight_at(m, n, k, experts, x.dtype)
        launch((tiles, experts, 1), grads, rows, ends, grad_weight, grads.stride(0), rows.stride(0), m, n, k)
    if needs[2] and grad_bias.numel():
        launch = OF_BIAS.at(BLOCK_M=SUM_ROWS, BLOCK_N=SUM_COLUMNS, num_warps=4)
        launch((triton.cdiv(n, SUM_COLUMNS), experts, 1), grads, ends, grad_bias, grads.stride(0), m, n)
    return grad_x, grad_weight, grad_bias
