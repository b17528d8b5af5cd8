"""How launches hand strided tensors to kernels: as rows where that costs nothing, by one copy where it cannot be."""

from __future__ import annotations

from torch import Tensor

__all__ = ["as_rows"]


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
