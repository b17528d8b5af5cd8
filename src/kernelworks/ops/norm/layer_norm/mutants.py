"""Known-wrong versions of layer_norm. The proof must reject every one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant

__all__ = ["MUTANTS"]


def _altered(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, changed: dict[str, Any]) -> Tensor:
    v = x.double()
    axis = changed.get("axis", -1)
    mean = v.mean(axis, keepdim=True) if changed.get("centred", True) else torch.zeros(())
    deviations = v - mean
    variance = changed.get("variance", lambda d: d.square().mean(axis, keepdim=True))(deviations)
    y = deviations / torch.sqrt(variance + changed.get("eps", eps))
    if weight is not None:
        y = y * weight.double()
    if bias is not None and changed.get("bias", True):
        y = y + bias.double()
    after: Tensor = changed.get("after", lambda t: t)(y)
    return after.to(x.dtype)


def _variant(**changed: Any) -> Any:
    return lambda x, weight, bias, eps: _altered(x, weight, bias, eps, changed)


def _one_pass(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    v = x.float()
    mean = v.mean(-1, keepdim=True)
    variance = v.square().mean(-1, keepdim=True) - mean.square()  # cancels under a large mean
    y = (v - mean) * torch.rsqrt(variance.clamp_min(0.0) + eps)
    y = y if weight is None else y * weight.float()
    return (y if bias is None else y + bias.float()).to(x.dtype)


def _low_precision(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    total = torch.zeros(x.shape[:-1], dtype=torch.bfloat16)
    for j in range(x.shape[-1]):  # the sum for the mean is kept in bfloat16
        total = total + x[..., j].bfloat16()
    deviations = x.double() - total.double().unsqueeze(-1) / max(x.shape[-1], 1)
    y = deviations * torch.rsqrt(deviations.square().mean(-1, keepdim=True) + eps)
    y = y if weight is None else y * weight.double()
    return (y if bias is None else y + bias.double()).to(x.dtype)


def _short_tile(deviations: Tensor) -> Tensor:
    n = deviations.shape[-1]
    kept = deviations[..., : n // 16 * 16] if n > 16 else deviations
    return kept.square().sum(-1, keepdim=True) / max(n, 1)


def _unbiased(deviations: Tensor) -> Tensor:
    return deviations.square().sum(-1, keepdim=True) / max(deviations.shape[-1] - 1, 1)


def _stale_tail(y: Tensor) -> Tensor:
    y = y.clone()
    if y.shape[-1] % 16:
        y[..., -1] = 0.0
    return y


MUTANTS = (
    Mutant("missing eps", _variant(eps=0.0), "eps left out of the root"),
    Mutant("wrong axis", _variant(axis=0), "the moments run down the columns"),
    Mutant("not centred", _variant(centred=False), "the mean is not subtracted"),
    Mutant("unbiased variance", _variant(variance=_unbiased), "divided by N - 1"),
    Mutant("missing bias", _variant(bias=False), "the bias is not added"),
    Mutant("short tile", _variant(variance=_short_tile), "the vector tail is left out of the variance"),
    Mutant("stale tail", _variant(after=_stale_tail), "the last element of a tail is never written"),
    Mutant("zeros", _variant(after=torch.zeros_like), "nothing is written"),
    Mutant("one-pass variance", _one_pass, "mean of squares less square of mean, in float32"),
    Mutant("bfloat16 accumulation", _low_precision, "the sum for the mean is kept in bfloat16"),
)
