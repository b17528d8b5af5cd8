"""Where the lines of two tensors lie, for kernels that read both by one place."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kernelworks.contract.row_layout import Lines, lines

__all__ = ["broadcast", "side_by_side"]


def side_by_side(x: Tensor, y: Tensor, dim: int) -> tuple[tuple[Tensor, Tensor], Lines]:
    """Both as they are if their lines along ``dim`` lie alike, else as contiguous copies; and the lines of both."""
    one, other = lines(x, dim), lines(y, dim)
    if one[1:] != other[1:]:
        one, other = lines(x.contiguous(), dim), lines(y.contiguous(), dim)
    return (one.tensor, other.tensor), one


def broadcast(x: Any, y: Any) -> bool:
    """Whether two arrays have different shapes, and come to one."""
    one, other = getattr(x, "shape", None), getattr(y, "shape", None)
    if one is None or other is None or one == other:
        return False
    return all(a == b or 1 in (a, b) for a, b in zip(reversed(one), reversed(other), strict=False))
