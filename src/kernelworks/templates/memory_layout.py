"""How tensors lie in memory as kernels take them and make them."""

from __future__ import annotations

import torch
from torch import Tensor

from kernelworks.templates.row_views import as_rows

__all__ = ["as_rows", "new_output"]


def new_output(q: Tensor) -> Tensor:
    """A tensor like q [B, H, L, D], laid out as [B, L, H, D]."""
    heads, length, dim = q.shape[1:]
    strides = (length * heads * dim, dim, heads * dim, 1)
    return torch.empty_strided(q.shape, strides, dtype=q.dtype, device=q.device)
