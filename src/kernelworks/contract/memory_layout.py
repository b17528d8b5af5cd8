"""How tensors lie in memory as kernels take them and make them."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["as_rows", "new_output"]


def new_output(q: Tensor) -> Tensor:
    """A tensor like q [B, H, L, D], laid out as [B, L, H, D]."""
    heads, length, dim = q.shape[1:]
    strides = (length * heads * dim, dim, heads * dim, 1)
    return torch.empty_strided(q.shape, strides, dtype=q.dtype, device=q.device)


def as_rows(x: Tensor) -> Tensor:
    """``x`` as kernels take it: contiguous of any shape, or [M, N] with unit column stride and any row stride.

    A view wherever strides allow it; otherwise one copy.
    """
    if x.is_contiguous():
        return x
    if x.dim() >= 2 and x.stride(-1) == 1:
        if x.dim() == 2:
            return x
        try:
            return x.view(-1, x.shape[-1])
        except RuntimeError:  # no single row stride describes it
            pass
    return x.contiguous()
