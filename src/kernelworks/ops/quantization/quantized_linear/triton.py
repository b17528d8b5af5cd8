"""quantized_linear on a GPU, for few rows of x: weights are decoded where their bytes are read."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, configs
from kernelworks.contract.memory_layout import as_rows
from kernelworks.contract.packed_formats import FORMATS
from kernelworks.tile.packed_blocks import decoded_numbers

CONFIGS = configs(__file__)


@triton.jit
def _rows(
    out, x, weight, bias, x_stride, N, K, row_bytes, FORMAT: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1).to(tl.int64)
    there = n < N
    rows = weight + n.to(tl.int64)[:, None] * row_bytes
    total = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    for first in range(0, K, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        one = tl.load(x + m * x_stride + k, mask=k < K, other=0.0).to(tl.float32)
        total += decoded_numbers(rows, k[None, :], there[:, None] & (k < K)[None, :], FORMAT) * one[None, :]
    result = tl.sum(total, 1)
    if bias is not None:
        result += tl.load(bias + n, mask=there, other=0.0).to(tl.float32)
    tl.store(out + m * N + n, result, mask=there)


ROWS = Kernel(_rows)


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, format: str, activations: str, out: Any = None
) -> Tensor:  # fmt: skip
    N, K = weight.shape[0], x.shape[-1]
    output: Tensor = x.new_empty((*x.shape[:-1], N)) if out is None else out
    M = output.numel() // N if N else 0
    if M and N:
        rows, chosen = as_rows(x), CONFIGS.pick("rows", N=N, K=K)
        stride = rows.stride(0) if rows.dim() == 2 else K
        launch = ROWS.at(FORMAT=FORMATS[format].number, **chosen)
        more = None if bias is None else bias.contiguous()
        grid = (triton.cdiv(N, chosen["BLOCK_N"]), M, 1)
        launch(grid, output, rows, weight, more, stride, N, K, weight.shape[1])
    return output
