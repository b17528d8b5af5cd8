"""Known-wrong versions of group_norm, beside those that every norm of channels has."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.contract import Mutant

__all__ = ["MUTANTS"]

Moments = Callable[[Tensor], tuple[Tensor, Tensor]]


def _of(moments: Moments) -> Callable[..., Tensor]:
    """With another mean and variance of the row, in float32."""

    def run(x: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        v = x.float().reshape(x.shape[0], num_groups, -1 if x.numel() else 0)
        mean, variance = moments(v)
        shape = (-1, *[1] * (x.dim() - 2))
        y = ((v - mean) * torch.rsqrt(variance + eps)).reshape(x.shape)
        y = y if weight is None else y * weight.float().reshape(shape)
        return (y if bias is None else y + bias.float().reshape(shape)).to(x.dtype)

    return run


def _unbiased(v: Tensor) -> tuple[Tensor, Tensor]:
    mean = v.mean(-1, keepdim=True)
    return mean, (v - mean).square().sum(-1, keepdim=True) / max(v.shape[-1] - 1, 1)


def _one_pass(v: Tensor) -> tuple[Tensor, Tensor]:
    mean = v.mean(-1, keepdim=True)
    return mean, (v.square().mean(-1, keepdim=True) - mean.square()).clamp_min(0.0)  # cancels under a large mean


def _interleaved(x: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Channel c in group c modulo the groups."""
    order = torch.arange(x.shape[1]).reshape(-1, num_groups).t().reshape(-1)
    own = F.group_norm(x[:, order].float(), num_groups, None, None, eps)[:, order.argsort()]
    shape = (-1, *[1] * (x.dim() - 2))
    own = own if weight is None else own * weight.float().reshape(shape)
    return (own if bias is None else own + bias.float().reshape(shape)).to(x.dtype)


def _of_a_sample(x: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return F.group_norm(x, 1, weight, bias, eps)


MUTANTS = (
    Mutant("unbiased variance", _of(_unbiased), "divided by one less than the elements of a group"),
    Mutant("one-pass variance", _of(_one_pass), "mean of squares less square of mean, in float32"),
    Mutant("groups interleaved", _interleaved, "channels that lie apart make a group"),
    Mutant("one group", _of_a_sample, "the number of groups is not looked at"),
)
