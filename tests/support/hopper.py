"""How Hopper's kernel of attention_fp8 makes its weights, in torch's functions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernelworks.ops.attention.attention_fp8.contract import per_head
from kernelworks.templates.attention.reference import visible

__all__ = ["as_on_hopper", "bits_of", "weights_of"]

LINE = 56 - 8 * 0.0564  # as in sm90_e4m3.cuh


def bits_of(x: Tensor) -> Tensor:
    """The bits of a weight of about 2^x, as the kernel makes them: rounded to 11 bits, then to whole numbers."""
    return ((8 * x + LINE).clamp(min=0).half() + 1024).double() - 1024


def weights_of(x: Tensor) -> Tensor:
    bits = bits_of(x)
    return torch.where(bits < 8, bits * 2.0**-9, 2.0 ** (bits.div(8, rounding_mode="floor") - 7) * (1 + bits % 8 / 8))


def as_on_hopper(
    q: Tensor, k: Tensor, v: Tensor, q_descale: Tensor, k_descale: Tensor, v_descale: Tensor, causal: str | None,
    scale: float | None, out_dtype: str,
) -> Tensor:  # fmt: skip
    """The kernel's weights and what divides them; its scores and sums exact."""
    heads, groups = q.shape[1], k.shape[1]
    factor = per_head(q_descale.double(), heads, groups) * per_head(k_descale.double(), heads, groups)
    factor = (factor * (q.shape[3] ** -0.5 if scale is None else scale) * math.log2(math.e)).clamp(min=2.0**-126)
    key, value = (t.double().repeat_interleave(heads // groups, 1) for t in (k, v))
    scores = (q.double() @ key.mT).masked_fill(~visible(q, k, causal, None, None), -math.inf) * factor
    top = scores.amax(-1, keepdim=True)
    weights = weights_of(scores - top.masked_fill(top == -math.inf, 0.0) + 7)
    weights = torch.where(scores.isnan(), scores, weights)
    total = weights.sum(-1, keepdim=True)
    output = weights @ value / total.masked_fill(total == 0, 1.0) * per_head(v_descale.double(), heads, groups)
    return output.to(getattr(torch, out_dtype))
