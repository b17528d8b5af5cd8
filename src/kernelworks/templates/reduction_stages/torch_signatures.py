"""torch's signatures of the table's functions: each returns the op's arguments, or why torch's function serves."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "along", "difference", "divergence", "extremum", "hinge", "huber", "logits", "moment", "norm", "smooth",
    "with_dtype",
]  # fmt: skip


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
    input: Tensor, dim: int | tuple[int, ...] | list[int] | None = None, unbiased: bool = True,
    keepdim: bool = False, *, correction: float | None = 1.0,
) -> tuple[Any, ...] | str:  # fmt: skip
    """``torch.var``'s."""
    if isinstance(dim, bool):
        return "dim is for torch to read as unbiased"
    if not unbiased:
        return "unbiased stands in correction's place" if correction != 1.0 else (input, dim, keepdim, 0.0)
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


# ---------------------------------------------------------------- losses

DEPRECATED_WORDS = "size_average and reduce are torch's, deprecated there"


def _is_old(size_average: bool | None, reduce: bool | None) -> bool:
    return size_average is not None or reduce is not None


def difference(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean", weight: Tensor | None = None,
) -> tuple[Any, ...] | str:  # fmt: skip
    """``F.mse_loss``'s."""
    if weight is not None:
        return "weight asks for another loss"
    return DEPRECATED_WORDS if _is_old(size_average, reduce) else (input, target, reduction)


def smooth(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean", beta: float = 1.0,
) -> tuple[Any, ...] | str:  # fmt: skip
    """``F.smooth_l1_loss``'s."""
    return DEPRECATED_WORDS if _is_old(size_average, reduce) else (input, target, reduction, beta)


def huber(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None
) -> tuple[Any, ...] | str:
    """``F.huber_loss``'s."""
    return "weight asks for another loss" if weight is not None else (input, target, reduction, delta)


def hinge(
    input: Tensor, target: Tensor, margin: float = 1.0, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean",
) -> tuple[Any, ...] | str:  # fmt: skip
    """``F.hinge_embedding_loss``'s."""
    return DEPRECATED_WORDS if _is_old(size_average, reduce) else (input, target, reduction, margin)


def divergence(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean", log_target: bool = False,
) -> tuple[Any, ...] | str:  # fmt: skip
    """``F.kl_div``'s."""
    return DEPRECATED_WORDS if _is_old(size_average, reduce) else (input, target, reduction, log_target)


def logits(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean", pos_weight: Tensor | None = None,
) -> tuple[Any, ...] | str:  # fmt: skip
    """``F.binary_cross_entropy_with_logits``'s."""
    if any(isinstance(w, Tensor) and w.requires_grad for w in (weight, pos_weight)):
        return "a weight's gradient is torch's"
    return DEPRECATED_WORDS if _is_old(size_average, reduce) else (input, target, weight, pos_weight, reduction)
