"""rms_norm_linear for 16-bit elements on Hopper: the product in tiles, and before it the scale of each row of x."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.cuda import Kernel
from kernelworks.contract import Request
from kernelworks.ops.linear.linear.epilogue import decline_reason, kernel_of, multiply, rows_of
from kernelworks.ops.linear.linear.sm90 import _suffix

__all__ = ["forward", "guard"]

SOURCE = Path(__file__).with_suffix(".cu")
ROWS = 8  # of x a block, a warp each


def guard(request: Request) -> str | None:
    """Why these kernels do not take a request, or None."""
    return decline_reason(request)


@functools.cache
def _kernel(dtype: torch.dtype) -> Kernel:
    return kernel_of(SOURCE, "scaled", dtype)


@functools.cache
def _scales(dtype: torch.dtype) -> Kernel:
    return Kernel(SOURCE, f"row_scales_{_suffix(dtype)}", threads=32 * ROWS)


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Any = None) -> Any:
    n, k = weight.shape
    output = x.new_empty((*x.shape[:-1], n)) if out is None else out
    rows, m = rows_of(x), x.numel() // k
    scales = torch.empty(m, dtype=torch.float32, device=x.device)
    stride = rows.stride(0) if rows.dim() == 2 else k
    _scales(x.dtype)((-(-m // ROWS), 1, 1), scales, rows, stride, m, k, float(eps))
    return multiply(_kernel(x.dtype), output, rows, weight, bias=bias, scales=scales)
