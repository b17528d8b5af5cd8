"""Known-wrong versions of layer_norm, beside those that every norm has."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernelworks.contract import Mutant

__all__ = ["MUTANTS"]


def _of(moments: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Callable[..., Tensor]:
    """With another mean and variance of the row, in float32."""

    def run(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        v = x.float()
        mean, variance = moments(v)
        y = (v - mean) * torch.rsqrt(variance + eps)
        y = y if weight is None else y * weight.float()
        return (y if bias is None else y + bias.float()).to(x.dtype)

    return run


def _not_centred(v: Tensor) -> tuple[Tensor, Tensor]:
    return torch.zeros(()), v.square().mean(-1, keepdim=True)


def _unbiased(v: Tensor) -> tuple[Tensor, Tensor]:
    mean = v.mean(-1, keepdim=True)
    return mean, (v - mean).square().sum(-1, keepdim=True) / max(v.shape[-1] - 1, 1)


def _one_pass(v: Tensor) -> tuple[Tensor, Tensor]:
    mean = v.mean(-1, keepdim=True)
    return mean, (v.square().mean(-1, keepdim=True) - mean.square()).clamp_min(0.0)  # cancels under a large mean


MUTANTS = (
    Mutant("not centred", _of(_not_centred), "the mean is not subtracted"),
    Mutant("unbiased variance", _of(_unbiased), "divided by N - 1"),
    Mutant("one-pass variance", _of(_one_pass), "mean of squares less square of mean, in float32"),
)
