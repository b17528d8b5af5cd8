"""Known-wrong versions of rms_norm_linear beside those of its op template. The verification must reject every one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.linear.rms_norm_linear.contract import TEMPLATE

__all__ = ["MUTANTS"]


def _scaled_by(x: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor) -> Tensor:
    y = (x.double() @ weight.double().T) * scale
    return (y if bias is None else y + bias.double()).to(x.dtype)


def _root(x: Tensor, eps: float) -> Tensor:
    return torch.rsqrt(x.double().square().mean(-1, keepdim=True) + eps)


def _next_row(*args: Any) -> Any:
    x, weight, bias, eps = args
    scale = _root(x, eps)
    return _scaled_by(x, weight, bias, scale.roll(1, 0) if x.dim() > 1 else scale)


def _of_all(*args: Any) -> Any:
    x, weight, bias, eps = args
    return _scaled_by(x, weight, bias, torch.rsqrt(x.double().square().mean() + eps))


def _in_bfloat16(*args: Any) -> Any:
    x, weight, bias, eps = args
    return _scaled_by(x, weight, bias, _root(x, eps).bfloat16().double())


def _centred(*args: Any) -> Any:
    x, weight, bias, eps = args
    return _scaled_by(x, weight, bias, _root(x.double() - x.double().mean(-1, keepdim=True), eps))


MUTANTS = (
    Mutant("missing eps", TEMPLATE.replace_arguments(eps=0.0), "eps left out of the root"),
    Mutant("the next row's scale", _next_row, "rows are scaled by their neighbours"),
    Mutant("one scale for all", _of_all, "the mean is over all rows"),
    Mutant("scales in bfloat16", _in_bfloat16, "a row's scale is rounded to bfloat16"),
    Mutant("centred", _centred, "the mean is taken off, as in layer_norm"),
)
