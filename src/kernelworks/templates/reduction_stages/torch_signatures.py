"""torch's signatures of the table's functions: each returns the op's arguments, or why torch's function serves."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = ["along", "extremum", "moment", "norm", "with_dtype"]


OTHER_DTYPE = "dtype asks for another result than the input's"


def with_dtype(
    input: Tensor, dim: int | tuple[int, ...] | list[int] | None = None, keepdim: bool = False, *,
    dtype: torch.dtype | None = None,
) -> tuple[Any, ...] | str:  # fmt: skip
    """``torch.mean``'s."""
    return OTHER_DTYPE if dtype is not None and dtype != input.dtype else (input, dim, keepdim)


def extremum(
    input: Tensor, dim: int | tuple[int, ...] | list[int] | None = (), keepdim: bool = False
) -> tuple[Any, ...] | str:
    """``torch.amax``'s."""
    return "dim is no dimension" if dim is None else (input, dim, keepdim)


def along(input: Tensor, dim: int | tuple[int, ...] | list[int], keepdim: bool = False) -> tuple[Any, ...] | str:
    """``torch.logsumexp``'s."""
    return input, dim, keepdim


def moment(
    input: Tensor, dim: int | tuple[int, ...] | list[int] | None = None, unbiased: bool | None = None,
    keepdim: bool = False, *, correction: float | None = 1.0,
) -> tuple[Any, ...] | str:  # fmt: skip
    """``torch.var``'s."""
    if isinstance(dim, bool):
        return "dim is for torch to read as unbiased"
    if unbiased is not None:
        return input, dim, keepdim, 1.0 if unbiased else 0.0
    return input, dim, keepdim, 1.0 if correction is None else correction


def norm(
    input: Tensor, p: float | str | None = "fro", dim: int | tuple[int, ...] | list[int] | None = None,
    keepdim: bool = False, out: Tensor | None = None, dtype: torch.dtype | None = None,
) -> tuple[Any, ...] | str:  # fmt: skip
    """``torch.norm``'s."""
    if out is not None:
        return "out is torch's to write"
    if dtype is not None and dtype != input.dtype:
        return OTHER_DTYPE
    if p is None or p == "fro":
        p = 2.0
    if p.__class__ not in (int, float) or p not in (1.0, 2.0, math.inf):
        return "p is 1, 2 or infinite in a kernel"
    return input, dim, keepdim, float(p)
