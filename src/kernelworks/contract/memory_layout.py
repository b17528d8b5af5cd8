"""How tensors lie in memory as kernels take them and make them."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["as_rows", "is_channels_last_1d", "new_output", "with_unit_stride"]


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


def is_channels_last_1d(x: Tensor) -> bool:
    """Whether the channels of [B, C, L] lie side by side, as in a transposed [B, L, C]."""
    return x.stride(1) == 1 and (x.stride(2) != 1 or x.shape[2] == 1)


def with_unit_stride(x: Tensor, dim: int) -> Tensor:
    """[B, C, L] with unit stride along one of the last two dimensions; one copy if it has not."""
    if x.stride(dim) == 1 or x.shape[dim] <= 1:
        return x
    return x.contiguous() if dim == 2 else x.transpose(1, 2).contiguous().transpose(1, 2)
