"""Known-wrong versions of embedding. The verification must reject every one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant

__all__ = ["MUTANTS"]


def _looked_up(ids: Tensor, weight: Tensor) -> Tensor:
    return weight[ids.long()]


def _next_row(ids: Tensor, weight: Tensor) -> Any:
    return _looked_up((ids + 1) % weight.shape[0], weight)


def _columns(ids: Tensor, weight: Tensor) -> Any:
    flat = weight.T.reshape(weight.shape)  # the table read column by column
    return _looked_up(ids, flat)


def _through_bfloat16(ids: Tensor, weight: Tensor) -> Any:
    return _looked_up(ids, weight.bfloat16().to(weight.dtype))


def _stale_tail(ids: Tensor, weight: Tensor) -> Any:
    y = _looked_up(ids, weight)
    y[..., y.shape[-1] // 16 * 16 :] = 0.0
    return y


def _last_missing(ids: Tensor, weight: Tensor) -> Any:
    y = _looked_up(ids, weight)
    if ids.numel() > 1:
        y.view(ids.numel(), -1)[-1] = 0.0
    return y


def _no_nan(ids: Tensor, weight: Tensor) -> Any:
    return _looked_up(ids, weight.nan_to_num(0.0))


def _first_row(ids: Tensor, weight: Tensor) -> Any:
    return _looked_up(torch.where(ids == weight.shape[0] - 1, torch.zeros_like(ids), ids), weight)


MUTANTS = (
    Mutant("next row", _next_row, "every id is off by one"),
    Mutant("columns", _columns, "rows and columns are taken for one another"),
    Mutant("through bfloat16", _through_bfloat16, "the values lose bits on the way"),
    Mutant("stale tail", _stale_tail, "the end of each row is never written"),
    Mutant("last id missing", _last_missing, "the last row is never written"),
    Mutant("NaN swallowed", _no_nan, "NaN becomes 0"),
    Mutant("last row of the table", _first_row, "the table's last row is taken to lie outside"),
    Mutant("zeros", lambda ids, weight: torch.zeros_like(_looked_up(ids, weight)), "nothing is written"),
)
