"""linear_gelu for 16-bit elements on Hopper: the product in tiles, with gelu of each sum before it is rounded."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.cuda import Kernel
from kernelworks.contract import Request
from kernelworks.ops.linear.linear.epilogue import decline_reason, kernel_of, multiply

__all__ = ["forward", "guard"]

SOURCE = Path(__file__).with_suffix(".cu")


def guard(request: Request) -> str | None:
    """Why these kernels do not take a request, or None."""
    return decline_reason(request)


@functools.cache
def _kernel(approximate: str, dtype: torch.dtype) -> Kernel:
    return kernel_of(SOURCE, f"gelu_{approximate}", dtype)


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str, out: Any = None) -> Any:
    output = x.new_empty((*x.shape[:-1], weight.shape[0])) if out is None else out
    return multiply(_kernel(approximate, x.dtype), output, x, weight, bias=bias)
