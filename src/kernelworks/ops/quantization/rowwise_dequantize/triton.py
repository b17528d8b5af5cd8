"""rowwise_dequantize on a GPU: a program takes some elements of a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel, configs, kernel
from kernelworks.ops.quantization.rowwise_dequantize.contract import DTYPES, EIGHT

CONFIGS = configs(__file__)


@kernel
def _dequantized(out, codes, scale, K, parts, FLOAT8: tl.constexpr, BLOCK: tl.constexpr):
    """float8's bytes are taken apart here: not every GPU knows them."""
    program = tl.program_id(0).to(tl.int64)
    row = program // parts
    k = program % parts * BLOCK + tl.arange(0, BLOCK)
    code = tl.load(codes + row * K + k, mask=k < K, other=0).to(tl.int32)
    if FLOAT8:
        size = code & 127
        normal = ((size + 960) << 20).to(tl.float32, bitcast=True)
        x = tl.where(size < 8, size.to(tl.float32) * 0.001953125, normal)
        x = tl.where(size == 127, float("nan"), x)
        x = tl.where(code > 127, -x, x)
    else:
        x = tl.where(code > 127, code - 256, code).to(tl.float32)
    tl.store(out + row * K + k, x * tl.load(scale + row), mask=k < K)


DEQUANTIZE_ROWS = Kernel(_dequantized)


def forward(codes: Tensor, scale: Tensor, dtype: str, out: Any = None) -> Tensor:
    K = codes.shape[-1]
    output: Tensor = codes.new_empty(codes.shape, dtype=DTYPES[dtype]) if out is None else out
    if output.numel():
        settings = CONFIGS.pick("dequantized", K=K)
        parts = triton.cdiv(K, settings["BLOCK"])
        grid = (output.numel() // K * parts, 1, 1)
        launch = DEQUANTIZE_ROWS.at(FLOAT8=codes.dtype == EIGHT, **settings)
        launch(grid, output, codes.view(torch.uint8), scale.contiguous(), K, parts)
    return output


def prepare_forward(codes: Tensor, scale: Tensor, dtype: str) -> Callable[..., Tensor]:
    """The launch itself: a replay, which names tensors by their addresses, would hand on float8 for its view."""
    return forward
