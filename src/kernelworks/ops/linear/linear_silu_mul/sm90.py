"""linear_silu_mul for 16-bit elements on Hopper: the product in tiles, with both sums of an output in one thread."""

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
    return decline_reason(request, ("gate_weight", "up_weight"))


@functools.cache
def _kernel(dtype: torch.dtype) -> Kernel:
    return kernel_of(SOURCE, "silu_mul", dtype)


def forward(x: Tensor, gate_weight: Tensor, up_weight: Tensor, out: Any = None) -> Any:
    output = x.new_empty((*x.shape[:-1], gate_weight.shape[0])) if out is None else out
    return multiply(_kernel(x.dtype), output, x, gate_weight, up=up_weight)
